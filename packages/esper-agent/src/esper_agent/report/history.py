"""What runs recorded while they trained, brought onto one axis of environment steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esper_agent.runs.directory import STEP_KEY, RunConfig, RunDirectory, RunError

Floats = NDArray[np.float64]
DRAWS, ENDS, BOOTSTRAP_SEED = 2_000, (0.025, 0.975), 0


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


@dataclass(frozen=True)
class Band:
    """A metric over environment steps: the mean over runs, and a 95 % bootstrap interval of it."""

    steps: Floats
    mean: Floats
    low: Floats
    high: Floats


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


def band(histories: Sequence[History], key: str) -> Band | None:
    """A metric over all runs, at the steps of the first run that every run has reached; None where it is missing."""
    curves = [history.curve(key) for history in histories]
    if not all(len(steps) for steps, _ in curves):
        return None
    begin, end = max(steps[0] for steps, _ in curves), min(steps[-1] for steps, _ in curves)
    steps = curves[0][0][(curves[0][0] >= begin) & (curves[0][0] <= end)]
    values = np.stack([np.interp(steps, *curve) for curve in curves])
    return Band(steps, values.mean(axis=0), *mean_interval(values))


def mean_interval(values: Floats) -> Floats:
    """The ends of the 95 % bootstrap interval of the mean over the first axis, [2, ...]."""
    chosen = np.random.default_rng(BOOTSTRAP_SEED).integers(len(values), size=(DRAWS, len(values)))
    ends: Floats = np.quantile(values[chosen].mean(axis=1), ENDS, axis=0)
    return ends
