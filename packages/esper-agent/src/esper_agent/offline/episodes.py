"""Whole episodes cut from the play of a vector environment, in the form that Minari stores."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium.vector import VectorWrapper
from numpy.typing import NDArray

from esper_agent.evaluation.episodes import Env
from esper_agent.offline.storage import minari

INFOS = (
    "action_mask", "action_mask_by_op", "reward_terms", "metric", "committed_metric", "added_parameters",
    "invalid_action",
)  # fmt: skip
Tree = dict[str, Any]


class RecordingEnv(VectorWrapper):
    """Remembers everything that an environment gives while one episode is played in each of its rows.

    The first entry of observations and infos is that of the reset: entry t is what action t was chosen by.

    Args:
        env: of Esper, in autoreset mode "disabled".
    """

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._forget()

    def _forget(self) -> None:
        self.observations: list[NDArray[Any]] = []
        self.infos: list[Tree] = []
        self.steps: list[Tree] = []
        self.lengths = np.zeros(self.num_envs, dtype=np.int64)  # 0 while the episode goes on

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin to remember; a later reset of single rows only keeps them playable."""
        observations, infos = self.env.reset(seed=seed, options=options)
        if options is None:
            self._forget()
            self._keep(observations, infos)
        return observations, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Remember a step."""
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        chosen = {head: np.asarray(actions[head], dtype=np.int64) for head in self.env.unwrapped.heads}  # type: ignore[attr-defined]
        self.steps.append({"actions": chosen, "rewards": rewards, "terminations": terminated, "truncations": truncated})
        self._keep(observations, infos)
        self.lengths[(terminated | truncated) & (self.lengths == 0)] = len(self.steps)
        return observations, rewards, terminated, truncated, infos

    def _keep(self, observations: NDArray[Any], infos: Mapping[str, Any]) -> None:
        self.observations.append(observations)
        self.infos.append({name: infos[name] for name in INFOS})

    def episodes(self, seed: int, count: int) -> Iterator[Any]:
        """The episodes of the first rows as Minari's EpisodeBuffers, of rows with the seeds `seed`, `seed + 1`, ..."""
        buffer = minari("minari.data_collector.episode_buffer").EpisodeBuffer
        observations, infos, steps = np.stack(self.observations), _stack(self.infos), _stack(self.steps)
        for row in range(count):
            end = int(self.lengths[row])
            yield buffer(
                seed=seed + row,
                observations=observations[: end + 1, row],
                infos=_cut(infos, end + 1, row),
                **_cut(steps, end, row),
            )


def _stack(moments: list[Tree]) -> Tree:
    """Equal trees of arrays [rows, ...] as one tree of arrays [moments, rows, ...]."""
    first = moments[0]
    return {
        name: _stack([moment[name] for moment in moments])
        if isinstance(first[name], Mapping)
        else np.stack([moment[name] for moment in moments])
        for name in first
    }


def _cut(tree: Mapping[str, Any], end: int, row: int) -> Tree:
    return {name: _cut(part, end, row) if isinstance(part, Mapping) else part[:end, row] for name, part in tree.items()}


def update_hash(digest: "hashlib._Hash", episode: Any) -> None:
    """Let a hash take in everything that an episode holds."""
    parts = {name: getattr(episode, name) for name in ("observations", "actions", "rewards", "terminations", "infos")}
    for label, part in leaves(parts):
        digest.update(f"{label}{part.dtype.str}{part.shape}".encode())
        digest.update(np.ascontiguousarray(part).data)


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, NDArray[Any]]]:
    """The arrays of a tree with their names, in the order of the names."""
    for name in sorted(tree):
        part, label = tree[name], f"{prefix}/{name}"
        if isinstance(part, Mapping):
            yield from leaves(part, label)
        else:
            yield label, np.asarray(part)
