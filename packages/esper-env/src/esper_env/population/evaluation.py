"""Evaluation: loss and metric of every row, and of its variants with seeds switched on or off.

Equal variants are computed once.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper_env.fused.layers import cross_entropy
from esper_env.population.passes import Passes
from esper_env.population.plan import Ints, bit_sets, variant_plan
from esper_env.population.population import EMPTY, Population


@dataclass(frozen=True)
class Evaluation:
    """Validation of each row; the task says what the metric is, always in [0, 1]."""

    loss: Tensor  # [n]
    metric: Tensor  # [n]
    contribution: Tensor  # [n, slots], metric with the live seed minus without it; zero where none lives
    prospect: Tensor  # [n, slots], metric with the incubating seed minus without it; zero where none incubates
    all_off: Tensor  # [n], metric of the host without any seed
    committed: Tensor  # [n], metric with the committed seeds only


@dataclass(frozen=True)
class _Variants:
    """The variants that an evaluation needs, and where each quantity finds its own."""

    rows: Ints
    sets: Ints
    without: Ints  # [n, slots], index of the variant (the first n are the rows as they are)
    within: Ints  # [n, slots]
    all_off: Ints  # [n]
    committed: Ints  # [n]


def evaluate(population: Population, inputs: Tensor, labels: Tensor) -> Evaluation:
    """Evaluate every row on the same samples."""
    tiles = [
        _evaluate_tile(population.window(start, stop), inputs, labels) for start, stop in population.tiles(len(inputs))
    ]
    fields = zip(*(vars(tile).values() for tile in tiles), strict=True)
    return tiles[0] if len(tiles) == 1 else Evaluation(*(torch.cat(parts) for parts in fields))


@torch.no_grad()
def _evaluate_tile(tile: Population, inputs: Tensor, labels: Tensor) -> Evaluation:
    variants = _variants(tile)
    loss, score = _scores(tile, variants, inputs, labels)
    n = len(tile)
    pick = [torch.from_numpy(index).to(score.device) for index in _indices(variants)]
    without, within, all_off, committed = (score[index] for index in pick)
    base = score[:n]
    return Evaluation(loss, base, base[:, None] - without, within - base[:, None], all_off, committed)


def _indices(variants: _Variants) -> tuple[Ints, Ints, Ints, Ints]:
    return variants.without, variants.within, variants.all_off, variants.committed


def _variants(tile: Population) -> _Variants:
    n, slots = tile.census.blueprint.shape
    live, bits = bit_sets(tile.census.live), 1 << np.arange(slots)
    incubating = (tile.census.blueprint != EMPTY) & ~tile.census.live
    without = live[:, None] & ~bits
    within = np.where(incubating, live[:, None] | bits, live[:, None])
    committed = bit_sets(tile.census.committed)
    wanted = np.concatenate([without, within, np.zeros((n, 1), dtype=np.int64), committed[:, None]], axis=1)
    keys = wanted + (np.arange(n)[:, None] << slots)
    base = live + (np.arange(n) << slots)
    fresh = np.setdiff1d(keys, base)
    where = _places(keys, base, fresh)
    return _Variants(
        rows=fresh >> slots,
        sets=fresh & ((1 << slots) - 1),
        without=where[:, :slots],
        within=where[:, slots : 2 * slots],
        all_off=where[:, -2],
        committed=where[:, -1],
    )


def _places(keys: Ints, base: Ints, fresh: Ints) -> Ints:
    """Index of each key in base followed by fresh."""
    known = np.concatenate([base, fresh])
    order = np.argsort(known)
    return order[np.searchsorted(known, keys, sorter=order)]


def _scores(tile: Population, variants: _Variants, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Loss of the rows as they are, and metric of those and of all variants."""
    plan, order = variant_plan(tile, variants.rows, variants.sets)
    logits, _ = Passes(tile, plan, training=False).run(inputs.expand(len(tile), *inputs.shape))
    score = tile.engine.metric(logits, labels.expand(plan.count, *labels.shape))
    loss = cross_entropy(logits[: len(tile)], labels.expand(len(tile), *labels.shape))
    back = torch.from_numpy(np.concatenate([np.arange(len(tile)), len(tile) + _inverse(order)])).to(score.device)
    return loss, score.index_select(0, back)


def _inverse(order: Ints) -> NDArray[np.int64]:
    inverse = np.empty_like(order)
    inverse[order] = np.arange(len(order))
    return inverse
