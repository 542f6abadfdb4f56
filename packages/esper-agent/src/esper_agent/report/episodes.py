"""The course of held-out episodes: what happened in every slot at every step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from esper_env import EsperVectorEnv
from gymnasium.vector import VectorEnv, VectorWrapper
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

_FIELDS = ("stage", "alpha", "contribution", "prospect", "metric", "committed", "added")  # of the state


@dataclass(frozen=True)
class Episode:
    """One episode; the first entry of every array is the moment before its first step."""

    seed: int
    blueprints: tuple[str, ...]  # names
    units: Ints  # [slots]
    live_units: Ints  # [slots]: fewer than `units` where the instance narrowed the block
    stage: Ints  # [moments, slots]
    alpha: Floats
    blueprint: Ints
    blend: Ints
    contribution: Floats
    prospect: Floats
    metric: Floats  # [moments]
    committed: Floats
    added: Floats
    op: Ints  # what was asked for
    slot: Ints  # where
    invalid: Flags
    rolled_back: Flags
    reward_terms: dict[str, Floats]

    @property
    def slots(self) -> int:
        """How many there are."""
        return len(self.units)

    @property
    def steps(self) -> int:
        """How many were taken."""
        return len(self.stage) - 1


class Watched(VectorWrapper):  # generic only since gymnasium 1.4
    """An Esper environment whose first rows are written down while someone plays it once.

    Args:
        env: from `make_test_env`.
        rows: how many rows to write down.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], rows: int) -> None:
        super().__init__(env)
        assert isinstance(env.unwrapped, EsperVectorEnv)
        self.esper, self.rows = env.unwrapped, rows
        self.moments: list[dict[str, Any]] = []
        self.over = np.zeros(env.num_envs, dtype=np.bool_)
        self.lengths = np.zeros(env.num_envs, dtype=np.int64)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin; a row that is reset later has ended early and is not watched any more."""
        observation, infos = self.env.reset(seed=seed, options=options)  # type: ignore[arg-type]
        if not self.moments:
            nothing = np.zeros(self.num_envs, dtype=np.int64)
            self._write({"op": nothing, "slot": nothing}, infos)
            self.live_units = self.esper.live_units
        return observation, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step and write down."""
        observation, reward, terminated, truncated, infos = self.env.step(actions)
        self._write(actions, infos)
        self.lengths += ~self.over
        self.over |= terminated
        return observation, reward, terminated, truncated, infos

    def _write(self, actions: dict[str, Any], infos: dict[str, Any]) -> None:
        state, census = self.esper.state, self.esper.census
        moment = {name: getattr(state, name).cpu().numpy() for name in _FIELDS}
        moment |= {"blueprint": census.blueprint, "blend": census.blend}
        moment |= {"op": actions["op"], "slot": actions["slot"]}
        moment |= {"invalid": infos["invalid_action"], "rolled_back": infos["rolled_back"]}
        moment |= {f"term:{name}": values for name, values in infos["reward_terms"].items()}
        self.moments.append({name: np.array(values[: self.rows]) for name, values in moment.items()})

    def episodes(self, seed: int) -> list[Episode]:
        """What was written down, of rows that began with `seed`, `seed + 1`, ..."""
        return [self._episode(row, seed + row) for row in range(self.rows)]

    def _episode(self, row: int, seed: int) -> Episode:
        course = self.moments[: self.lengths[row] + 1]
        columns = {name: np.stack([moment[name][row] for moment in course]) for name in course[0]}
        terms = {name.removeprefix("term:"): columns.pop(name) for name in list(columns) if name.startswith("term:")}
        task = self.esper.task
        return Episode(
            seed=seed,
            blueprints=tuple(task.blueprints),
            units=np.array([slot.outputs[0] for slot in task.host.slots]),
            live_units=self.live_units[row],
            reward_terms=terms,
            **columns,
        )
