"""Runs on a Dask cluster: the scheduler repeats those whose worker is killed; each result is written as it comes."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from esper_agent.comparison.outcome import attempt, keep
from esper_agent.comparison.run import Plan
from esper_agent.runs.directory import RunError

PATIENCE = 60  # seconds to wait for the scheduler


def run_on_cluster(plans: Mapping[Path, Plan], address: str) -> Iterator[tuple[Path, bool, str]]:
    """Carry out plans on the workers of a cluster; gives outcomes as they come.

    Workers need the same packages, and no file system in common with this process. One with several threads would carry
    out several runs in one process, whose CPU times cannot be told apart: start workers with one.

    Args:
        plans: each with the file of its result.
        address: of the scheduler, such as tcp://127.0.0.1:8786.

    Raises:
        RunError: when Dask is missing or there is no scheduler.
    """
    distributed = load_distributed()
    try:
        client = distributed.Client(address, timeout=PATIENCE)
    except (OSError, ValueError, ImportError) as error:
        raise RunError(f"cluster is {address!r}; allowed: the address of a running Dask scheduler ({error})") from error
    with client:
        files = {client.submit(attempt, plan, pure=False): file for file, plan in plans.items()}
        for future in distributed.as_completed(list(files)):
            file, killed = files[future], future.exception()
            yield (file, False, f"{file.stem}: {killed}") if killed else (file, *keep(file, future.result()))


def load_distributed() -> Any:
    """Dask's scheduler, which is an optional package.

    Raises:
        RunError: when it is missing; it names the command that installs it.
    """
    try:
        return import_module("distributed")
    except ImportError as error:
        raise RunError("a cluster needs Dask: pip install 'esper-agent[cluster]'") from error
