"""What a step of every rung of the ladder costs beside one of `Esper-v0`, in processor time.

    python benchmarks/rung_throughput.py --steps 10 --json rungs.json   # half a minute
    python benchmarks/rung_throughput.py                                # into benchmarks/results/

All environments play random legal actions from the same seeds and take turns step by step in one process, on one
thread. Only `step` is timed, by the time that the process computed, so that other processes count little. Speed is the
steps of all rows per second of processor time, and the ratio is that of `Esper-v0`'s processor time per step to the
rung's, with a 95 % bootstrap interval over steps. Training and evaluation are the milliseconds of processor time that a
step of all rows spends in these phases.
"""

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from common import RESULTS, provenance, write_json
from env_throughput import legal_actions
from esper_agent.evaluation.episodes import Floats
from esper_agent.evaluation.statistics import Estimate, ratio

IDS = ("Esper-v0", "Esper-Deep-v0", "Esper-Partial-v0", "Esper-Shapes-v0", "Esper-Stream-v0")
UNTIMED = 5  # steps that make what later ones find made


class Arm:
    """One environment under random legal play."""

    def __init__(self, name: str, rows: int) -> None:
        self.env = gymnasium.make_vec(name, num_envs=rows, threads=1)
        self.rng, self.seconds = np.random.default_rng(0), list[float]()
        self.phases: dict[str, list[float]] = {"host training": [], "evaluation": []}
        _, self.infos = self.env.reset(seed=0)
        self.env.unwrapped.measure_phases(self.phase)  # type: ignore[attr-defined]

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase."""
        start = time.process_time()
        yield
        self.phases[name].append(time.process_time() - start)

    def step(self) -> None:
        """One timed step of all rows."""
        actions = legal_actions(self.infos["action_mask_by_op"], self.rng)
        start = time.process_time()
        *_, self.infos = self.env.step(actions)
        self.seconds.append(time.process_time() - start)

    @property
    def timed(self) -> Floats:
        return np.array(self.seconds[UNTIMED:])


@dataclass(frozen=True)
class Row:
    """What is measured of an environment."""

    speed: float
    times: Estimate  # as many steps as of the first take as long as one of it
    training: float  # milliseconds of a step of all rows
    evaluation: float


def measure(rows: int, steps: int) -> dict[str, Row]:
    """Every environment beside the first."""
    arms = {name: Arm(name, rows) for name in IDS}
    for _ in range(UNTIMED + steps):
        for arm in arms.values():
            arm.step()
    base = arms[IDS[0]].timed
    return {name: row(arm, base, rows, steps) for name, arm in arms.items()}


def row(arm: Arm, base: Floats, rows: int, steps: int) -> Row:
    phases = [1e3 * sum(seconds[-steps:]) / steps for seconds in arm.phases.values()]
    return Row(rows / float(arm.timed.mean()), ratio(base, arm.timed), *phases)


def table(result: dict[str, Row], rows: int, steps: int) -> str:
    lines = [
        f"| {name} | {one.speed:.0f} | {one.times} | {one.training:.1f} | {one.evaluation:.1f} |"
        for name, one in result.items()
    ]
    facts = provenance()
    packages = ", ".join(f"{package} {version}" for package, version in facts["versions"].items())
    assert __doc__ is not None
    return "\n".join(
        [
            "# Steps of the rungs beside those of Esper-v0",
            "",
            __doc__.split("\n\n")[2].strip(),
            "",
            "| id | steps per second of processor time | times as many as Esper-v0 | training | evaluation |",
            "|---|---|---|---|---|",
            *lines,
            "",
            f"{rows} rows, {steps} timed steps each. `{facts['command']}`; {packages}.",
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64, help="of each environment")
    parser.add_argument("--steps", type=int, default=60, help="timed steps of each environment")
    parser.add_argument("--json", help="where to write the result; no page then")
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = measure(options.rows, options.steps)
    text = table(result, options.rows, options.steps)
    print(text)
    plain: dict[str, Any] = {name: asdict(one) for name, one in result.items()}
    facts = {"rows": options.rows, "steps": options.steps, "provenance": provenance(), "environments": plain}
    write_json(options.json or RESULTS / "rung_throughput.json", facts)
    if not options.json:
        (RESULTS / "rung_throughput.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
