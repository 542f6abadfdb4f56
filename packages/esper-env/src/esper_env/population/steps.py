"""The repeated minibatch step of a tile: forward, backward, and the update of every row."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from esper_env.fused.layers import cross_entropy
from esper_env.fused.layout import Params
from esper_env.fused.optimizers import State, clip_factors
from esper_env.population.cohort import Cohort, Rows
from esper_env.population.dense import DensePass
from esper_env.population.passes import Passes
from esper_env.population.plan import training_plan
from esper_env.population.population import Population


class Trained:
    """Rows of parameters under training, with what their update needs in every minibatch."""

    def __init__(self, tile: Population, slot: int | None, rows: Rows, values: Tensor, state: State) -> None:
        self.slot, self.values, self.state = slot, values, state
        self.rows = torch.from_numpy(rows).to(tile.lr.device)
        self.lr = tile.lr.index_select(0, self.rows).unsqueeze(1)

    @classmethod
    def of(cls, tile: Population, slot: int | None, cohort: Cohort) -> "Trained":
        """A cohort's own rows."""
        return cls(tile, slot, cohort.rows, cohort.values, cohort.state)


class TileStep(ABC):
    """The step of one tile, and its running sums."""

    def __init__(self, tile: Population) -> None:
        self.tile, self.plan = tile, training_plan(tile)
        self.trained = [Trained.of(tile, None, tile.body)]
        self.trained += self.trained_seeds()
        self.loss = torch.zeros_like(tile.lr)
        self.block_norm = torch.zeros_like(tile.alpha)
        self.sizes = [len(trained.values) for trained in self.trained]
        self.norms = tile.lr.new_zeros(sum(self.sizes))  # of the gradients, one after the other

    @abstractmethod
    def trained_seeds(self) -> list[Trained]:
        """The rows of the seeds."""

    @abstractmethod
    def run(self, inputs: Tensor, labels: Tensor) -> None:
        """One minibatch: forward, backward, update."""

    def finish(self) -> None:  # noqa: B027 (most have nothing to do)
        """Give back what was borrowed from the tile."""

    def expected(self, labels: Tensor) -> Tensor:
        """Labels of the plan's rows."""
        variants = self.plan.variants
        return labels if variants is None else torch.cat([labels, labels.index_select(0, variants)])

    def update(self, grads: list[Tensor]) -> None:
        """Clip and apply the gradients of all trained rows, [rows, size] each."""
        norms = torch.cat([torch.linalg.vector_norm(grad, dim=1) for grad in grads])
        self.norms += norms
        engine = self.tile.engine
        if engine.max_grad_norm is not None:
            factors = clip_factors(norms, engine.max_grad_norm).unsqueeze(1).split(self.sizes)
            grads = [grad.mul_(factor) for grad, factor in zip(grads, factors, strict=True)]
        for trained, grad in zip(self.trained, grads, strict=True):
            engine.optimizer.step(trained.values, grad, trained.state, trained.lr)

    def seed_norms(self) -> Tensor:
        """Sums of the gradient norms of the seeds, [n, slots]."""
        sums = torch.zeros_like(self.tile.alpha)
        for trained, norms in zip(self.trained, self.norms.split(self.sizes), strict=True):
            if trained.slot is not None:
                sums[:, trained.slot].index_copy_(0, trained.rows, norms)
        return sums


class AutogradStep(TileStep):
    """The step of any host with any seeds."""

    def trained_seeds(self) -> list[Trained]:
        """One cohort after the other."""
        self.passes = Passes(self.tile, self.plan, training=True)
        self.layouts = [self.tile.body.layout, *(self.tile.seeds[key].layout for key in self.passes.seeds)]
        self.leaves = [self.passes.body, *self.passes.seeds.values()]
        return [Trained.of(self.tile, key[0], self.tile.seeds[key]) for key in self.passes.seeds]

    def run(self, inputs: Tensor, labels: Tensor) -> None:
        """One minibatch."""
        logits, outputs = self.passes.run(inputs)
        losses = cross_entropy(logits, self.expected(labels))
        leaves = [leaf for cohort in self.leaves for leaf in cohort]
        grads = torch.autograd.grad(losses.sum(), leaves + outputs, allow_unused=True)
        self.loss += losses.detach()[: len(self.loss)]
        self._note_block_gradients(grads[len(leaves) :])
        with torch.no_grad():
            self.update(self._packed(grads))

    def _note_block_gradients(self, grads: Sequence[Tensor]) -> None:
        axis = self.passes.activations.row_axis
        others = [a for a in range(grads[0].dim()) if a != axis]
        norms = [torch.linalg.vector_norm(grad, dim=others)[: len(self.loss)] for grad in grads]
        self.block_norm += torch.stack(norms, dim=1)

    def _packed(self, grads: Sequence[Tensor | None]) -> list[Tensor]:
        packed = []
        for layout, trained in zip(self.layouts, self.trained, strict=True):
            own, grads = grads[: len(layout.entries)], grads[len(layout.entries) :]
            packed.append(layout.pack(own, trained.values))
        return packed


class DenseStep(TileStep):
    """The step of MLPs whose seeds are two products each: stacks of seeds, and no autograd."""

    def trained_seeds(self) -> list[Trained]:
        """One stack after the other."""
        self.passes = DensePass(self.tile, self.plan, training=True)
        self.stacks = [(slot, bundle.stack, bundle.values) for slot, bundle in self.passes.learning()]
        trained = []
        for slot, stack, values in self.stacks:
            state = tuple(stack.padded(tensors) for tensors in zip(*(c.state for c in stack.cohorts), strict=True))
            rows = np.concatenate([cohort.rows for cohort in stack.cohorts])
            trained.append(Trained(self.tile, slot, rows, values, state))
        return trained

    @torch.no_grad()
    def run(self, inputs: Tensor, labels: Tensor) -> None:
        """One minibatch."""
        losses, grad = _losses(self.passes.run(inputs), self.expected(labels))
        self.loss += losses[: len(self.loss)]
        self.block_norm += self.passes.backward(grad, *self.views)
        self.update(self.grads)

    @cached_property
    def grads(self) -> list[Tensor]:
        """Where the gradients of all trained rows are written, in every minibatch anew."""
        return [torch.empty_like(trained.values) for trained in self.trained]

    @cached_property
    def views(self) -> tuple[list[Tensor], list[list[Params]]]:
        """The same by parameter: the hosts', and the seeds' by slot and stack."""
        seeds: list[list[Params]] = [[] for _ in self.plan.grafts]
        for (slot, stack, _), own in zip(self.stacks, self.grads[1:], strict=True):
            seeds[slot].append(stack.unpack(own))
        return self.tile.body.layout.unpack(self.grads[0]), seeds

    @torch.no_grad()
    def finish(self) -> None:
        """Write the stacks back into the cohorts."""
        for (_, stack, _), trained in zip(self.stacks, self.trained[1:], strict=True):
            cohorts = [cohort.tensors() for cohort in stack.cohorts]
            for rows, tensors in zip((trained.values, *trained.state), zip(*cohorts, strict=True), strict=True):
                stack.give_back(rows, tensors)


def _losses(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy of each row, [rows], and the gradient of their sum, from logits [rows, classes, samples]."""
    log_shares, label = torch.log_softmax(logits, dim=1), labels.unsqueeze(1)
    losses = log_shares.gather(1, label).mean(dim=(1, 2)).neg_()
    grad = log_shares.exp_().scatter_add_(1, label, torch.full_like(label, -1, dtype=logits.dtype))
    return losses, grad.div_(labels.shape[1])
