"""Training: one epoch of minibatches for every row, tile by tile, with shadow passes for incubating seeds."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from esper_env.population.cohort import Cohort
from esper_env.population.layers import cross_entropy
from esper_env.population.layout import Params
from esper_env.population.optimizers import clip_rows
from esper_env.population.passes import Passes
from esper_env.population.plan import base_plan, incubation_plan
from esper_env.population.population import Population, SeedKey


@dataclass(frozen=True)
class Minibatches:
    """The samples of one epoch, by index into resident data."""

    inputs: Tensor  # [pool, ...]
    index: Tensor  # [n, minibatches, batch]
    labels: Tensor  # [n, minibatches, batch, ...]

    def batch(self, number: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Samples and labels of one minibatch for rows start to stop."""
        return self.inputs[self.index[start:stop, number]], self.labels[start:stop, number]


@dataclass(frozen=True)
class TrainingReport:
    """What an epoch shows of each row, averaged over its minibatches."""

    loss: Tensor  # [n]
    block_grad_norm: Tensor  # [n, slots], of the loss by the block's output
    seed_grad_norm: Tensor  # [n, slots], of the loss by the seed's parameters; zero where there is none


def train_epoch(population: Population, data: Minibatches) -> TrainingReport:
    """Train every row on its minibatches, in place."""
    samples = data.index.shape[2]
    reports = [_train_tile(population, data, start, stop) for start, stop in population.tiles(samples)]
    if len(reports) == 1:
        return reports[0]
    loss, block, seed = (torch.cat(parts) for parts in zip(*map(_fields, reports), strict=True))
    return TrainingReport(loss, block, seed)


def _fields(report: TrainingReport) -> tuple[Tensor, Tensor, Tensor]:
    return report.loss, report.block_grad_norm, report.seed_grad_norm


def _train_tile(population: Population, data: Minibatches, start: int, stop: int) -> TrainingReport:
    step = _TileStep(population.window(start, stop))
    count = data.index.shape[1]
    for number in range(count):
        step.run(*data.batch(number, start, stop))
    return TrainingReport(step.loss / count, step.block_norm / count, step.seed_norm / count)


class _TileStep:
    """The repeated minibatch step of one tile, and its running sums."""

    def __init__(self, tile: Population) -> None:
        self.tile = tile
        self.passes = Passes(tile, training=True)
        self.plan, self.shadow = base_plan(tile), incubation_plan(tile)
        self.cohorts: list[tuple[SeedKey | None, Cohort, Params]] = [(None, tile.body, self.passes.body)]
        self.cohorts += [(key, cohort, self.passes.seeds[key]) for key, cohort in tile.seeds.items()]
        self.rows = [torch.from_numpy(cohort.rows).to(tile.lr.device) for _, cohort, _ in self.cohorts]
        self.loss = torch.zeros_like(tile.lr)
        self.block_norm, self.seed_norm = torch.zeros_like(tile.alpha), torch.zeros_like(tile.alpha)

    def run(self, inputs: Tensor, labels: Tensor) -> None:
        """One minibatch: forward, backward, update."""
        logits, trace = self.passes.base(self.plan, inputs)
        losses = cross_entropy(logits, labels)
        total = losses.sum()
        if self.shadow is not None:
            shadow_labels = labels.index_select(0, self.shadow.rows)
            total = total + cross_entropy(self.passes.branches(self.shadow, trace), shadow_labels).sum()
        wanted = [leaf for _, _, params in self.cohorts for leaf in params.values()]
        grads: Sequence[Tensor | None] = torch.autograd.grad(total, wanted + trace.outputs, allow_unused=True)
        self.loss += losses.detach()
        self._note_block_gradients(grads[len(wanted) :])
        with torch.no_grad():
            self._update(grads)

    def _note_block_gradients(self, grads: Sequence[Tensor | None]) -> None:
        axis = self.passes.host.row_axis
        for slot, grad in enumerate(grads):
            assert grad is not None
            others = [a for a in range(grad.dim()) if a != axis]
            self.block_norm[:, slot] += torch.linalg.vector_norm(grad, dim=others)

    def _update(self, grads: Sequence[Tensor | None]) -> None:
        engine, taken = self.tile.engine, 0
        for (key, cohort, params), rows in zip(self.cohorts, self.rows, strict=True):
            grad = cohort.layout.pack(grads[taken : taken + len(params)], len(cohort), cohort.values)
            taken += len(params)
            lr = self.tile.lr if key is None else self.tile.lr.index_select(0, rows)
            if key is not None or engine.max_grad_norm is not None:
                norm = torch.linalg.vector_norm(grad, dim=1)
                if key is not None:
                    self.seed_norm[:, key[0]].index_add_(0, rows, norm)
                if engine.max_grad_norm is not None:
                    grad = clip_rows(grad, norm, engine.max_grad_norm)
            engine.optimizer.step(cohort.values, grad, cohort.state, lr.unsqueeze(1))
