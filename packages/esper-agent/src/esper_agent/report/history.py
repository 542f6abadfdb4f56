"""What runs recorded while they trained, brought onto one axis of environment steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from esper_agent.evaluation.episodes import Floats
from esper_agent.runs.directory import RunConfig, RunDirectory, RunError
from esper_agent.runs.metrics import STEP_KEY


@dataclass(frozen=True)
class History:
    """The settings of a run and its metrics, one row per update."""

    run: RunDirectory
    config: RunConfig
    rows: list[dict[str, Any]]

    @property
    def name(self) -> str:
        """What tells it from the other runs."""
        return f"{self.run.path.resolve().name} (seed {self.config.seed})"

    def curve(self, key: str) -> tuple[Floats, Floats]:
        """Environment steps and values of a metric, where it was recorded."""
        points = [(row[STEP_KEY], row[key]) for row in self.rows if row.get(key) is not None]
        table = np.array(points, dtype=np.float64).reshape(-1, 2)
        return table[:, 0], table[:, 1]

    def keys(self, prefix: str) -> list[str]:
        """The metrics whose name begins so, in the order in which they were recorded."""
        return list(dict.fromkeys(key for row in self.rows for key in row if key.startswith(prefix)))


def read_histories(runs: Sequence[RunDirectory]) -> list[History]:
    """The histories of runs in the same environment.

    Raises:
        RunError: when a run is not there, has recorded nothing, or is about another environment.
    """
    histories = [History(run, run.read_config(), run.metrics()) for run in runs]
    for history in histories:
        if not history.rows:
            raise RunError(f"{history.run.path} holds no metrics yet; its first update writes them")
        if history.config.env_id != histories[0].config.env_id:
            raise RunError(
                f"{history.run.path} trained in {history.config.env_id}, {histories[0].run.path} in "
                f"{histories[0].config.env_id}; a report is about one environment"
            )
    return histories


def curves(histories: Sequence[History], key: str) -> tuple[Floats, Floats] | None:
    """A metric of all runs at the steps of the first run that every run has reached; None where it is missing.

    Returns:
        Steps [n] and values [runs, n].
    """
    recorded = [history.curve(key) for history in histories]
    if not all(len(steps) for steps, _ in recorded):
        return None
    begin, end = max(steps[0] for steps, _ in recorded), min(steps[-1] for steps, _ in recorded)
    steps = recorded[0][0][(recorded[0][0] >= begin) & (recorded[0][0] <= end)]
    return steps, np.stack([np.interp(steps, *curve) for curve in recorded])
