"""The run directory: settings, metrics, checkpoints and a picture of one training run."""

import json
import math
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from esper_env.files import PARTIAL, replace_text
from stable_baselines3.common.logger import JSONOutputFormat, KVWriter, Logger, TensorBoardOutputFormat

PACKAGES = ("esper-agent", "esper-env", "torch", "gymnasium", "stable-baselines3", "numpy")
STEP_KEY = "time/total_timesteps"


class RunError(Exception):
    """A run directory that cannot be used as asked."""


@dataclass(frozen=True)
class RunConfig:
    """What makes a run: with it, and the same versions, the run can be repeated.

    Attributes:
        env_id: id of the environment.
        n_envs: environments side by side, over all ranks.
        total_timesteps: environment steps of the whole run.
        seed: seed of the agent and of the environments.
        device: the learner's device.
        checkpoint_every: environment steps between checkpoints.
        keep_checkpoints: how many of the newest checkpoints stay.
        ranks: processes that the run was started on.
        agent: settings of the agent; those left out have their defaults.
    """

    env_id: str
    n_envs: int = 16
    total_timesteps: int = 200_000
    seed: int = 0
    device: str = "cpu"
    checkpoint_every: int = 20_000
    keep_checkpoints: int = 3
    ranks: int = 1
    agent: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("n_envs", "total_timesteps", "checkpoint_every", "keep_checkpoints"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise RunError(f"{name} is {value!r}; allowed: an integer of at least 1")


class RunDirectory:
    """The files of one run.

    config.json, metrics.jsonl, checkpoints/step_<env steps>.ckpt, tensorboard/ and learning_curve.png; when asked for,
    report.html and profile/.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.json"
        self.metrics_file = path / "metrics.jsonl"
        self.checkpoint_directory = path / "checkpoints"
        self.tensorboard_directory = path / "tensorboard"
        self.picture_file = path / "learning_curve.png"
        self.report_file = path / "report.html"
        self.profile_directory = path / "profile"

    def create(self, config: RunConfig) -> None:
        """Start a new run here; from the moment that it has settings, a killed run can be resumed.

        Raises:
            RunError: when something is here already.
        """
        if self.path.exists() and not self._is_free():
            raise RunError(f"{self.path} is not an empty directory; choose another, or continue it with --resume")
        self.path.mkdir(parents=True, exist_ok=True)
        self.write_config(config)

    def _is_free(self) -> bool:
        """Whether this is a directory that holds at most what a killed process was writing."""
        return self.path.is_dir() and all(entry.match(PARTIAL) for entry in self.path.iterdir())

    def write_config(self, config: RunConfig) -> None:
        """Record the settings and the versions they ran with."""
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
            return RunConfig(**record)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{self.path} holds no run: config.json cannot be read ({error})") from error

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

    def logger(self, step: int) -> Logger:
        """A logger that continues the metrics after so many environment steps."""
        outputs: list[KVWriter] = [
            MetricsWriter(self.metrics_file, step),
            TensorBoardOutputFormat(str(self.tensorboard_directory)),
        ]
        return Logger(str(self.path), outputs)

    def metrics(self) -> list[dict[str, Any]]:
        """The recorded metrics, one row per update."""
        return read_metrics(self.metrics_file)


class MetricsWriter(JSONOutputFormat):
    """SB3's JSON lines, continued from a checkpoint; a non-finite number is written as null.

    Rows after the checkpoint's step, and a row cut short by a crash, are dropped: they will be written again.
    """

    def __init__(self, path: Path, step: int) -> None:
        kept = [row for row in read_metrics(path) if row[STEP_KEY] <= step]
        replace_text(path, "".join(json.dumps(row) + "\n" for row in kept))
        self.file = path.open("a", encoding="utf-8")

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """Append one row."""
        super().write({**_finite(key_values), STEP_KEY: step}, {**key_excluded, STEP_KEY: ()}, step)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The complete rows of a metrics file; none when there is no file."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _finite(value: Any) -> Any:
    """The same with None for every number that JSON cannot hold."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
