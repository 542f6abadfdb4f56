"""The picture of a run: its return, entropies and critic over the environment steps."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from esper_agent.runs.metrics import STEP_KEY, Rows


def draw_learning_curve(rows: Rows, title: str, path: Path) -> None:
    """Draw the metrics of a run.

    Args:
        rows: the run's metrics.
        title: what was trained.
        path: the picture to write.
    """
    figure = Figure(figsize=(8, 9), layout="constrained")
    top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=[2, 1, 1])
    top.set_title(title)
    _plot(top, rows, {"rollout/ep_rew_mean": "mean return of recent episodes"}, "episode return")
    heads = sorted({key for row in rows for key in row if key.startswith("train/entropy/")})
    _plot(middle, rows, {key: key.rpartition("/")[2] for key in heads}, "entropy (1 = uniform)")
    _plot(bottom, rows, {"train/explained_variance": "critic"}, "explained variance")
    bottom.set_ylim(-0.05, 1.05)
    bottom.set_xlabel("environment steps")
    figure.savefig(path, dpi=120)


def _plot(axes: Axes, rows: Rows, labels: dict[str, str], name: str) -> None:
    """One line for each metric, over the rows that have it."""
    for key, label in labels.items():
        points = [(row[STEP_KEY], row[key]) for row in rows if row.get(key) is not None]
        axes.plot([step for step, _ in points], [value for _, value in points], label=label)
    axes.set_ylabel(name)
    axes.grid(alpha=0.3)
    if labels:
        axes.legend(loc="best", fontsize="small")
