"""Stopping on request: Ctrl-C, and what a cluster or a closing terminal sends, save the run before they end it."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Protocol

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """Training stopped on request; the state was saved."""

    def __init__(self, checkpoint: Path, number: int = signal.SIGINT) -> None:
        super().__init__(f"stopped; the run continues from {checkpoint} with --resume")
        self.checkpoint = checkpoint
        self.code = 128 + number  # what a shell reports after a signal


class Stoppable(Protocol):
    """What can be asked to stop."""

    stop_requested: int  # the signal that asked for it; 0 for none


@contextmanager
def stopping_on_signals(target: Stoppable, *, speaks: bool) -> Iterator[None]:
    """The first signal asks for a stop; a second Ctrl-C interrupts at once."""

    def handle(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            _silence(terminals)
        if number == signal.SIGINT and target.stop_requested:
            raise KeyboardInterrupt
        if speaks and not target.stop_requested:
            print("\nstopping after this update; Ctrl-C again stops at once", flush=True)
        target.stop_requested = target.stop_requested or number

    # Found now: one that is gone cannot be told from a file.
    terminals = [stream.fileno() for stream in (sys.__stdout__, sys.__stderr__) if stream and stream.isatty()]
    # A process that was told to survive its terminal (nohup) shall.
    caught = [number for number in SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
    previous = {number: signal.signal(number, handle) for number in caught}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _silence(terminals: list[int]) -> None:
    """Write to nowhere from now on: words to a terminal that is gone would be errors."""
    with open(os.devnull, "w") as nowhere:
        for terminal in terminals:
            os.dup2(nowhere.fileno(), terminal)
