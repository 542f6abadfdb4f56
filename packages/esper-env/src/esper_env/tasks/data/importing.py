"""Importing: fill a data set's directory from files that are on this machine already."""

import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from esper_env.tasks.data.datasets import Dataset
from esper_env.tasks.data.errors import DataError
from esper_env.tasks.data.writing import make_directory, write_verified


def install(dataset: Dataset, source: Path, done: Callable[[str], None] = lambda _: None) -> None:
    """Import every file of a data set.

    Args:
        dataset: The data set.
        source: A directory, a tar archive, or one file with the others beside it.
        done: Called with the name of each file that has been installed.
    """
    if not source.exists():
        raise DataError(f"{source} does not exist; allowed: {dataset.importable}")
    with _unpacked(source, dataset) as opened:
        for file in dataset.files:
            write_verified(_contents(dataset, opened, file.name, source), dataset.directory / file.name, file)
            done(file.name)


def _contents(dataset: Dataset, opened: Path, name: str, source: Path) -> Iterator[bytes]:
    for recipe in dataset.recipes:
        contents = recipe(opened, name)
        if contents is not None:
            return contents
    raise DataError(f"{source} does not hold {name}; allowed: {dataset.importable}")


@contextmanager
def _unpacked(source: Path, dataset: Dataset) -> Iterator[Path]:
    """The source itself, or a temporary directory with the contents of a tar archive, on the disk of the data set."""
    if source.is_dir() or not tarfile.is_tarfile(source):
        yield source
    else:
        with tempfile.TemporaryDirectory(dir=make_directory(dataset.directory)) as folder:
            _unpack(source, folder, dataset.room)
            yield Path(folder)


def _unpack(archive: Path, folder: str, room: int) -> None:
    left = room
    try:
        with tarfile.open(archive) as opened:
            for member in opened:
                left -= member.size + tarfile.BLOCKSIZE
                if left < 0:
                    raise DataError(f"{archive} is refused: it unpacks to more than {room:,} bytes")
                opened.extract(member, folder, filter="data")
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DataError(f"{archive} cannot be unpacked: {error}") from error
