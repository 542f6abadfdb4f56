"""UTF-8 text: how it is imported and read."""

import codecs
from collections.abc import Iterator
from pathlib import Path

from esper_env.tasks.data.errors import DataError
from esper_env.tasks.data.recipes import chunks


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


def read_text(path: Path) -> str:
    """The text in a file, with its line ends as they are."""
    return b"".join(_checked(path)).decode("utf-8")
