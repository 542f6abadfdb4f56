"""Fetching: download a data set from its canonical place; an interrupted download goes on where it stopped."""

import shutil
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from esper_env.tasks.data.datasets import Dataset
from esper_env.tasks.data.errors import DataError, UnreachableError
from esper_env.tasks.data.importing import install
from esper_env.tasks.data.progress import Progress
from esper_env.tasks.data.recipes import CHUNK
from esper_env.tasks.data.writing import make_directory

TIMEOUT = 60  # seconds without a byte
PARTIAL_CONTENT, RANGE_BEYOND_END = 206, 416


def fetch(dataset: Dataset, done: Callable[[str], None] = lambda _: None) -> None:
    """Download and install a data set.

    Args:
        dataset: The data set.
        done: Called with the name of each file that has been installed.
    """
    if not dataset.urls:
        raise DataError(f"{dataset.name} has no canonical place to fetch it from; run {dataset.command}")
    folder = dataset.directory / "downloads"
    try:
        names = [PurePosixPath(urlsplit(url).path).name for url in dataset.urls]
        downloads = [download(u, folder / name, dataset.room) for u, name in zip(dataset.urls, names, strict=True)]
    except UnreachableError as error:
        raise UnreachableError(f"{error}; get the data another way and run {dataset.by_import}") from error
    try:
        install(dataset, downloads[0], done)
    finally:
        # Whether used or refused, nothing of it is of any more use; a new attempt shall start afresh.
        shutil.rmtree(folder, ignore_errors=True)


def download(url: str, target: Path, room: int) -> Path:
    """Download a file, or the part of it that is not there yet, unless it has more than `room` bytes."""
    if target.exists():
        return target
    partial = target.with_name(f"{target.name}.partial")
    try:
        make_directory(target.parent)
        _continue(url, partial, room)
        return partial.replace(target)
    except urllib.error.HTTPError as error:
        raise UnreachableError(f"cannot fetch {url}: {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise UnreachableError(f"cannot fetch {url}: {error.reason}") from error
    except HTTPException as error:
        raise DataError(f"cannot fetch {url}: {error!r}; run the same command again to go on") from error
    except OSError as error:
        raise DataError(f"fetching {url} to {target} failed: {error.strerror or error}") from error


def _continue(url: str, partial: Path, room: int) -> None:
    there = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={there}-"} if there else {})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != RANGE_BEYOND_END or not there:
            raise
        partial.unlink()
        _continue(url, partial, room)
        return
    with response:
        _receive(response, url, partial, there if response.status == PARTIAL_CONTENT else 0, room)


def _receive(response: HTTPResponse, url: str, partial: Path, there: int, room: int) -> None:
    length = response.headers.get("Content-Length")
    total = None if length is None else there + int(length)
    progress = Progress(partial.stem, there, total)
    with partial.open("ab" if there else "wb") as file:
        while chunk := response.read(CHUNK):
            if progress.done + len(chunk) > room:
                partial.unlink()
                raise DataError(f"{url} is refused: more than {room:,} bytes")
            file.write(chunk)
            progress.advance(len(chunk))
    progress.close()
    if total is not None and progress.done < total:
        raise DataError(f"{url} broke off after {progress.done} of {total} bytes; run the same command again to go on")
