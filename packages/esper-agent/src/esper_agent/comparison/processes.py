"""Runs in processes of their own, some at a time; finished ones are never repeated."""

import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from esper_agent.comparison.run import Plan
from esper_agent.runs.directory import RunError

POLL_SECONDS = 0.1
# One thread in every library, so that no agent gains by having more.
SINGLE_THREADED = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def run_plans(plans: Mapping[Path, Plan], jobs: int, report: Callable[[str], None] = print) -> None:
    """Carry out all plans whose results are not there yet.

    Args:
        plans: each with the file of its result.
        jobs: how many runs at a time.
        report: takes a line about each run.

    Raises:
        RunError: when a file holds the result of another plan, or a run failed; the others are carried out first.
    """
    if jobs < 1:
        raise RunError(f"jobs is {jobs}; allowed: integers from 1 on")
    missing = {file: plan for file, plan in plans.items() if not is_finished(plan, file)}
    report(f"{len(plans)} runs, {len(plans) - len(missing)} of them finished before")
    failed = _run_all(missing, jobs, report)
    if failed:
        raise RunError(f"{len(failed)} of {len(plans)} runs failed: {'; '.join(failed)}")


def is_finished(plan: Plan, file: Path) -> bool:
    """Whether the result of a plan is there.

    Raises:
        RunError: when the result of another plan is in its place.
    """
    if not file.exists():
        return False
    stored = json.loads(file.read_text(encoding="utf-8"))["plan"]
    for name, value in asdict(plan).items():
        if stored.get(name) != value:
            raise RunError(f"{file} has {name} {stored.get(name)}, not {value}; choose another directory, or delete it")
    return True


def _run_all(plans: Mapping[Path, Plan], jobs: int, report: Callable[[str], None]) -> list[str]:
    """Keep `jobs` processes busy; returns what failed."""
    waiting, failed = deque(plans.items()), []
    running: list[Process] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(Process(*waiting.popleft()))
            time.sleep(POLL_SECONDS)
            for process in [process for process in running if process.ended()]:
                running.remove(process)
                outcome = process.outcome()
                failed += [] if process.succeeded() else [outcome]
                report(f"[{len(plans) - len(waiting) - len(running)}/{len(plans)}] {outcome}")
    finally:
        for process in running:
            process.kill()
    return failed


class Process:
    """A run; what it prints goes to a file beside its result, which stays only if the run fails.

    Args:
        result: where the result goes.
        plan: what to run.
    """

    def __init__(self, result: Path, plan: Plan) -> None:
        self.plan, self.result, self.log = plan, result, result.with_suffix(".log")
        result.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, **SINGLE_THREADED}
        with self.log.open("w", encoding="utf-8") as output:
            self.popen = subprocess.Popen(self.command(), env=environment, stdout=output, stderr=output)

    def command(self) -> list[str]:
        """What it executes."""
        plan = json.dumps(asdict(self.plan))
        return [sys.executable, "-m", "esper_agent.comparison.run", plan, str(self.result)]

    def ended(self) -> bool:
        """Whether it is over."""
        return self.popen.poll() is not None

    def succeeded(self) -> bool:
        """Whether it ended well."""
        return self.popen.returncode == 0

    def kill(self) -> None:
        """End it at once."""
        self.popen.kill()
        self.popen.wait()
        self.log.unlink()

    def outcome(self) -> str:
        """A line about how it ended."""
        name = self.result.stem
        if not self.succeeded():
            said = self.log.read_text(encoding="utf-8").splitlines() or [f"exit code {self.popen.returncode}"]
            return f"{name}: {said[-1]} (see {self.log})"
        self.log.unlink()
        last = json.loads(self.result.read_text(encoding="utf-8"))["curve"][-1]
        speed = f", {last['step'] / last['seconds']:.0f} steps per second" if last["seconds"] else ""
        return f"{name}: return {last['discounted_return']:.3f}, test accuracy {last['test_accuracy']:.3f}{speed}"
