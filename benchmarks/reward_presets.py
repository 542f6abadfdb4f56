"""What each reward preset teaches: one agent per preset and seed, judged alike.

    python benchmarks/reward_presets.py    # into benchmarks/results/reward_presets.{json,md}
    python benchmarks/reward_presets.py --steps 3840 --seeds 0 --out dist/reward_presets

Every agent has the published settings of ours for Esper-v0, which were tuned for `shaped`. All are judged by the same
validation instances: the return of `sparse` (the final metric less rent, discounted), which is what shaping leaves
unchanged, the test accuracy, the parameters added, and the share of steps at which a detector of gaming spoke (the
control that `ransomware` needs is measured at every step).
"""

import argparse
import itertools
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from common import RESULTS, command_line, provenance, write_json
from esper_agent.baselines.agents import AGENTS, OurAgent
from esper_agent.baselines.scripted import NeverGrow
from esper_agent.evaluation.episodes import Flags, Policy
from esper_agent.evaluation.paired import make_test_env, play
from esper_env.mdp.detectors import DETECTORS
from esper_env.mdp.rewards import PRESETS

ENV_ID, ROWS, EPISODES, FIRST_SEED = "Esper-v0", 64, 64, 10_000
Row = dict[str, Any]


class Gaming:
    """Counts at how many steps each detector speaks."""

    def __init__(self) -> None:
        self.steps, self.flags = 0, Counter[str]()

    def begin(self, infos: Mapping[str, Any]) -> None:
        """Nothing has happened yet."""

    def step(self, actions: Any, infos: Mapping[str, Any], playing: Flags, ended: Flags) -> None:
        """Add up the flags of the rows that play."""
        del actions, ended
        self.steps += int(playing.sum())
        for name, flags in infos["detectors"].items():
            self.flags[name] += int((np.asarray(flags, dtype=bool) & playing).sum())

    def shares(self) -> dict[str, float]:
        """By detector, of the steps that were played."""
        return {name: count / self.steps for name, count in self.flags.items()}


def trained(preset: str, steps: int, seed: int) -> Policy:
    """Our agent after training on the rewards of a preset."""
    agent = OurAgent(ENV_ID, ROWS, seed, AGENTS["ours"].settings(ENV_ID), {"reward": preset})
    agent.train(steps)
    return agent


def judged(name: str, seed: int | str, policy: Policy) -> Row:
    """How a policy does where all are judged."""
    gaming = Gaming()
    env = make_test_env(ENV_ID, EPISODES, instances="validation", reward="sparse", control_interval=1)
    means = play(policy, env, FIRST_SEED, watchers=[gaming]).means()
    wanted = ("discounted_return", "test_accuracy", "added_parameters")
    row = {"preset": name, "seed": seed} | {key: round(means[key], 4) for key in wanted} | gaming.shares()
    print(row, flush=True)
    return row


def page(rows: list[Row]) -> str:
    """The rows as a table."""
    head = ["preset", "seed", "return", "test accuracy", "added parameters", *DETECTORS]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for row in rows:
        numbers = [f"{row['discounted_return']:.3f}", f"{row['test_accuracy']:.3f}", f"{row['added_parameters']:.0%}"]
        cells = [row["preset"], row["seed"], *numbers, *(f"{row[name]:.1%}" for name in DETECTORS)]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    explained = (__doc__ or "").split("\n\n")[2].strip()
    return "\n\n".join(["# What each reward preset teaches", f"`{command_line()}`", explained, "\n".join(lines)]) + "\n"


def publish(out: Path, rows: list[Row]) -> None:
    """Write down what there is so far."""
    write_json(out.with_suffix(".json"), {"provenance": provenance(), "rows": rows})
    out.with_suffix(".md").write_text(page(rows), encoding="utf-8")


def main() -> None:
    """Train, judge and write down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=57_600)
    parser.add_argument("--seeds", type=int, nargs="+", default=(0, 1, 2))
    parser.add_argument("--out", type=Path, default=RESULTS / "reward_presets")
    arguments = parser.parse_args()
    rows = [judged("never grow", "-", NeverGrow(make_test_env(ENV_ID, EPISODES)))]
    for preset, seed in itertools.product(PRESETS, arguments.seeds):
        rows.append(judged(preset, seed, trained(preset, arguments.steps, seed)))
        publish(arguments.out, rows)


if __name__ == "__main__":
    main()
