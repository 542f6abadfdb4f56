"""Recipes: how an imported directory, or a file beside others, yields the contents of a data set's file."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from esper_env.tasks.data.errors import DataError

CHUNK = 1 << 20


def find(source: Path, name: str) -> Path | None:
    """A file of that name in the source directory or below, or beside the source if that is a file."""
    found = source.parent.glob(name) if source.is_file() else source.rglob(name)
    return min((path for path in found if path.is_file()), key=lambda path: (len(path.parts), path), default=None)


def plain(source: Path, name: str) -> Iterator[bytes] | None:
    """The file as it is."""
    path = find(source, name)
    return None if path is None else chunks(path)


def gzipped(source: Path, name: str) -> Iterator[bytes] | None:
    """The file, unpacked from NAME.gz."""
    path = find(source, f"{name}.gz")
    return None if path is None else chunks(path, packed=True)


def chunks(path: Path, packed: bool = False) -> Iterator[bytes]:
    """Contents of a file, piece by piece."""
    try:
        with cast(BinaryIO, gzip.open(path)) if packed else path.open("rb") as file:
            while chunk := file.read(CHUNK):
                yield chunk
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is truncated or is not a gzip file ({error})") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
