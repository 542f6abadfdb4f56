"""Writing: a file gets its name only after its contents are complete, accepted and on the disk."""

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from esper_env.tasks.data.errors import DataError


def write_atomically(contents: Iterable[bytes], target: Path, accept: Callable[[], None] = lambda: None) -> None:
    """Write a file under a temporary name, and rename it once all is on the disk and `accept` raises nothing."""
    partial = target.with_name(f"{target.name}.partial")
    try:
        with partial.open("wb") as file:
            file.writelines(contents)
            file.flush()
            os.fsync(file.fileno())
        accept()
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def make_directory(path: Path) -> Path:
    """Make a directory and those above it, unless they are there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot make the directory {path}: {error.strerror}") from error
    return path


def write_verified(contents: Iterable[bytes], target: Path, sha256: str | None) -> None:
    """Write a file if its sha256 is the expected one (None for any)."""
    digest, size = hashlib.sha256(), 0

    def counted() -> Iterable[bytes]:
        nonlocal size
        for chunk in contents:
            digest.update(chunk)
            size += len(chunk)
            yield chunk

    def accept() -> None:
        if sha256 not in (None, digest.hexdigest()):
            found = f"{size} bytes with sha256 {digest.hexdigest()}, expected sha256 {sha256}"
            raise DataError(f"{target.name} is refused: {found}; it is damaged, or not the published file")

    make_directory(target.parent)
    try:
        write_atomically(counted(), target, accept)
    except OSError as error:
        raise DataError(f"cannot write {target}: {error.strerror}") from error
