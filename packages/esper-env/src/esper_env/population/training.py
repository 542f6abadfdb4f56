"""Training: one epoch of minibatches for every row, tile by tile, incubating seeds included."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from esper_env.fused.layers import cross_entropy
from esper_env.fused.minibatches import Minibatches
from esper_env.fused.optimizers import clip_factors
from esper_env.population.cohort import Cohort
from esper_env.population.passes import Passes
from esper_env.population.plan import training_plan
from esper_env.population.population import Population, joined


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
    step = _TileStep(population.window(start, stop))
    count = data.index.shape[1]
    for number in range(count):
        step.run(*data.batch(number, start, stop))
    return TrainingReport(step.loss / count, step.block_norm / count, step.seed_norms() / count)


class _TileStep:
    """The repeated minibatch step of one tile, and its running sums."""

    def __init__(self, tile: Population) -> None:
        self.tile, self.plan = tile, training_plan(tile)
        self.passes = Passes(tile, self.plan, training=True)
        self.cohorts = [_Trained(None, tile.body, self.passes.body, tile)]
        self.cohorts += [
            _Trained(slot, tile.seeds[slot, kind], leaves, tile) for (slot, kind), leaves in self.passes.seeds.items()
        ]
        self.loss = torch.zeros_like(tile.lr)
        self.block_norm = torch.zeros_like(tile.alpha)
        self.sizes = [len(trained.cohort) for trained in self.cohorts]
        self.norms = tile.lr.new_zeros(sum(self.sizes))  # of the gradients of one cohort after the other

    def run(self, inputs: Tensor, labels: Tensor) -> None:
        """One minibatch: forward, backward, update."""
        logits, outputs = self.passes.run(inputs)
        variants = self.plan.variants
        expected = labels if variants is None else torch.cat([labels, labels.index_select(0, variants)])
        losses = cross_entropy(logits, expected)
        leaves = [leaf for trained in self.cohorts for leaf in trained.leaves]
        grads = torch.autograd.grad(losses.sum(), leaves + outputs, allow_unused=True)
        self.loss += losses.detach()[: len(self.loss)]
        self._note_block_gradients(grads[len(leaves) :])
        with torch.no_grad():
            self._update(grads)

    def _note_block_gradients(self, grads: Sequence[Tensor]) -> None:
        axis = self.passes.activations.row_axis
        others = [a for a in range(grads[0].dim()) if a != axis]
        norms = [torch.linalg.vector_norm(grad, dim=others)[: len(self.loss)] for grad in grads]
        self.block_norm += torch.stack(norms, dim=1)

    def _update(self, grads: Sequence[Tensor | None]) -> None:
        packed = []
        for trained in self.cohorts:
            own, grads = grads[: len(trained.leaves)], grads[len(trained.leaves) :]
            packed.append(trained.cohort.layout.pack(own, trained.cohort.values))
        norms = torch.cat([torch.linalg.vector_norm(grad, dim=1) for grad in packed])
        self.norms += norms
        engine = self.tile.engine
        if engine.max_grad_norm is not None:
            factors = clip_factors(norms, engine.max_grad_norm).unsqueeze(1).split(self.sizes)
            packed = [grad.mul_(factor) for grad, factor in zip(packed, factors, strict=True)]
        for trained, grad in zip(self.cohorts, packed, strict=True):
            engine.optimizer.step(trained.cohort.values, grad, trained.cohort.state, trained.lr)

    def seed_norms(self) -> Tensor:
        """Sums of the gradient norms of the seeds, [n, slots]."""
        sums = torch.zeros_like(self.tile.alpha)
        for trained, norms in zip(self.cohorts, self.norms.split(self.sizes), strict=True):
            if trained.slot is not None:
                sums[:, trained.slot].index_copy_(0, trained.rows, norms)
        return sums


class _Trained:
    """A cohort under training, with what its update needs in every minibatch."""

    def __init__(self, slot: int | None, cohort: Cohort, leaves: list[Tensor], tile: Population) -> None:
        self.slot, self.cohort, self.leaves = slot, cohort, leaves
        self.rows = torch.from_numpy(cohort.rows).to(tile.lr.device)
        self.lr = tile.lr.index_select(0, self.rows).unsqueeze(1)
