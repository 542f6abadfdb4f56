"""The text corpus: any UTF-8 file, imported as `text/corpus.txt`."""

import codecs
from collections.abc import Iterator
from pathlib import Path

from esper_env.tasks.data.datasets import DATASETS, DataFile, Dataset
from esper_env.tasks.data.errors import DataError
from esper_env.tasks.data.recipes import chunks

CORPUS = "corpus.txt"


def utf8(source: Path, name: str) -> Iterator[bytes] | None:  # noqa: ARG001 (the source's own name is free)
    """The source file itself, if it is text."""
    return _checked(source) if source.is_file() else None


def _checked(path: Path) -> Iterator[bytes]:
    decoder, size = codecs.getincrementaldecoder("utf-8")(), 0
    try:
        for chunk in chunks(path):
            decoder.decode(chunk)
            size += len(chunk)
            yield chunk
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error.reason} near byte {max(0, size + error.start)}") from error
    if not size:
        raise DataError(f"{path} is empty; allowed: a UTF-8 text file")


TEXT = Dataset(
    name="text",
    summary="a text corpus of your own",
    files=(DataFile(CORPUS),),
    importable="any UTF-8 text file",
    recipes=(utf8,),
)
DATASETS.register(TEXT.name, TEXT)


def read_corpus() -> str | None:
    """The imported corpus, with its line ends as they are; None if there is none."""
    if TEXT.missing():
        return None
    return b"".join(_checked(TEXT.directory / CORPUS)).decode("utf-8")
