"""The control: every row's host once more, without any seed, on the same data; growth is judged beside it."""

import numpy as np
import torch
from torch import Tensor

from esper_env.fused.minibatches import Minibatches
from esper_env.mdp.instances import Instance
from esper_env.population.cohort import Rows
from esper_env.population.evaluation import evaluate
from esper_env.population.population import Engine, Population
from esper_env.population.training import train_epoch
from esper_env.tasks.base import Split


class Control:
    """Hosts that never had a seed; they are never rolled back.

    Args:
        engine: That of the population they are paired with.
        n: How many rows.
        interval: Steps from one measurement to the next.
    """

    def __init__(self, engine: Engine, n: int, interval: int) -> None:
        self.population, self.interval = Population.unborn(engine, n), interval

    def rebirth(self, rows: Rows, instance: Instance) -> None:
        """Give rows the hosts that their episodes begin with."""
        self.population.rebirth(rows, instance.key, instance.lr, instance.live_units)

    def train(self, batches: Minibatches) -> None:
        """Train on what the rows that may grow are trained on."""
        train_epoch(self.population, batches)

    def measure(self, step: Tensor, horizon: int, val: Split, counted: Tensor | None) -> tuple[Tensor, Tensor]:
        """The metric of the rows that are due after so many steps, and which those are, [n] each.

        Only `counted` samples count, [n, samples], if it is given.
        """
        due = (step % self.interval == 0) | (step >= horizon)
        metric, rows = torch.zeros(len(due), dtype=torch.float64, device=due.device), np.flatnonzero(due.cpu().numpy())
        if len(rows):
            some = None if counted is None else counted[due]
            measured = evaluate(self.population.gathered(rows), val.inputs, val.labels, some).metric.double()
            metric[due] = measured.nan_to_num(nan=0.0)  # a control that collapsed knows nothing
        return metric, due
