"""Callbacks in all the forms in which SB3 takes them."""

from collections.abc import Callable, Sequence
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback, ConvertCallback

MaybeCallback = BaseCallback | list[BaseCallback] | Callable[[dict[str, Any], dict[str, Any]], bool] | None


def as_callbacks(callback: MaybeCallback) -> list[BaseCallback]:
    """Any form of callback as a list."""
    if callback is None:
        return []
    if isinstance(callback, BaseCallback):
        return [callback]
    return list(callback) if isinstance(callback, Sequence) else [ConvertCallback(callback)]
