"""The log of a run, as JSON lines and for TensorBoard, continued where a checkpoint was taken."""

import json
import math
from pathlib import Path
from typing import Any

from esper_env.files import replace_text
from stable_baselines3.common.logger import JSONOutputFormat, TensorBoardOutputFormat
from torch.utils.tensorboard import SummaryWriter

STEP_KEY = "time/total_timesteps"
Rows = list[dict[str, Any]]


class MetricsWriter(JSONOutputFormat):
    """SB3's JSON lines, continued from a checkpoint; a non-finite number is written as null.

    Rows after the checkpoint's step, and lines that cannot be read, are dropped: the former will be written again.
    """

    def __init__(self, path: Path, step: int) -> None:
        kept = [row for row in read_metrics(path)[0] if row[STEP_KEY] <= step]
        replace_text(path, "".join(json.dumps(row) + "\n" for row in kept))
        self.file = path.open("a", encoding="utf-8")

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """Append one row."""
        super().write({**_finite(key_values), STEP_KEY: step}, {**key_excluded, STEP_KEY: ()}, step)


class TensorBoardWriter(TensorBoardOutputFormat):
    """SB3's TensorBoard events, continued from a checkpoint: what was logged after its step counts no more."""

    def __init__(self, folder: Path, step: int) -> None:
        self.writer = SummaryWriter(log_dir=str(folder), purge_step=step + 1)
        self._is_closed = False


def read_metrics(path: Path) -> tuple[Rows, int]:
    """The rows of a metrics file, and how many lines are none; a last line that a crash cut short is not counted."""
    if not path.exists():
        return [], 0
    lines = path.read_bytes().split(b"\n")[:-1]
    rows = [row for row in map(_row, lines) if row is not None]
    return rows, len(lines) - len(rows)


def _row(line: bytes) -> dict[str, Any] | None:
    """A line as what `MetricsWriter` writes; None for anything else."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):  # bad UTF-8 is a ValueError, too
        return None
    return row if isinstance(row, dict) and type(row.get(STEP_KEY)) is int else None


def _finite(value: Any) -> Any:
    """The same with None for every number that JSON cannot hold."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
