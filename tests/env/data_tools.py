"""Small crafted data sets, a data directory of their own, and a server on this machine that can misbehave."""

import gzip
import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from esper_env.tasks.data import DataFile, Dataset


def sha256(contents: bytes) -> str:
    return hashlib.sha256(contents).hexdigest()


def noise(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def crafted(contents: dict[str, bytes], **settings: Any) -> Dataset:
    """A data set that consists of these files."""
    files = tuple(DataFile(name, len(data), sha256(data)) for name, data in contents.items())
    return Dataset(**{"name": "crafted", "summary": "", "files": files, "importable": "two files"} | settings)


def idx(array: np.ndarray) -> bytes:
    """An array of bytes as an IDX file."""
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes() + array.tobytes()


def installed(dataset: Dataset) -> dict[str, bytes]:
    """Everything in the directory of a data set, by path."""
    files = [path for path in dataset.directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(dataset.directory)): path.read_bytes() for path in files}


def packed(contents: dict[str, bytes], folder: Path) -> Path:
    """The files, gzipped, in a new directory."""
    folder.mkdir(parents=True)
    for name, data in contents.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(data))
    return folder


@dataclass
class Server:
    """What a server offers, how it behaves, and what it was asked."""

    files: dict[str, bytes]
    address: str = ""
    ranges: bool = True
    break_after: int | None = None  # bytes of a body after which the connection ends
    asked: list[tuple[str, str | None]] = field(default_factory=list)  # path and range

    def urls(self) -> tuple[str, ...]:
        return tuple(f"{self.address}/{name}" for name in self.files)


def _handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name, wanted = self.path.rsplit("/", 1)[-1], self.headers["Range"]
            server.asked.append((name, wanted))
            if name not in server.files:
                return self.send_error(404)
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and server.ranges else 0
            body = server.files[name][start:]
            if start and not body:
                return self.send_error(416)
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: server.break_after])
            return None

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


@contextmanager
def serving(files: dict[str, bytes], **behaviour: Any) -> Iterator[Server]:
    """A server on this machine for these files."""
    server = Server(files, **behaviour)
    http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(server))
    server.address = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
