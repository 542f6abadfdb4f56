"""The recorder of episodes: what happened in every slot at every step."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from esper_env import EsperVectorEnv

from esper_agent.evaluation.episodes import Env, Flags, Floats, Ints

_STATE = ("stage", "alpha", "contribution", "prospect", "metric", "committed", "added")


@dataclass(frozen=True)
class Course:
    """What happened in one episode; the first entry of every array is the moment before its first step."""

    seed: int
    blueprints: tuple[str, ...]  # names
    units: Ints  # [slots]
    live_units: Ints  # [slots]: fewer than `units` where the block is lesioned
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


class Recorder:
    """Writes down the first rows of an Esper environment while someone plays it once.

    Args:
        env: from `make_test_env`.
        rows: how many rows to write down.
    """

    def __init__(self, env: Env, rows: int) -> None:
        assert isinstance(env.unwrapped, EsperVectorEnv)
        self.esper, self.rows = env.unwrapped, rows
        self.moments: list[dict[str, Any]] = []
        self.lengths = np.zeros(env.num_envs, dtype=np.int64)

    def begin(self, infos: Mapping[str, Any]) -> None:
        """Write down the moment before the first step."""
        nothing = np.zeros(len(self.lengths), dtype=np.int64)
        self._write({"op": nothing, "slot": nothing}, infos)
        self.live_units = self.esper.live_units

    def step(self, actions: Any, infos: Mapping[str, Any], playing: Flags, ended: Flags) -> None:
        """Write down what was done and what came of it."""
        del ended
        self._write(actions, infos)
        self.lengths += playing

    def _write(self, actions: Mapping[str, Any], infos: Mapping[str, Any]) -> None:
        state, census = self.esper.state, self.esper.census
        moment = {name: getattr(state, name).cpu().numpy() for name in _STATE}
        moment |= {"blueprint": census.blueprint, "blend": census.blend}
        moment |= {"op": actions["op"], "slot": actions["slot"]}
        moment |= {"invalid": infos["invalid_action"], "rolled_back": infos["rolled_back"]}
        moment |= {f"term:{name}": values for name, values in infos["reward_terms"].items()}
        self.moments.append({name: np.array(values[: self.rows]) for name, values in moment.items()})

    def courses(self, seed: int) -> list[Course]:
        """What was written down, of rows that began with `seed`, `seed + 1`, ..."""
        return [self._course(row, seed + row) for row in range(self.rows)]

    def _course(self, row: int, seed: int) -> Course:
        moments = self.moments[: self.lengths[row] + 1]
        columns = {name: np.stack([moment[name][row] for moment in moments]) for name in moments[0]}
        terms = {name.removeprefix("term:"): columns.pop(name) for name in list(columns) if name.startswith("term:")}
        task = self.esper.task
        return Course(
            seed=seed,
            blueprints=tuple(task.blueprints),
            units=np.array([slot.outputs[0] for slot in task.host.slots]),
            live_units=self.live_units[row],
            reward_terms=terms,
            **columns,
        )
