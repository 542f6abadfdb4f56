"""Playing vector environments with random legal actions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from esper_env.testing.comparing import unlike

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

    def play_until_end(self, mode: str) -> tuple[Vector, list["Played"]]:
        """A new vector environment, played until the first episode ends."""
        env, _, infos = self.begin(mode)
        steps = [play(env, infos)]
        while not steps[-1].ended.any():
            assert len(steps) < self.max_steps, f"{mode}: no episode ended within max_steps={self.max_steps}"
            steps.append(play(env, steps[-1].infos))
        return env, steps


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
    other = env.action_space.sample()
    while not set(rows) <= unlike(env.action_space, other, actions):
        other = env.action_space.sample()
    return other
