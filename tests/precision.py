"""Comparisons that do not hang on a processor's rounding: in float64, or in units of float32's last place."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def in_float64() -> Iterator[None]:
    """Everything is made in float64; usable as a decorator."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def ulps(difference: Tensor, size: Tensor) -> float:
    """The largest difference in units of the last place of float32 numbers of this size, at least 1."""
    unit = size.detach().abs().clamp(min=1.0) * torch.finfo(torch.float32).eps
    return float((difference.detach().abs() / unit).max())
