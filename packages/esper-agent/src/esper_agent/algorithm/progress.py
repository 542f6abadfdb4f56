"""The display of a training: how far it is, how well it goes of late, and how long it will take."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, Task, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text
from stable_baselines3.common.callbacks import BaseCallback

HOSTS = {"hosts/end/committed_metric": "metric", "hosts/end/added_parameters": "added"}


class TimeLeft(TimeRemainingColumn):
    """The time that remains or, at the end, the time that it took."""

    def render(self, task: Task) -> Text:
        """What the column says."""
        return super().render(task).append(" in all" if task.finished else " left")


class ProgressBar(BaseCallback):
    """A bar over the environment steps of a call of `learn`, with what recent episodes came to.

    The return is that of the log: undiscounted, of training episodes. Metric and added parameters are those of
    committed networks at the ends of the last rollout's episodes; other environments have none.

    Args:
        bar: where it is drawn.
    """

    def __init__(self, bar: Progress) -> None:
        super().__init__()
        self.bar = bar

    def _on_training_start(self) -> None:
        self.before = self.model.num_timesteps
        self.task = self.bar.add_task(self.describe(), total=self.locals["total_timesteps"] - self.before)

    def _on_step(self) -> bool:
        self.bar.update(self.task, completed=self.model.num_timesteps - self.before)
        return True

    def _on_rollout_start(self) -> None:
        self.bar.update(self.task, description=self.describe())

    def _on_training_end(self) -> None:
        self.bar.update(self.task, description=self.describe())

    def describe(self) -> str:
        """What recent episodes came to."""
        model: Any = self.model
        returns = [episode["r"] for episode in model.ep_info_buffer]
        parts = [f"plain return {np.mean(returns):z.3f}" if returns else "plain return ..."]
        hosts = model.collector.hosts.last
        return ", ".join([*parts, *(f"{word} {hosts[name]:.0%}" for name, word in HOSTS.items() if name in hosts)])


@contextmanager
def progress_bar(wanted: bool, console: Console | None = None) -> Iterator[list[BaseCallback]]:
    """The callback that shows a training, if one is wanted; however the training ends, the terminal is its own again.

    Args:
        wanted: whether to show it.
        console: where; the terminal unless given.
    """
    if not wanted:
        yield []
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), TaskProgressColumn())
    with Progress(*columns, TimeLeft(elapsed_when_finished=True), console=console) as bar:
        yield [ProgressBar(bar)]
