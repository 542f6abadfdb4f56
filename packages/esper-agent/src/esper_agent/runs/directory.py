"""The run directory: settings, metrics, checkpoints and a picture of one training run."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from math import inf
from pathlib import Path
from typing import Any

from esper_env.files import PARTIAL, replace_text
from stable_baselines3.common.logger import KVWriter, Logger

from esper_agent.algorithm.escalation import DIRECTORY
from esper_agent.runs.metrics import MetricsWriter, Rows, TensorBoardWriter, read_metrics
from esper_agent.runs.trackers import LOGGERS, TENSORBOARD, begin_trackers

PACKAGES = ("esper-agent", "esper-env", "torch", "gymnasium", "stable-baselines3", "numpy")


class RunError(Exception):
    """A run directory that cannot be used as asked."""


@dataclass(frozen=True)
class RunConfig:
    """What makes a run: with it, and the same versions, the run can be repeated.

    Attributes:
        env_id: id of the environment.
        n_envs: environments side by side, over all ranks; None for as many as suit the environment.
        total_timesteps: environment steps of the whole run.
        seed: seed of the agent and of the environments.
        device: the learner's device.
        checkpoint_every: environment steps between checkpoints.
        keep_checkpoints: how many of the newest checkpoints stay.
        eval_every: environment steps between evaluations on validation instances; 0 for none.
        threads: that torch may use; 0 leaves them to torch.
        ranks: processes that the run was started on.
        start_from: run directory or checkpoint whose policy the run began with; None for a new one.
        pull: weight of the divergence from that policy in the loss, which fades over the run; 0 for none.
        loggers: where the log goes beside metrics.jsonl.
        env: arguments of the environment; those left out are its id's.
        agent: settings of the agent; those left out have their defaults.
    """

    env_id: str
    n_envs: int | None = None
    total_timesteps: int = 200_000
    seed: int = 0
    device: str = "cpu"
    checkpoint_every: int = 20_000
    keep_checkpoints: int = 3
    eval_every: int = 0
    threads: int = 0
    ranks: int = 1
    start_from: str | None = None
    pull: float = 0.0
    loggers: list[str] = field(default_factory=lambda: [TENSORBOARD])
    env: dict[str, Any] = field(default_factory=dict)
    agent: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        least = dict.fromkeys(("n_envs", "total_timesteps", "checkpoint_every", "keep_checkpoints"), 1)
        for name, low in (least | {"eval_every": 0, "threads": 0, "seed": 0}).items():
            value = getattr(self, name)
            if (type(value) is not int or value < low) and (name, value) != ("n_envs", None):
                raise RunError(f"{name} is {value!r}; allowed: an integer of at least {low}")
        if isinstance(self.pull, bool) or not isinstance(self.pull, int | float) or not 0 <= self.pull < inf:
            raise RunError(f"pull is {self.pull!r}; allowed: a finite number from 0 on")
        if self.pull and self.start_from is None:
            raise RunError(f"pull is {self.pull!r}; allowed: 0, unless start_from names what it pulls to")
        if not set(self.loggers) <= set(LOGGERS):
            raise RunError(f"loggers is {self.loggers!r}; allowed: {', '.join(LOGGERS)}")


class RunDirectory:
    """The files of one run.

    config.json, metrics.jsonl, checkpoints/step_<env steps>.ckpt, tensorboard/, learning_curve.png and lock; when asked
    for, best_model.ckpt, report.html, trackers.json and profile/; critical/ after a critical event; offline.json if it
    learns from a dataset; start.ckpt, the policy that it began with, if not with a new one.

    Args:
        path: the directory.
        trusted: whether the module that its settings may name for the environment may be imported.
    """

    def __init__(self, path: Path, *, trusted: bool = False) -> None:
        self.path, self.trusted = path, trusted
        self.config_file = path / "config.json"
        self.metrics_file = path / "metrics.jsonl"
        self.checkpoint_directory = path / "checkpoints"
        self.tensorboard_directory = path / "tensorboard"
        self.picture_file = path / "learning_curve.png"
        self.best_file = path / "best_model.ckpt"
        self.report_file = path / "report.html"
        self.profile_directory = path / "profile"
        self.critical_directory = path / DIRECTORY
        self.offline_file = path / "offline.json"
        self.start_file = path / "start.ckpt"
        self.trackers_file = path / "trackers.json"
        self.lock_file = path / "lock"

    def create(self) -> None:
        """Make the directory of a new run.

        Raises:
            RunError: when something is here already.
        """
        if self.path.exists() and not self._is_free():
            raise RunError(f"{self.path} is not an empty directory; choose another, or continue it with --resume")
        self.path.mkdir(parents=True, exist_ok=True)

    def _is_free(self) -> bool:
        """Whether this is a directory that holds at most what a killed process was writing."""
        leftovers = (PARTIAL, self.lock_file.name)
        return self.path.is_dir() and all(any(map(entry.match, leftovers)) for entry in self.path.iterdir())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only writer here; the kernel takes the lock back from a process that dies.

        Raises:
            RunError: naming the living process that is.
        """
        file = os.open(self.lock_file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._take(file)
            os.ftruncate(file, 0)
            os.pwrite(file, str(os.getpid()).encode(), 0)
            yield
        finally:
            os.close(file)

    def _take(self, file: int) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.pread(file, 20, 0).decode(errors="replace") or "that has just started"
            raise RunError(f"{self.path} is in use: process {owner} writes to it") from error

    def write_config(self, config: RunConfig) -> None:
        """Record the settings and the versions they ran with; from then on a killed run can be resumed."""
        record = {**asdict(config), "versions": {name: version(name) for name in PACKAGES}}
        replace_text(self.config_file, json.dumps(record, indent=2) + "\n")

    def read_config(self) -> RunConfig:
        """The settings of the run.

        Raises:
            RunError: when there are none, or they are not understood.
        """
        try:
            record = json.loads(self.config_file.read_text(encoding="utf-8"))
            record.pop("versions")
            config = RunConfig(**record)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise RunError(f"{self.path} holds no run: config.json cannot be read ({error})") from error
        module, separator, _ = str(config.env_id).rpartition(":")
        if separator and not self.trusted:
            raise RunError(
                f"{self.config_file} names the module {module!r}, whose code would run; allow it with --trust"
            )
        return config

    def checkpoint_file(self, step: int) -> Path:
        """Where the checkpoint after so many environment steps goes."""
        return self.checkpoint_directory / f"step_{step:012d}.ckpt"

    def checkpoints(self) -> list[Path]:
        """All checkpoints, oldest first."""
        return sorted(self.checkpoint_directory.glob("step_*.ckpt"))

    def latest_checkpoint(self) -> Path:
        """The newest checkpoint.

        Raises:
            RunError: when there is none.
        """
        if not self.checkpoints():
            raise RunError(f"{self.path} holds no checkpoint yet")
        return self.checkpoints()[-1]

    def sweep(self) -> None:
        """Delete what a killed process was writing."""
        for unfinished in self.path.rglob(PARTIAL):
            unfinished.unlink()

    def prune_checkpoints(self, keep: int) -> None:
        """Delete all but the newest checkpoints."""
        for old in self.checkpoints()[:-keep]:
            old.unlink()

    def logger(self, step: int, config: RunConfig) -> Logger:
        """A logger that continues the metrics after so many environment steps, wherever the settings send them.

        Raises:
            RunError: when what a service needs is not installed.
        """
        outputs: list[KVWriter] = [MetricsWriter(self.metrics_file, step)]
        if TENSORBOARD in config.loggers:
            outputs.append(TensorBoardWriter(self.tensorboard_directory, step))
        try:
            outputs += begin_trackers(self.path, self.trackers_file, asdict(config), config.loggers)
        except ImportError as error:
            raise RunError(str(error)) from error
        return Logger(str(self.path), outputs)

    def metrics(self) -> Rows:
        """The recorded metrics, one row per update."""
        return read_metrics(self.metrics_file)[0]

    def unreadable_metrics(self) -> str | None:
        """A sentence about lines of the metrics that cannot be read; None if there are none."""
        count = read_metrics(self.metrics_file)[1]
        return f"{self.metrics_file}: lines that cannot be read and are left out: {count}" if count else None


def find_checkpoint(path: Path, *, trusted: bool) -> tuple[RunDirectory, Path]:
    """The run that a path belongs to, and the checkpoint that it means: a file, or the newest of a run directory."""
    if path.is_file():
        return RunDirectory(path.resolve().parent.parent, trusted=trusted), path
    run = RunDirectory(path, trusted=trusted)
    run.read_config()
    return run, run.latest_checkpoint()
