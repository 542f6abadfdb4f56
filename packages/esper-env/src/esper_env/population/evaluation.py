"""Evaluation: loss and metric of every row, and of its variants with seeds switched on or off.

Equal variants are computed once.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from esper_env.fused.layers import cross_entropy
from esper_env.population.dense import DensePass
from esper_env.population.passes import Passes
from esper_env.population.plan import Ints, bit_sets, variant_plan
from esper_env.population.population import EMPTY, Population, joined


@dataclass(frozen=True)
class Evaluation:
    """Validation of each row; the task says what the metric is, always in [0, 1]."""

    loss: Tensor  # [n]
    metric: Tensor  # [n]
    contribution: Tensor  # [n, slots], metric with the live seed minus without it; zero where none lives
    prospect: Tensor  # [n, slots], metric with the incubating seed minus without it; zero where none incubates
    all_off: Tensor  # [n], metric of the host without any seed
    committed: Tensor  # [n], metric with the committed seeds only


def evaluate(population: Population, inputs: Tensor, labels: Tensor) -> Evaluation:
    """Evaluate every row on the same samples."""
    bounds = population.tiles(len(inputs))
    return joined([_evaluate_tile(population.window(start, stop), inputs, labels) for start, stop in bounds])


@torch.no_grad()
def _evaluate_tile(tile: Population, inputs: Tensor, labels: Tensor) -> Evaluation:
    rows, sets, where = _variants(tile)
    loss, score = _scores(tile, rows, sets, inputs, labels)
    slots, base = tile.alpha.shape[1], score[: len(tile), None]
    found = score[torch.from_numpy(where).to(score.device)]
    without, within, all_off, committed = found.split([slots, slots, 1, 1], dim=1)
    return Evaluation(loss, base[:, 0], base - without, within - base, all_off[:, 0], committed[:, 0])


def _variants(tile: Population) -> tuple[Ints, Ints, Ints]:
    """The variants that are wanted besides the rows as they are, and where each row finds its own.

    Returns:
        The row and the bit set of acting seeds of each variant, and [n, 2 * slots + 2] indices into the rows as they
        are followed by those variants: without each live seed, with each incubating one, without any, committed only.
    """
    n, slots = tile.census.blueprint.shape
    live, bits = bit_sets(tile.census.live)[:, None], 1 << np.arange(slots)
    incubating = (tile.census.blueprint != EMPTY) & ~tile.census.live
    committed = bit_sets(tile.census.committed)[:, None]
    wanted = np.concatenate([live & ~bits, live | bits * incubating, np.zeros_like(live), committed], axis=1)
    first = np.arange(n)[:, None] << slots
    fresh = np.setdiff1d(first + wanted, first + live)
    known = np.concatenate([(first + live)[:, 0], fresh])
    order = np.argsort(known)
    where = order[np.searchsorted(known, first + wanted, sorter=order)]
    return fresh >> slots, fresh & ((1 << slots) - 1), where


def _scores(tile: Population, rows: Ints, sets: Ints, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Loss of the rows as they are, and metric of those and of all variants."""
    plan, order = variant_plan(tile, rows, sets)
    every = inputs.expand(len(tile), *inputs.shape)
    logits = (
        DensePass(tile, plan, training=False).run(every).mT
        if tile.engine.dense_kinds
        else Passes(tile, plan, training=False).run(every)[0]
    )
    score = tile.engine.metric(logits, labels.expand(plan.count, *labels.shape))
    loss = cross_entropy(logits[: len(tile)], labels.expand(len(tile), *labels.shape))
    back = torch.from_numpy(np.concatenate([np.arange(len(tile)), len(tile) + np.argsort(order)])).to(score.device)
    return loss, score.index_select(0, back)
