"""Evaluation: loss and metric of every row, and of its variants with seeds switched on or off.

Equal variants are computed once.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper_env.fused.layers import cross_entropy, mean_over, right_answers
from esper_env.population.dense import DensePass
from esper_env.population.passes import Passes
from esper_env.population.plan import Ints, Plan, bit_sets, variant_plan
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
    right: Tensor  # [n, samples], which answers are right, if only some samples count; else [n, 0]


def evaluate(population: Population, inputs: Tensor, labels: Tensor, counted: Tensor | None = None) -> Evaluation:
    """Evaluate every row on the same samples, or on those of them that count for it, [n, samples]."""
    n = len(population)
    return _evaluate(population, inputs.expand(n, *inputs.shape), labels.expand(n, *labels.shape), None, counted)


def glimpse(population: Population, inputs: Tensor, labels: Tensor, slot: Ints) -> Evaluation:
    """Evaluate every row on samples of its own, [n, samples, ...], and of its seeds only the one at a slot, [n].

    What is not measured is as if no seed mattered: other contributions are zero, and the metrics without any seed and
    of the committed ones are that of the row.
    """
    return _evaluate(population, inputs, labels, slot, None)


def _evaluate(
    population: Population, inputs: Tensor, labels: Tensor, slot: Ints | None, counted: Tensor | None
) -> Evaluation:
    spans = [slice(*bounds) for bounds in population.tiles(inputs.shape[1])]
    tiles = [(population.window(span.start, span.stop), inputs[span], labels[span]) for span in spans]
    some = [(None if slot is None else slot[span], None if counted is None else counted[span]) for span in spans]
    return joined([_evaluate_tile(*tile, *own) for tile, own in zip(tiles, some, strict=True)])


@torch.no_grad()
def _evaluate_tile(
    tile: Population, inputs: Tensor, labels: Tensor, slot: Ints | None, counted: Tensor | None
) -> Evaluation:
    slots, asked = tile.alpha.shape[1], None
    if slot is not None:
        seen = slot[:, None] == np.arange(slots)
        # A seed that incubates acts in the variant that asks for it, and is not needed where none does.
        tile = tile.concealing((tile.census.blueprint != EMPTY) & ~tile.census.live & ~seen)
        asked = np.concatenate([seen, seen, np.zeros((len(tile), 2), dtype=np.bool_)], axis=1)
    rows, sets, where = _variants(tile, asked)
    loss, score, right = _scores(tile, rows, sets, inputs, labels, counted)
    base = score[: len(tile), None]
    found = score[torch.from_numpy(where).to(score.device)]
    without, within, all_off, committed = found.split([slots, slots, 1, 1], dim=1)
    return Evaluation(loss, base[:, 0], base - without, within - base, all_off[:, 0], committed[:, 0], right)


def _variants(tile: Population, asked: NDArray[np.bool_] | None) -> tuple[Ints, Ints, Ints]:
    """The variants that are wanted besides the rows as they are, and where each row finds its own.

    Args:
        tile: The rows.
        asked: Which variants of which row are wanted, in the order below; None for all.

    Returns:
        The row and the bit set of acting seeds of each variant, and [n, 2 * slots + 2] indices into the rows as they
        are followed by those variants: without each live seed, with each incubating one, without any, committed only.
    """
    n, slots = tile.census.blueprint.shape
    live, bits = bit_sets(tile.census.live)[:, None], 1 << np.arange(slots)
    incubating = (tile.census.blueprint != EMPTY) & ~tile.census.live
    committed = bit_sets(tile.census.committed)[:, None]
    wanted = np.concatenate([live & ~bits, live | bits * incubating, np.zeros_like(live), committed], axis=1)
    wanted = wanted if asked is None else np.where(asked, wanted, live)
    first = np.arange(n)[:, None] << slots
    fresh = np.setdiff1d(first + wanted, first + live)
    known = np.concatenate([(first + live)[:, 0], fresh])
    order = np.argsort(known)
    where = order[np.searchsorted(known, first + wanted, sorter=order)]
    return fresh >> slots, fresh & ((1 << slots) - 1), where


def _scores(
    tile: Population, rows: Ints, sets: Ints, inputs: Tensor, labels: Tensor, counted: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss of the rows as they are, metric of those and of all variants, and which answers of the rows are right."""
    plan, order = variant_plan(tile, rows, sets)
    logits = (
        DensePass(tile, plan, training=False).run(inputs).mT
        if tile.engine.dense_kinds
        else Passes(tile, plan, training=False).run(inputs)[0]
    )
    if counted is None:
        score, right = tile.engine.metric(logits, _of_variants(labels, plan)), labels.new_empty(len(tile), 0).bool()
    else:
        answers = right_answers(logits, _of_variants(labels, plan))
        score = mean_over(answers.to(logits.dtype), _of_variants(counted, plan))
        right = answers[: len(tile)]
    loss = cross_entropy(logits[: len(tile)], labels, counted)
    back = torch.from_numpy(np.concatenate([np.arange(len(tile)), len(tile) + np.argsort(order)])).to(score.device)
    return loss, score.index_select(0, back), right


def _of_variants(labels: Tensor, plan: Plan) -> Tensor:
    """The labels of every row of a plan; those that all rows share are not copied."""
    if labels.stride(0) == 0:
        return labels[:1].expand(plan.count, *labels.shape[1:])
    return labels if plan.variants is None else torch.cat([labels, labels.index_select(0, plan.variants)])
