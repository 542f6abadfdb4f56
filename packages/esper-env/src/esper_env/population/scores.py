"""Scores of slots by published growth criteria: what capacity beside each block would bring, from one batch.

With x what a block reads, h what it gives and g the gradient of the loss by h, one row for each sample (and position):
a new path beside the block reads x and adds to h, and M = E[x g^T] is the gradient of its weights if it is linear. What
the block could repair itself is no reason to grow, so two criteria look at r, which is g without its part along the
block's own gradient step. Images are averaged to the size of what the block gives: a new convolution has size one.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from esper_env.fused.layers import cross_entropy
from esper_env.fused.layout import Params
from esper_env.fused.minibatches import Minibatches
from esper_env.population.passes import Passes
from esper_env.population.plan import training_plan
from esper_env.population.population import Population

DAMPING = 1e-3  # of second moments, as a share of their mean diagonal
RANK_TOLERANCE = 0.01  # of the largest singular value: below it a direction is not used


@dataclass(frozen=True)
class SlotScores:
    """What each criterion says of each slot, [n, slots]; larger is a better place to grow."""

    gradmax: Tensor  # largest singular value of M: the steepest descent that a newborn can have (GradMax)
    rigl: Tensor  # largest entry of M: the steepest missing connection (RigL)
    tiny: Tensor  # of E[x r^T] with x whitened, the largest singular value: what the block cannot express (TINY)
    senn: Tensor  # the natural gradient's gain by r, second moments factored: squared norm with x and g whitened (SENN)
    north: Tensor  # rank of h / units that vary: 1 where a block uses all that it has (NORTH*)


class _Noting(Passes):
    """Passes that keep what each block reads, with the block's own parameters."""

    def run(self, inputs: Tensor) -> tuple[Tensor, list[Tensor]]:
        self.read: list[Tensor] = []
        return super().run(inputs)

    def _block(self, slot: int, x: Tensor) -> Tensor:
        self.read.append(x)
        return super()._block(slot, x)


@torch.enable_grad()
def slot_scores(population: Population, batches: Minibatches) -> SlotScores:
    """Score every slot of every row as it is, on the first of some minibatches; nothing changes."""
    passes = _Noting(population, training_plan(population), training=True)
    inputs, labels = batches.batch(0, 0, len(population))
    logits, outputs = passes.run(inputs)
    loss = cross_entropy(logits[: len(population)], labels).sum()
    parts = [_block_parameters(passes, slot) for slot in range(len(outputs))]
    wanted = [*outputs, *(parameter for part in parts for parameter in part.values())]
    grads = iter(torch.autograd.grad(loss, wanted, materialize_grads=True))
    by_output = [next(grads) for _ in outputs]
    steps = [{name: next(grads) for name in part} for part in parts]
    blocks = zip(passes.read, outputs, by_output, parts, steps, strict=True)
    found = [_scores(passes, slot, *(_detached(one) for one in block)) for slot, block in enumerate(blocks)]
    return SlotScores(*(torch.stack(column, dim=1) for column in zip(*found, strict=True)))


def _detached(given: Any) -> Any:
    return {name: one.detach() for name, one in given.items()} if isinstance(given, dict) else given.detach()


def _block_parameters(passes: Passes, slot: int) -> Params:
    return {name: passes.body[number] for name, number in passes.engine.body_layout.part(f"blocks.{slot}")}


def _scores(
    passes: Passes, slot: int, x: Tensor, h: Tensor, g: Tensor, params: Params, steps: Params
) -> tuple[Tensor, ...]:
    """Of one slot, [n] each, in the order of `SlotScores`; `steps` are gradients by the block's parameters."""
    n = len(passes.population)
    moved = _rows(passes, _own_step(passes, slot, _first(passes, x, n), params, steps), n)
    h, g = _rows(passes, h, n), _rows(passes, g, n)
    share = (g * moved).sum(dim=(1, 2)) / (moved * moved).sum(dim=(1, 2)).clamp(min=torch.finfo(g.dtype).tiny)
    x, units = _read(passes, x, n, h.shape[1]), h.std(dim=1) > 0
    r, samples = g - share[:, None, None] * moved, h.shape[1]
    missing, beyond = x.mT @ g, x.mT @ r  # the gradient is that of a mean, so sums over samples are expectations
    whitened = _whitened(x, beyond)
    gain = _whitened(g * samples, whitened.mT)
    rank = torch.linalg.matrix_rank(h - h.mean(dim=1, keepdim=True), rtol=RANK_TOLERANCE)
    return (
        torch.linalg.matrix_norm(missing, ord=2),
        missing.abs().amax(dim=(1, 2)),
        torch.linalg.matrix_norm(whitened, ord=2),
        gain.square().sum(dim=(1, 2)),
        rank / units.sum(dim=1).clamp(min=1),
    )


def _own_step(passes: Passes, slot: int, x: Tensor, params: Params, steps: Params) -> Tensor:
    """How the block's output moves along the gradient of its own parameters."""
    leaves = {name: value.requires_grad_() for name, value in params.items()}
    h = passes.host.lesioned_block(slot, leaves, x, passes.population.lesions[slot])
    # The derivative along a direction as that of a derivative backwards: group norms have no other that works here.
    back = torch.zeros_like(h).requires_grad_()
    reached = torch.autograd.grad(h, list(leaves.values()), back, create_graph=True, materialize_grads=True)
    return torch.autograd.grad(reached, back, list(steps.values()), materialize_grads=True)[0]


def _whitened(x: Tensor, product: Tensor) -> Tensor:
    """A product [n, units, ...] with its units scaled and turned so that those of x [n, samples, units] are white."""
    second = x.mT @ x / x.shape[1]
    size = second.diagonal(dim1=1, dim2=2).mean(dim=1).clamp(min=torch.finfo(x.dtype).tiny)
    ridge = DAMPING * size[:, None, None] * torch.eye(second.shape[1], dtype=x.dtype, device=x.device)
    factor = torch.linalg.cholesky(second + ridge)
    scaled: Tensor = torch.linalg.solve_triangular(factor, product, upper=False)
    return scaled


def _first(passes: Passes, x: Tensor, n: int) -> Tensor:
    """Activations of the rows as they are, without those of variants."""
    return x.narrow(passes.activations.row_axis, 0, n)


def _rows(passes: Passes, h: Tensor, n: int) -> Tensor:
    """Activations as [n, samples and positions, units]."""
    plain = passes.activations.models_first(_first(passes, h, n))
    return plain.flatten(3).transpose(2, 3).flatten(1, 2) if plain.dim() == 5 else plain.flatten(1, -2)


def _read(passes: Passes, x: Tensor, n: int, samples: int) -> Tensor:
    """What a block reads, one row for each of what it gives."""
    plain = passes.activations.models_first(_first(passes, x, n))
    if plain.dim() == 5:
        side = round((samples / plain.shape[1]) ** 0.5)
        pooled = adaptive_avg_pool2d(plain.flatten(0, 1), side)
        return pooled.flatten(2).mT.reshape(n, samples, -1)
    return plain.flatten(1, -2)
