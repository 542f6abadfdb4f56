"""Playing vector environments and comparing what they return: the tools of the conformance checks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import iterate
from numpy.typing import NDArray

Env = gymnasium.Env[Any, Any]
Vector = VectorEnv[Any, Any, Any]


@dataclass(frozen=True)
class Subject:
    """What is checked, and how long it is played."""

    make: Callable[[int, str], Vector]
    make_single: Callable[[], Env] | None
    num_envs: int
    max_steps: int
    seed: int
    tolerance: float

    def begin(self, mode: str) -> tuple[Vector, Any, dict[str, Any]]:
        """A new vector environment after its first reset, with what that gave."""
        env = self.make(self.num_envs, mode)
        env.action_space.seed(self.seed)
        env.single_action_space.seed(self.seed)
        return env, *env.reset(seed=self.seed)


@dataclass(frozen=True)
class Played:
    """One step of a vector environment."""

    actions: Any
    observations: Any
    rewards: NDArray[Any]
    terminated: NDArray[Any]
    truncated: NDArray[Any]
    infos: dict[str, Any]

    @property
    def ended(self) -> NDArray[np.bool_]:
        """The rows whose episode ended in this step."""
        ended: NDArray[np.bool_] = np.logical_or(self.terminated, self.truncated)
        return ended


def sample_actions(env: Vector, infos: dict[str, Any]) -> Any:
    """Random actions, legal by the masks in infos if there are any."""
    mask, single = infos.get("action_mask"), env.single_action_space
    if mask is None:
        return env.action_space.sample()
    if isinstance(mask, dict):
        heads = (key for key in mask if not key.startswith("_"))
        return env.action_space.sample({head: tuple(np.ascontiguousarray(mask[head])) for head in heads})
    if isinstance(single, gymnasium.spaces.MultiDiscrete):
        cuts = np.cumsum(single.nvec)[:-1]
        return np.stack([single.sample(tuple(np.split(row, cuts))) for row in mask])
    return env.action_space.sample(tuple(np.ascontiguousarray(mask)))


def play(env: Vector, infos: dict[str, Any]) -> Played:
    """One step of random legal actions."""
    actions = sample_actions(env, infos)
    return Played(actions, *env.step(actions))


def other_actions(env: Vector, actions: Any, rows: list[int]) -> Any:
    """Random actions that differ from the given ones in each of some rows."""

    def same(candidate: Any, row: int) -> bool:
        return not differences(*(row_of(env.action_space, batch, row) for batch in (candidate, actions)))

    other = env.action_space.sample()
    while any(same(other, row) for row in rows):
        other = env.action_space.sample()
    return other


def play_until_end(subject: Subject, mode: str) -> tuple[Vector, list[Played]]:
    """Play until the first episode ends."""
    env, _, infos = subject.begin(mode)
    steps: list[Played] = []
    while not steps or not steps[-1].ended.any():
        assert len(steps) < subject.max_steps, f"{mode}: no episode ended within max_steps={subject.max_steps}"
        steps.append(play(env, infos))
        infos = steps[-1].infos
    return env, steps


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


def row_of(space: gymnasium.Space[Any], batch: Any, row: int) -> Any:
    """One row of a batch of a batched space."""
    return list(iterate(space, batch))[row]


class Reference:
    """A single environment that resets itself as a row does in a mode.

    Args:
        env: The single environment.
        mode: The autoreset mode; in "disabled" the caller resets ended rows at once, which looks like "same_step".
        seed: Of its first reset.
    """

    def __init__(self, env: Env, mode: str, seed: int) -> None:
        self.env, self.mode = env, mode
        self.observation, _ = env.reset(seed=seed)
        self.over = False

    def step(self, action: Any) -> tuple[float, bool, bool]:
        """Reward, terminated and truncated; the observation that follows is kept."""
        if self.over and self.mode == "next_step":
            self.observation, _ = self.env.reset()
            self.over = False
            return 0.0, False, False
        self.observation, reward, terminated, truncated, _ = self.env.step(action)
        self.over = terminated or truncated
        if self.over and self.mode != "next_step":
            self.observation, _ = self.env.reset()
        return float(reward), terminated, truncated
