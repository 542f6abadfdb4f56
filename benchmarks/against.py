"""This tree beside another commit: environment steps per second of processor time, turn by turn, in one run.

    python benchmarks/against.py --ref 7e94a0c                          # the default cases, into benchmarks/results/
    python benchmarks/against.py --ref HEAD~1 --cases Esper-v0:64 --turns 10 --json ratio.json

The other commit is checked out below `dist/against`. Each side runs in a process of its own that imports its own
sources; everything else (interpreter, torch, one thread) is shared, so that only our code differs. Both play the same
random legal actions from the same seeds. Processor time is what is compared: it hardly sees a busy neighbour.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from common import RESULTS, provenance, write_json

ROOT = Path(__file__).parent.parent
WORKER = Path(__file__).with_name("against_worker.py")
CASES = (
    "Esper-v0:1", "Esper-v0:16", "Esper-v0:64", "Esper-Deep-v0:16", "Esper-Deep-v0:64",
    "Esper-CNN-v0:16", "Esper-CIFAR10-v0:16", "Esper-Text-v0:16",
)  # fmt: skip
Row = dict[str, Any]


def checkout(ref: str) -> Path:
    """A work tree of the commit, made once."""
    commit = _git("rev-parse", "--short=12", f"{ref}^{{commit}}")
    tree = ROOT / "dist" / "against" / commit
    if not tree.exists():
        _git("worktree", "add", "--detach", str(tree), commit)
    return tree


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


class Side:
    """A process that plays one case with the sources of one tree."""

    def __init__(self, tree: Path, case: str) -> None:
        name, rows = case.split(":")
        sources = os.pathsep.join(str(tree / "packages" / package / "src") for package in ("esper-env", "esper-agent"))
        environment = os.environ | {"PYTHONPATH": sources, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(WORKER), name, rows]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def play(self, steps: int) -> float:
        """Environment steps per second of processor time over some vector steps."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"the worker ended with code {self.process.wait()}")
        return float(answer)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measure(case: str, other: Path, turns: int, steps: int) -> Row:
    """Both sides in turn; the ratio is the median over turns, with the smallest and largest."""
    sides = {"other": Side(other, case), "this": Side(ROOT, case)}
    try:
        for side in sides.values():
            side.play(steps)  # warm up, and fill the slots
        speeds = [{name: side.play(steps) for name, side in sides.items()} for _ in range(turns)]
    finally:
        for side in sides.values():
            side.close()
    ratios = [turn["this"] / turn["other"] for turn in speeds]
    rates = {name: round(median(turn[name] for turn in speeds), 1) for name in sides}
    spread = {"ratio": median(ratios), "least": min(ratios), "most": max(ratios)}
    return {"case": case, **rates, **{name: round(value, 2) for name, value in spread.items()}}


def main() -> None:
    """Measure and write down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ref", required=True, help="the other commit")
    parser.add_argument("--cases", nargs="+", default=CASES, metavar="ID:ROWS")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--steps", type=int, default=30, help="vector steps per turn")
    parser.add_argument("--json", default=RESULTS / "against.json")
    arguments = parser.parse_args()
    other = checkout(arguments.ref)
    rows = []
    for case in arguments.cases:
        rows.append(measure(case, other, arguments.turns, arguments.steps))
        print("{case}: {other} -> {this} steps/s, {ratio}x [{least}, {most}]".format(**rows[-1]), flush=True)
    write_json(arguments.json, {"provenance": provenance(), "ref": other.name, "rows": rows})


if __name__ == "__main__":
    main()
