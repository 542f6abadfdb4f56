"""Nested dictionaries of tensors, compared before one replaces another: copying would broadcast in silence."""

from typing import Any

from torch import Tensor


def require_alike(saved: Any, own: Any, where: str) -> None:
    """Refuse what has other keys, types, shapes or dtypes; plain values themselves may differ.

    Args:
        saved: what comes from elsewhere.
        own: what it shall replace.
        where: what both are called.

    Raises:
        ValueError: naming the first difference.
    """
    found, expected = _kind(saved), _kind(own)
    if found != expected:
        raise ValueError(f"the saved {where} is {found}; allowed: {expected}")
    if isinstance(own, dict):
        for key, value in own.items():
            require_alike(saved[key], value, f"{where}.{key}")


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)} and {value.dtype}"
    if isinstance(value, dict):
        return f"a dictionary of {', '.join(sorted(map(str, value)))}"
    return f"of type {type(value).__name__}"
