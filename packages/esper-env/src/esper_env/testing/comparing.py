"""Comparing what environments return: nests of arrays, and the rows of batches."""

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector.utils import iterate
from numpy.typing import NDArray


def leaves(value: Any, path: str) -> Iterator[tuple[str, NDArray[Any]]]:
    """All arrays in a nest of dicts, tuples and object arrays, with where they are."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from leaves(one, f"{path}[{key!r}]")
    elif isinstance(value, tuple | list) or (isinstance(value, np.ndarray) and value.dtype == object):
        for number, one in enumerate(value):
            yield from leaves(one, f"{path}[{number}]")
    elif isinstance(value, np.ndarray | np.generic | int | float):
        yield path, np.asarray(value)


def differences(first: Any, second: Any, tolerance: float = 0.0) -> list[str]:
    """Where two nests of arrays differ, by structure or by more than the tolerance."""
    ours, theirs = dict(leaves(first, "")), dict(leaves(second, ""))
    missing = sorted(set(ours) ^ set(theirs))
    return missing + [
        path for path, array in ours.items() if path in theirs and not _close(array, theirs[path], tolerance)
    ]


def _close(first: NDArray[Any], second: NDArray[Any], tolerance: float) -> bool:
    if first.shape != second.shape:
        return False
    exact = tolerance == 0.0 or not np.issubdtype(first.dtype, np.floating)
    return bool(np.array_equal(first, second) if exact else np.allclose(first, second, rtol=tolerance, atol=tolerance))


def rows_of(space: gymnasium.Space[Any], batch: Any) -> list[Any]:
    """The rows of a batch of a batched space."""
    return list(iterate(space, batch))


def unlike(space: gymnasium.Space[Any], first: Any, second: Any, tolerance: float = 0.0) -> set[int]:
    """The rows in which two batches of a batched space differ."""
    pairs = zip(rows_of(space, first), rows_of(space, second), strict=True)
    return {row for row, pair in enumerate(pairs) if differences(*pair, tolerance)}
