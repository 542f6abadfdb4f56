"""Files that get their name only when they are complete and on the disk: a crash leaves the old one or the new one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

PARTIAL = ".*.partial"  # names of files that are not complete yet


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes the place of `path` in one step, unless something is raised while it is written."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        _sync_directory(path.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def replace_text(path: Path, text: str) -> None:
    """Write a text file, complete or not at all."""
    with replacing(path) as file:
        file.write(text.encode())


def _sync_directory(directory: Path) -> None:
    """Make the new name itself durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
