"""Threads of torch: how many an environment's work is worth; they are set while it works and given back afterwards."""

import os
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import torch

# Bytes of activations per thread. With less, threads wait for each other longer than they work, and beside a busy
# process they wait for the scheduler at every operation: two threads then take a third of the steps that one takes.
WORK = 4 << 20


class Threaded(Protocol):
    """What has a number of threads of its own."""

    threads: int


Owner = TypeVar("Owner", bound=Threaded)
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def worthwhile_threads(activation_bytes: int) -> int:
    """Threads for so many bytes of activations: at most torch's own number, and one core stays free for others."""
    most = min(torch.get_num_threads(), _cores() - 1)
    return max(1, min(most, activation_bytes // WORK))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def on_own_threads(
    method: Callable[Concatenate[Owner, Arguments], Result],
) -> Callable[Concatenate[Owner, Arguments], Result]:
    """A method that runs on its object's number of threads; torch has the number from before when it is done."""

    @wraps(method)
    def limited(owner: Owner, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        before = torch.get_num_threads()
        torch.set_num_threads(owner.threads)
        try:
            return method(owner, *args, **kwargs)
        finally:
            torch.set_num_threads(before)

    return limited
