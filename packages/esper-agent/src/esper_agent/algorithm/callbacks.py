"""Callbacks in all the forms in which SB3 takes them, and what they read: one dict of infos per environment."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback, ConvertCallback
from torch import Tensor

from esper_agent.algorithm.adapters import INFOS_BY_ENV

MaybeCallback = BaseCallback | list[BaseCallback] | Callable[[dict[str, Any], dict[str, Any]], bool] | None


def as_callbacks(callback: MaybeCallback) -> list[BaseCallback]:
    """Any form of callback as a list."""
    if callback is None:
        return []
    if isinstance(callback, BaseCallback):
        return [callback]
    return list(callback) if isinstance(callback, Sequence) else [ConvertCallback(callback)]


class InfosByEnv(Sequence[dict[str, Any]]):
    """The infos of a step as SB3's callbacks read them, made when they are first looked at.

    Where an episode ended they are those of its last step, with `terminal_observation`, `TimeLimit.truncated` and
    `episode` (return `r` and length `l`), as SB3's Monitor gives them.

    Args:
        infos: of the vector environment.
        terminated: which episodes ended, [n].
        truncated: which were cut, [n].
        episodes: return and length of those that ended or were cut, by row.
    """

    def __init__(
        self,
        infos: Mapping[str, Any],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        episodes: Mapping[int, tuple[float, int]],
    ) -> None:
        self.infos, self.terminated, self.truncated, self.episodes = infos, terminated, truncated, episodes

    def __len__(self) -> int:
        return len(self.terminated)

    @overload
    def __getitem__(self, row: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, row: slice) -> list[dict[str, Any]]: ...

    def __getitem__(self, row: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        return self._rows[row]

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        return [self._row(row) for row in range(len(self))]

    def _row(self, row: int) -> dict[str, Any]:
        by_env = self.infos.get(INFOS_BY_ENV)
        told = _of_row(self.infos, row) if by_env is None else dict(by_env[row])
        if row not in self.episodes:
            return told
        total, length = self.episodes[row]
        told = {"episode": {"r": total, "l": length}} | told
        if "final_info" in self.infos:
            told |= _of_row(self.infos["final_info"], row)
        if "final_obs" in self.infos:
            told["terminal_observation"] = _entry(self.infos["final_obs"], row)
        return told | {"TimeLimit.truncated": bool(self.truncated[row] and not self.terminated[row])}


def _of_row(infos: Mapping[str, Any], row: int) -> dict[str, Any]:
    """One row of vector infos, by Gymnasium's convention: `_name` says in which rows `name` is present."""
    names = (name for name in infos if not name.startswith("_") and name not in ("final_obs", "final_info"))
    return {name: _entry(infos[name], row) for name in names if f"_{name}" not in infos or infos[f"_{name}"][row]}


def _entry(values: Any, row: int) -> Any:
    if isinstance(values, Mapping):
        return _of_row(values, row)
    if not isinstance(values, Tensor | np.ndarray | list | tuple):
        return values
    value = values[row]
    if isinstance(value, Tensor):
        value = value.cpu().numpy()
    return value.item() if isinstance(value, np.ndarray | np.generic) and not value.shape else value
