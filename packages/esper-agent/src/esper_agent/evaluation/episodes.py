"""The episode loop: anything with SB3's `predict` plays whole episodes, with its recurrent state and its masks kept."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from esper_agent.algorithm.environments import resolve_gamma

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Env = VectorEnv[Any, Any, Any]


class Policy(Protocol):
    """Anything with SB3's `predict`; where it takes `action_masks`, it is given the environment's infos."""

    @property
    def predict(self) -> Any:
        """From observation, state, episode_start and deterministic to actions and the new state."""


class Watcher(Protocol):
    """Something that looks on while episodes are played."""

    def begin(self, infos: Mapping[str, Any]) -> None:
        """All rows have just been reset."""

    def step(self, actions: Any, infos: Mapping[str, Any], playing: Flags, ended: Flags) -> None:
        """A step was taken: which rows it counts for, and which episodes it ended; no row is reset yet."""


@dataclass(frozen=True)
class Episodes:
    """Whole episodes, row by row and in each row in their order, [episodes] each."""

    episode_return: Floats  # the plain sum of the rewards, as SB3 logs it
    discounted_return: Floats  # with the environment's gamma, or the agent's default where it has none
    length: Ints
    infos: dict[str, NDArray[Any]]  # the numbers of the last info


def play_episodes(
    policy: Policy,
    env: Env,
    episodes: int | None = None,
    seed: int | Sequence[int] | None = None,
    deterministic: bool = True,
    watchers: Sequence[Watcher] = (),
) -> Episodes:
    """Play whole episodes.

    Every row contributes its share of the episodes, decided beforehand, so that short episodes are not
    over-represented.

    Args:
        policy: who plays.
        env: where, in any autoreset mode; it is reset.
        episodes: how many; one in every row unless given.
        seed: of the environment, one per row or row i has the seed `seed + i`; also of the draws.
        deterministic: take the most likely actions instead of drawing them.
        watchers: look on; they need an environment that does not reset rows by itself.
    """
    with own_draws(policy, seed[0] if isinstance(seed, Sequence) else seed):
        return _Play(policy, env, deterministic, watchers).run(env.num_envs if episodes is None else episodes, seed)


@contextmanager
def own_draws(policy: Policy, seed: int | None) -> Iterator[None]:
    """Draw actions from a fresh seed, and put the generators back: evaluation leaves training alone."""
    generators: list[torch.Generator | None] = [torch.default_generator, getattr(policy, "action_generator", None)]
    states = [(generator, generator.get_state()) for generator in generators if generator is not None]
    for generator, _ in states:
        generator.seed() if seed is None else generator.manual_seed(seed)
    try:
        yield
    finally:
        for generator, state in states:
            generator.set_state(state)


class _Play:
    """The state of the loop."""

    def __init__(self, policy: Policy, env: Env, deterministic: bool, watchers: Sequence[Watcher]) -> None:
        self.policy, self.env, self.deterministic, self.watchers = policy, env, deterministic, watchers
        self.masked = "action_masks" in inspect.signature(policy.predict).parameters
        self.mode, self.gamma = env.metadata.get("autoreset_mode"), resolve_gamma(env, None)
        self.total, self.discounted = np.zeros(env.num_envs), np.zeros(env.num_envs)
        self.length = np.zeros(env.num_envs, dtype=np.int64)
        self.ended: list[tuple[int, float, float, int, dict[str, Any]]] = []

    def run(self, episodes: int, seed: int | Sequence[int] | None) -> Episodes:
        rows = self.env.num_envs
        left = np.array([(episodes + row) // rows for row in range(rows)])
        observation, infos = self.env.reset(seed=seed)  # type: ignore[arg-type]  # Gymnasium's hint is a list
        for watcher in self.watchers:
            watcher.begin(infos)
        state, start, resetting = None, np.ones(rows, dtype=np.bool_), np.zeros(rows, dtype=np.bool_)
        while left.any():
            actions, state = self._predict(observation, state, start, infos)
            observation, reward, terminated, truncated, infos = self.env.step(actions)
            playing, done = (left > 0) & ~resetting, _array(terminated) | _array(truncated)
            self._count(_array(reward), playing)
            for watcher in self.watchers:
                watcher.step(actions, infos, playing, done & playing)
            self._conclude(done & playing, infos)
            left -= done & playing
            if self.mode == AutoresetMode.DISABLED and done.any() and left.any():
                observation, infos = self.env.reset(options={"reset_mask": done})
            start, resetting = (resetting, done) if self.mode == AutoresetMode.NEXT_STEP else (done, resetting)
        return self._episodes()

    def _predict(self, observation: Any, state: Any, start: Flags, infos: dict[str, Any]) -> tuple[Any, Any]:
        masks = {"action_masks": infos} if self.masked and "action_mask" in infos else {}
        actions, state = self.policy.predict(observation, state, start, self.deterministic, **masks)
        return actions, state

    def _count(self, reward: Floats, playing: Flags) -> None:
        self.total += np.where(playing, reward, 0.0)
        self.discounted += np.where(playing, reward * self.gamma**self.length, 0.0)
        self.length += playing

    def _conclude(self, ended: Flags, infos: dict[str, Any]) -> None:
        last = numbers(infos.get("final_info", infos), len(ended)) if ended.any() else {}
        for row in np.flatnonzero(ended):
            told = {name: column[row] for name, column in last.items()}
            self.ended.append((int(row), self.total[row], self.discounted[row], self.length[row], told))
        for tally in (self.total, self.discounted, self.length):
            tally[ended] = 0

    def _episodes(self) -> Episodes:
        _, total, discounted, length, infos = zip(*sorted(self.ended, key=lambda one: one[0]), strict=True)
        columns = {name: np.array([told[name] for told in infos]) for name in infos[0]}
        return Episodes(np.array(total), np.array(discounted), np.array(length), columns)


def numbers(infos: Mapping[str, Any], rows: int) -> dict[str, NDArray[Any]]:
    """The infos with one number per row, without the flags of their presence."""
    named = {key: value for key, value in infos.items() if not key.startswith(("_", "final_"))}
    arrays = {key: _array(value) for key, value in named.items() if not isinstance(value, Mapping)}
    return {key: value for key, value in arrays.items() if value.shape == (rows,) and value.dtype != object}


def _array(values: Any) -> NDArray[Any]:
    return values.cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
