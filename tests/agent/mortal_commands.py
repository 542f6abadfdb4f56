"""Runs `esper-agent` commands that die when told to, each in a process forked after the slow imports.

Used as a module, `Mortals` starts this file as a program, which reads one JSON request per line and answers in kind.
"""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FILE_OPERATIONS = ("open", "os.rename", "os.remove", "os.mkdir")
NOBODY = 65534
WARM_UP = ("--n-envs=1", "--total-timesteps=4", "--no-progress", "--set=n_steps=4", "--set=sequence_length=1")


@dataclass(frozen=True)
class Fate:
    """What befalls a command: death by SIGKILL, files that may not grow, or a user who owns nothing."""

    operation: int | None = None  # die before so many file operations in the run directory
    seconds: float | None = None  # die after this time
    file_limit: int | None = None  # no file may become larger than this many bytes
    unprivileged: bool = False


@dataclass(frozen=True)
class End:
    """How a command ended."""

    code: int  # its exit code, or minus the signal that killed it
    error: str  # what it wrote to stderr

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL


class Mortals:
    """A process in which commands can be run again and again without importing everything anew."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def run(
        self,
        directory: Path,
        *arguments: object,
        fate: Fate | None = None,
        variables: dict[str, str] | None = None,
    ) -> End:
        """Run a command on a run directory, with these variables in its environment, and see it end."""
        request = [str(directory), list(map(str, arguments)), asdict(fate or Fate()), variables or {}]
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return End(**json.loads(self.process.stdout.readline()))

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def _serve() -> None:
    """Answer requests; what commands import or set up when they first run is done beforehand, once for all."""
    from esper_agent import cli  # noqa: PLC0415 (only the program needs it)

    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(None):
        cli.main(["train", "Esper-v0", "--run-dir", f"{scratch}/run", *WARM_UP])
    for line in sys.stdin:
        directory, arguments, fate, variables = json.loads(line)
        end = _live(cli.main, Path(directory), arguments, Fate(**fate), variables)
        print(json.dumps(asdict(end)), flush=True)


def _live(
    main: Callable[[list[str]], int], directory: Path, arguments: list[str], fate: Fate, variables: dict[str, str]
) -> End:
    with tempfile.TemporaryFile("w+") as stderr:
        child = os.fork()
        if child == 0:
            os.environ.update(variables)
            _child(main, directory, arguments, fate, stderr.fileno())
        if fate.seconds is not None:
            time.sleep(fate.seconds)
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        stderr.seek(0)
        return End(code, stderr.read())


def _child(main: Callable[[list[str]], int], directory: Path, arguments: list[str], fate: Fate, stderr: int) -> None:
    code = 99
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(stderr, 2)
        _befall(fate, directory)
        code = main(arguments)
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    finally:
        sys.stderr.flush()
        os._exit(code)


def _befall(fate: Fate, directory: Path) -> None:
    if fate.file_limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (fate.file_limit, fate.file_limit))
    if fate.unprivileged and os.geteuid() == 0:
        os.setuid(NOBODY)
    if fate.operation is not None:
        sys.addaudithook(_executioner(directory, fate.operation))


def _executioner(directory: Path, last: int) -> Callable[[str, tuple[Any, ...]], None]:
    """Kills its own process before the given file operation in a directory."""
    seen = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event in FILE_OPERATIONS and str(arguments[0]).startswith(str(directory)):
            seen += 1
            if seen == last:
                os.kill(os.getpid(), signal.SIGKILL)

    return watch


if __name__ == "__main__":
    _serve()
