"""Writing: a file gets its name only after its contents are complete, verified and on the disk."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from esper_env.tasks.data.errors import DataError


def make_directory(path: Path) -> Path:
    """Make a directory and those above it, unless they are there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot make the directory {path}: {error.strerror}") from error
    return path


def write_verified(contents: Iterable[bytes], target: Path, sha256: str | None) -> None:
    """Write a file under a temporary name, and rename it if its sha256 is the expected one (None for any)."""
    partial = make_directory(target.parent) / f"{target.name}.partial"
    try:
        digest, size = _write(contents, partial)
        if sha256 not in (None, digest):
            found = f"{size} bytes with sha256 {digest}, expected sha256 {sha256}"
            raise DataError(f"{target.name} is refused: {found}; it is damaged, or not the published file")
        partial.replace(target)
    except OSError as error:
        raise DataError(f"cannot write {target}: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)


def _write(contents: Iterable[bytes], path: Path) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        for chunk in contents:
            digest.update(chunk)
            size += file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest(), size
