"""Training: one epoch of minibatches for every row, tile by tile, incubating seeds included."""

from dataclasses import dataclass

import torch
from torch import Tensor

from esper_env.fused.minibatches import Minibatches
from esper_env.population.population import Population, joined
from esper_env.population.steps import AutogradStep, DenseStep


@dataclass(frozen=True)
class TrainingReport:
    """What an epoch shows of each row, averaged over its minibatches."""

    loss: Tensor  # [n]
    block_grad_norm: Tensor  # [n, slots], of the loss by the block's output
    seed_grad_norm: Tensor  # [n, slots], of the loss by the seed's parameters; zero where there is none


@torch.enable_grad()
def train_epoch(population: Population, data: Minibatches) -> TrainingReport:
    """Train every row on its minibatches, in place; a caller's `no_grad` does not reach in here."""
    bounds = population.tiles(samples=data.index.shape[2])
    return joined([_train_tile(population, data, start, stop) for start, stop in bounds])


def _train_tile(population: Population, data: Minibatches, start: int, stop: int) -> TrainingReport:
    tile = population.window(start, stop)
    step = DenseStep(tile) if tile.engine.dense_kinds else AutogradStep(tile)
    count = data.index.shape[1]
    for number in range(count):
        step.run(*data.batch(number, start, stop))
    step.finish()
    return TrainingReport(step.loss / count, step.block_norm / count, step.seed_norms() / count)
