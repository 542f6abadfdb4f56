"""Runs in other processes, some at a time: a killed one is repeated, a finished one never."""

import json
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from pathlib import Path

import torch
from esper_env.files import replace_text
from joblib.externals.loky import ProcessPoolExecutor

from esper_agent.comparison.run import Plan, carry_out
from esper_agent.runs.directory import RunError

ATTEMPTS = 3  # at a run whose process is killed
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


def finish(plan: Plan, file: Path) -> tuple[bool, str]:
    """Carry out a plan on one thread and write its result, or what went wrong to a log beside it.

    Returns:
        Whether it succeeded, and a line about it.
    """
    torch.set_num_threads(1)
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_text(_log(file), "killed\n")  # unless one of the lines below is reached
    try:
        result = carry_out(plan)
    except Exception as error:
        replace_text(_log(file), traceback.format_exc())
        return False, f"{file.stem}: {type(error).__name__}: {error} (see {_log(file)})"
    replace_text(file, json.dumps(result) + "\n")
    _log(file).unlink()
    last = result["curve"][-1]
    speed = f", {last['step'] / last['seconds']:.0f} steps per second" if last["seconds"] else ""
    return (
        True,
        f"{file.stem}: return {last['discounted_return']:.3f}, test accuracy {last['test_accuracy']:.3f}{speed}",
    )


def _log(file: Path) -> Path:
    return file.with_suffix(".log")


def _run_all(plans: Mapping[Path, Plan], jobs: int, report: Callable[[str], None]) -> list[str]:
    """Carry out all, those whose process was killed last and one at a time; returns what failed."""
    left, failed, kills = dict(plans), list[str](), Counter[Path]()
    while left:
        untouched = {file: plan for file, plan in left.items() if not kills[file]}
        batch = untouched or dict(left)
        for file, succeeded, line in _run_once(batch, jobs if untouched else 1):
            del left[file]
            failed += [] if succeeded else [line]
            report(f"[{len(plans) - len(left)}/{len(plans)}] {line}")
        broken = left.keys() & batch.keys()
        kills.update([file for file in broken if _log(file).exists()] or broken)
        for file in [file for file in left if kills[file] == ATTEMPTS]:
            del left[file]
            failed.append(f"{file.stem}: its process was killed {ATTEMPTS} times")
    return failed


def _run_once(plans: Mapping[Path, Plan], jobs: int) -> Iterator[tuple[Path, bool, str]]:
    """Outcomes as they come; none of the runs that a killed process took with it."""
    for file in plans:
        _log(file).unlink(missing_ok=True)
    executor = ProcessPoolExecutor(jobs, env=SINGLE_THREADED)
    try:
        futures = {executor.submit(finish, plan, file): file for file, plan in plans.items()}
        for future in as_completed(futures):
            if not isinstance(future.exception(), BrokenProcessPool):
                yield futures[future], *future.result()
    finally:
        executor.shutdown(kill_workers=True)
