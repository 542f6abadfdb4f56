"""Data sets: their files, verified whenever they are used, and the directory that holds them."""

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from esper_env.registry import Registry
from esper_env.tasks.data.errors import DataError
from esper_env.tasks.data.recipes import gzipped, plain

# From an import's source and a file's name to the file's contents, or None if the source does not hold them.
Recipe = Callable[[Path, str], Iterator[bytes] | None]


def data_directory() -> Path:
    """`$ESPER_DATA`, or else `esper` in the platform's cache directory."""
    chosen = os.environ.get("ESPER_DATA")
    return Path(chosen).expanduser() if chosen else _cache_directory() / "esper"


def _cache_directory() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


@dataclass(frozen=True)
class DataFile:
    """One file of a data set; without a sha256, its recipe and its check decide which contents will do."""

    name: str
    most_bytes: int  # nothing longer is ever written
    sha256: str | None = None
    check: Callable[[Path], object] | None = None  # raises DataError about a file that has not taken its place yet


@dataclass(frozen=True)
class Dataset:
    """Files that belong together, and where they come from."""

    name: str
    summary: str
    files: tuple[DataFile, ...]
    importable: str  # what PATH may be in `esper-env data import NAME PATH`
    urls: tuple[str, ...] = ()  # a tar archive, or the files; empty if there is no canonical place
    recipes: tuple[Recipe, ...] = (plain, gzipped)

    @property
    def directory(self) -> Path:
        """Where the files are, or will be."""
        return data_directory() / self.name

    @property
    def room(self) -> int:
        """Bytes that an archive or a download may take: twice the files', for packing and for company."""
        return 2 * sum(file.most_bytes for file in self.files)

    @property
    def command(self) -> str:
        """The command that brings the data."""
        return f"`esper-env data fetch {self.name}` or {self.by_import}" if self.urls else self.by_import

    @property
    def by_import(self) -> str:
        """The command that brings the data from a file or directory."""
        return f"`esper-env data import {self.name} PATH` (PATH: {self.importable})"

    def missing(self) -> list[str]:
        """Names of the files that are not there."""
        return [file.name for file in self.files if not (self.directory / file.name).is_file()]

    def damaged(self) -> list[str]:
        """Names of the files that are there and are not what they should be."""
        there = [file for file in self.files if file.sha256 and (self.directory / file.name).is_file()]
        return [file.name for file in there if _sha256(self.directory / file.name) != file.sha256]

    def require(self) -> Path:
        """The directory with all files, each verified; one clear error otherwise."""
        for fault, names in (("missing", self.missing()), ("damaged", self.damaged())):
            if names:
                files = ", ".join(names)
                raise DataError(f"{self.name}: {fault} in {self.directory}: {files}; run {self.command}")
        return self.directory


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error


DATASETS: Registry[Dataset] = Registry("data set")
