"""Services that a run's log goes to: TensorBoard, Weights & Biases, MLflow (`esper-agent train --logger NAME`).

Where the latter two send it, and under which account, is for their own variables to say, such as WANDB_MODE or
MLFLOW_TRACKING_URI. A resumed run goes on where it was.
"""

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from esper_env.files import replace_text
from stable_baselines3.common.logger import KVWriter

PROJECT = "esper"


class Tracker(KVWriter):
    """A writer for Stable-Baselines3's logger that continues the service's own run.

    Args:
        directory: of our run; its name is the service's name of it.
        settings: that it ran with.
        run_id: of the service's run; None begins one.
    """

    module: str  # and the extra of esper-agent that installs it

    def __init__(self, directory: Path, settings: Mapping[str, Any], run_id: str | None) -> None:
        self.service = import_module(self.module)
        self.run_id = self._begin(directory, settings, run_id)

    @abstractmethod
    def _begin(self, directory: Path, settings: Mapping[str, Any], run_id: str | None) -> str:
        """Begin or continue; returns the service's id of the run."""

    @abstractmethod
    def _log(self, numbers: dict[str, float], step: int) -> None:
        """Send the numbers of an update."""

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """Send what is a number."""
        del key_excluded
        self._log({key: float(value) for key, value in key_values.items() if isinstance(value, int | float)}, step)


class WandbTracker(Tracker):
    """Weights & Biases."""

    module = "wandb"

    def _begin(self, directory: Path, settings: Mapping[str, Any], run_id: str | None) -> str:
        same = {"project": PROJECT, "name": directory.name, "dir": directory, "config": dict(settings)}
        return str(self.service.init(id=run_id, resume="allow", **same).id)

    def _log(self, numbers: dict[str, float], step: int) -> None:
        self.service.log(numbers, step=step)

    def close(self) -> None:
        """End it."""
        self.service.finish()


class MLflowTracker(Tracker):
    """MLflow."""

    module = "mlflow"

    def _begin(self, directory: Path, settings: Mapping[str, Any], run_id: str | None) -> str:
        run = self.service.start_run(run_id=run_id, run_name=directory.name)
        if run_id is None:
            self.service.log_params({name: json.dumps(value) for name, value in settings.items()})
        return str(run.info.run_id)

    def _log(self, numbers: dict[str, float], step: int) -> None:
        self.service.log_metrics(numbers, step=step)

    def close(self) -> None:
        """End it."""
        self.service.end_run()


TRACKERS: dict[str, type[Tracker]] = {"wandb": WandbTracker, "mlflow": MLflowTracker}
TENSORBOARD = "tensorboard"
LOGGERS = (TENSORBOARD, *TRACKERS)


def require_loggers(names: Sequence[str]) -> None:
    """Check that the services by name can be imported, before anything is written.

    Raises:
        ImportError: naming the extra.
    """
    for name in TRACKERS.keys() & set(names):
        if find_spec(TRACKERS[name].module) is None:
            raise ImportError(f"--logger {name} needs {name}: pip install 'esper-agent[{name}]'")


def begin_trackers(directory: Path, file: Path, settings: Mapping[str, Any], names: Sequence[str]) -> list[Tracker]:
    """The services by name, each going on with its run that a file names.

    Args:
        directory: of our run.
        file: remembers the services' ids.
        settings: that our run has.
        names: of services; TensorBoard is none.

    Raises:
        ImportError: when one is not installed.
    """
    require_loggers(names)
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    wanted = [name for name in names if name in TRACKERS]
    trackers = {name: TRACKERS[name](directory.resolve(), settings, known.get(name)) for name in wanted}
    if trackers:
        replace_text(file, json.dumps({name: tracker.run_id for name, tracker in trackers.items()}) + "\n")
    return list(trackers.values())
