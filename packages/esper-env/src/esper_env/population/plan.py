"""Which variants of which rows a pass computes, and which seeds act where.

A branch is a row of the population with some of its seeds switched on or off. The base pass computes every row as it
is; a branch pass computes variants, each only from the first slot where it differs from its base: the activations
before that are the base's own. Ablations, prospects and the shadow training of incubating seeds are all branches.
Plans are built on the host between steps; passes never ask the device for a shape.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper_env.blueprints.base import Blueprint
from esper_env.population.cohort import Cohort
from esper_env.population.layout import Layout
from esper_env.population.population import EMPTY, Blend, Population

Ints = NDArray[np.int64]


def live_sets(population: Population) -> Ints:
    """Each row's live seeds as a bit set over slots, [n]."""
    return bit_sets(population.census.live)


def bit_sets(flags: NDArray[np.bool_]) -> Ints:
    """Flags [n, slots] as bit sets [n]."""
    sets: Ints = (flags.astype(np.int64) << np.arange(flags.shape[1])).sum(axis=1)
    return sets


@dataclass(frozen=True)
class SeedGroup:
    """Seeds of one cohort that act in a pass."""

    blueprint: Blueprint
    layout: Layout
    key: tuple[int, int, bool]
    index: Tensor | None  # positions in the cohort; None means all members in order, with gradient
    count: int


@dataclass(frozen=True)
class Graft:
    """The seeds that act at one slot, grouped by cohort."""

    groups: tuple[SeedGroup, ...]
    rows: Tensor  # [m], the pass's row of each seed
    base_rows: Tensor  # [m], the population's row of each seed
    forced: Tensor | None  # [m], true where alpha is one although the seed incubates
    multiply: Tensor | None  # [m], one where the blend is MULTIPLY; None if nowhere
    gate: Tensor | None  # [m], one where the blend is GATE; None if nowhere


@dataclass(frozen=True)
class Plan:
    """The rows of a pass, in order of the slot where they start, and the seeds that act on them."""

    rows: Tensor  # [v], the population's row of each
    count: int
    starts: tuple[int, ...]  # per slot, how many rows started before it; the last entry is all
    grafts: tuple[Graft | None, ...]  # per slot
    is_base: bool  # all rows as they are, from the input on
    lesioned: tuple[bool, ...]  # per slot, whether any of its rows is narrowed there


def base_plan(population: Population) -> Plan:
    """Every row with its live seeds."""
    rows = np.arange(len(population))
    return _plan(population, rows, live_sets(population), np.zeros_like(rows), is_base=True)


def branch_plan(population: Population, rows: Ints, switched_on: Ints) -> tuple[Plan | None, Ints]:
    """Variants of rows, given as bit sets of acting seeds that differ from the live ones.

    Returns:
        The plan (None if there is no variant) and the order in which it computes them.
    """
    if not len(rows):
        return None, np.zeros(0, dtype=np.int64)
    differing = switched_on ^ live_sets(population)[rows]
    start = np.log2(differing & -differing).astype(np.int64)
    kind = population.census.blueprint[rows, start]
    order = np.lexsort((rows, kind, start))
    return _plan(population, rows[order], switched_on[order], start[order], is_base=False), order


def incubation_plan(population: Population) -> Plan | None:
    """One variant per incubating seed, with that seed alone switched on besides the live ones."""
    rows, slots = np.nonzero((population.census.blueprint != EMPTY) & ~population.census.live)
    plan, _ = branch_plan(population, rows, live_sets(population)[rows] | (1 << slots))
    return plan


def _plan(population: Population, rows: Ints, on: Ints, start: Ints, is_base: bool) -> Plan:
    slots = range(len(population.engine.host.slots))
    starts = (*(int((start < slot).sum()) for slot in slots), len(rows))
    upto = [len(rows)] * len(slots) if is_base else [*starts[1:]]
    grafts = tuple(_graft(population, slot, rows[: upto[slot]], on[: upto[slot]], is_base) for slot in slots)
    lesioned = tuple(bool(population.lesioned[rows, slot].any()) for slot in slots)
    return Plan(_tensor(population, rows), len(rows), starts, grafts, is_base, lesioned)


def _graft(population: Population, slot: int, rows: Ints, on: Ints, is_base: bool) -> Graft | None:
    acting = (on >> slot) & 1 == 1
    groups, members = [], []
    for key, cohort in sorted(population.seeds.items()):
        if key[0] == slot:
            positions = _positions(cohort, len(population))[rows]
            chosen = np.flatnonzero(acting & (positions >= 0))
            if len(chosen):
                groups.append(_group(population, key, cohort, positions[chosen], is_base))
                members.append(chosen)
    if not groups:
        return None
    where = np.concatenate(members)
    census = population.census
    blend, forced = census.blend[rows[where], slot], ~census.live[rows[where], slot]
    return Graft(
        groups=tuple(groups),
        rows=_tensor(population, where),
        base_rows=_tensor(population, rows[where]),
        forced=_tensor(population, forced) if forced.any() else None,
        multiply=_flags(population, blend == Blend.MULTIPLY),
        gate=_flags(population, blend == Blend.GATE),
    )


def _group(population: Population, key: tuple[int, int, bool], cohort: Cohort, index: Ints, is_base: bool) -> SeedGroup:
    slot, kind, live = key
    # The base pass trains live seeds, a shadow pass trains incubating ones; any other seed only takes part.
    whole = len(index) == len(cohort) and bool((np.diff(index) > 0).all()) and live == is_base
    layout = population.engine.seed_layouts[slot][kind]
    positions = None if whole else _tensor(population, index)
    return SeedGroup(population.engine.blueprints[kind], layout, key, positions, len(index))


def _positions(cohort: Cohort, n: int) -> Ints:
    positions = np.full(n, -1)
    positions[cohort.rows] = np.arange(len(cohort))
    return positions


def _tensor(population: Population, values: NDArray[np.generic]) -> Tensor:
    return torch.from_numpy(values).to(population.engine.device)


def _flags(population: Population, flags: NDArray[np.bool_]) -> Tensor | None:
    return _tensor(population, flags).to(population.engine.dtype) if flags.any() else None
