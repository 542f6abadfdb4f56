"""Runs in other processes, some at a time: a killed one is repeated, a finished one never."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from pathlib import Path

from esper_env.files import replace_text
from joblib.externals.loky import ProcessPoolExecutor

from esper_agent.comparison.cluster import run_on_cluster
from esper_agent.comparison.outcome import attempt, keep, log_file
from esper_agent.comparison.run import Plan
from esper_agent.runs.directory import RunError

ATTEMPTS = 3  # at a run whose process is killed
# One thread in every library, so that no agent gains by having more.
SINGLE_THREADED = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def run_plans(
    plans: Mapping[Path, Plan], jobs: int, report: Callable[[str], None] = print, cluster: str | None = None
) -> None:
    """Carry out all plans whose results are not there yet.

    Args:
        plans: each with the file of its result.
        jobs: how many runs at a time.
        report: takes a line about each run.
        cluster: address of a Dask scheduler whose workers carry them out, instead of processes here.

    Raises:
        RunError: when a file holds the result of another plan, or a run failed; the others are carried out first.
    """
    if jobs < 1:
        raise RunError(f"jobs is {jobs}; allowed: integers from 1 on")
    missing = {file: plan for file, plan in plans.items() if not is_finished(plan, file)}
    report(f"{len(plans)} runs, {len(plans) - len(missing)} of them finished before")
    failed = _run_on_cluster(missing, cluster, report) if cluster else _run_all(missing, jobs, report)
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
    """Carry out a plan and keep its outcome; says whether it succeeded, and a line about it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_text(log_file(file), "killed\n")  # unless the line below is reached
    return keep(file, attempt(plan))


def _run_on_cluster(plans: Mapping[Path, Plan], address: str, report: Callable[[str], None]) -> list[str]:
    failed = []
    for number, (_, succeeded, line) in enumerate(run_on_cluster(plans, address), 1):
        failed += [] if succeeded else [line]
        report(f"[{number}/{len(plans)}] {line}")
    return failed


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
        kills.update([file for file in broken if log_file(file).exists()] or broken)
        for file in [file for file in left if kills[file] == ATTEMPTS]:
            del left[file]
            failed.append(f"{file.stem}: its process was killed {ATTEMPTS} times")
    return failed


def _run_once(plans: Mapping[Path, Plan], jobs: int) -> Iterator[tuple[Path, bool, str]]:
    """Outcomes as they come; none of the runs that a killed process took with it."""
    for file in plans:
        log_file(file).unlink(missing_ok=True)
    executor = ProcessPoolExecutor(jobs, env=SINGLE_THREADED)
    try:
        futures = {executor.submit(finish, plan, file): file for file, plan in plans.items()}
        for future in as_completed(futures):
            if not isinstance(future.exception(), BrokenProcessPool):
                yield futures[future], *future.result()
    finally:
        executor.shutdown(kill_workers=True)
