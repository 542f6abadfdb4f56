"""Where the time of a run goes: a table of phases over a few updates, then a torch trace of a few more.

The loops name their phases; only while they are measured does a phase do anything.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from esper_env.files import replace_text
from esper_env.mdp.phases import unmeasured
from stable_baselines3.common.callbacks import BaseCallback
from torch.profiler import profile, record_function

from esper_agent.diagnostics.profiler import trace
from esper_agent.runs.timing import Stopwatch

if TYPE_CHECKING:
    from esper_agent.ppo import FactoredRecurrentPPO

SKIPPED, TIMED, WARMUP, TRACED = 1, 3, 1, 2  # updates, in this order
UPDATES = SKIPPED + TIMED + WARMUP + TRACED
ENVIRONMENT, TRAINING, EVALUATION, POLICY, UPDATE = "environment", "host training", "evaluation", "policy", "update"


class ProfileRun(BaseCallback):
    """Measures the first updates of a run.

    Args:
        directory: where phases.json and the trace go.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory
        self.updates = 0  # complete ones
        self._open = ExitStack()
        self._tracer: profile | None = None

    def _init_callback(self) -> None:
        self._agent = cast("FactoredRecurrentPPO", self.model)
        self._watch = Stopwatch(self._agent.device)

    def _on_rollout_start(self) -> None:
        if self.updates == SKIPPED:
            self._begin()
        elif self.updates == SKIPPED + TIMED:
            self._write_phases()
            tracer = trace(self.directory, str(self._agent.device), wait=0, warmup=WARMUP, active=TRACED)
            self._tracer = self._open.enter_context(tracer)
        elif self._tracer is not None:
            self._tracer.step()
        if self.updates == UPDATES:
            self.close()
        self.updates += 1

    def _on_training_end(self) -> None:
        self.close()

    def _on_step(self) -> bool:
        return True

    def close(self) -> None:
        """Write what was measured and measure no more."""
        self._tracer = None
        self._open.close()

    def _begin(self) -> None:
        self._agent.measure_phases(self._phase)
        self._open.callback(self._agent.measure_phases, unmeasured)
        self._start, self._first_step = self._watch.now(), self.model.num_timesteps

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        with record_function(name), self._watch.measure(name):
            yield

    def _write_phases(self) -> None:
        total, steps = self._watch.now() - self._start, self.model.num_timesteps - self._first_step
        record = {"updates": TIMED, "env_steps": steps, "seconds": phases(dict(self._watch.seconds), total)}
        self.directory.mkdir(exist_ok=True)
        replace_text(self.directory / "phases.json", json.dumps(record, indent=2) + "\n")


def phases(measured: dict[str, float], total: float) -> dict[str, float]:
    """Seconds of each phase; they sum to the total.

    Args:
        measured: seconds spent in each phase; the environment's contain training and evaluation.
        total: seconds of everything.
    """
    math = {name: measured.get(name, 0.0) for name in (TRAINING, EVALUATION)}
    rest = total - measured[ENVIRONMENT] - measured[POLICY] - measured[UPDATE]
    return math | {
        "bookkeeping": measured[ENVIRONMENT] - sum(math.values()),
        POLICY: measured[POLICY],
        UPDATE: measured[UPDATE],
        "rest": rest,
    }


def phase_rows(directory: Path) -> list[list[str]]:
    """Name, share and time per environment step of each phase; none without a profile."""
    file = directory / "phases.json"
    if not file.exists():
        return []
    record = json.loads(file.read_text(encoding="utf-8"))
    total = sum(record["seconds"].values())
    return [
        [name, f"{seconds / total:.1%}", f"{1e6 * seconds / record['env_steps']:,.0f} µs"]
        for name, seconds in record["seconds"].items()
    ]


def describe_profile(directory: Path) -> str:
    """What a profile found, as a few lines."""
    rows = phase_rows(directory)
    traces = sorted(directory.glob("*.pt.trace.json.gz"))
    if not rows or not traces:
        return f"the profile is incomplete: it takes {UPDATES} updates, and the run ended before"
    table = [f"{name:<14}{share:>7}{time:>12} per step" for name, share, time in rows]
    return "\n".join([*table, f"trace: {traces[-1]}"])
