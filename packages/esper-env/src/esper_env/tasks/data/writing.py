"""Writing: a file gets its name only after its contents are complete, verified and on the disk."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from esper_env.files import replacing
from esper_env.tasks.data.datasets import DataFile
from esper_env.tasks.data.errors import DataError


def make_directory(path: Path) -> Path:
    """Make a directory and those above it, unless they are there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot make the directory {path}: {error.strerror}") from error
    return path


def write_verified(contents: Iterable[bytes], target: Path, declared: DataFile) -> None:
    """Write a file; it replaces what is there if it is what its declaration asks for."""
    make_directory(target.parent)
    digest = hashlib.sha256()
    try:
        with replacing(target) as file:
            for chunk in contents:
                if file.tell() + len(chunk) > declared.most_bytes:
                    raise DataError(f"{target.name} is refused: more than {declared.most_bytes:,} bytes")
                digest.update(chunk)
                file.write(chunk)
            if declared.sha256 not in (None, digest.hexdigest()):
                found = f"{file.tell()} bytes with sha256 {digest.hexdigest()}, expected sha256 {declared.sha256}"
                raise DataError(f"{target.name} is refused: {found}; it is damaged, or not the published file")
            file.flush()
            if declared.check is not None:
                declared.check(Path(file.name))
    except OSError as error:
        raise DataError(f"cannot write {target}: {error.strerror}") from error
