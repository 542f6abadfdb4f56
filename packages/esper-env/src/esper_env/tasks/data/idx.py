"""The IDX format of the MNIST family: a big-endian header, then unsigned bytes; plain or gzipped."""

from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from esper_env.tasks.data.errors import DataError
from esper_env.tasks.data.recipes import chunks

GZIP_MAGIC = b"\x1f\x8b"
UNSIGNED_BYTE = 8  # the third byte of the header names the type of the values, the fourth the number of axes
WORD = 4


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The array in an IDX file."""
    raw = b"".join(chunks(path))
    if raw.startswith(GZIP_MAGIC):
        raw = b"".join(chunks(path, packed=True))
    if len(raw) < WORD or raw[:3] != bytes([0, 0, UNSIGNED_BYTE]):
        raise DataError(f"{path} begins with {raw[:WORD].hex()}; allowed: IDX files of unsigned bytes, 000008..")
    header = WORD * (1 + raw[3])
    shape = tuple(np.frombuffer(raw[WORD:header], dtype=">u4").tolist()) if len(raw) >= header else (0,)
    if len(raw) < header or len(raw) != header + prod(shape):
        raise DataError(f"{path} has {len(raw)} bytes; its header announces {header} + {prod(shape)}")
    return np.frombuffer(raw, dtype=np.uint8, offset=header).reshape(shape)
