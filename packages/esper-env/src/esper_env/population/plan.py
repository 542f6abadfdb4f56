"""Which variants of which rows a pass computes, and which seeds act where.

A pass computes every row as it is, and besides them variants: a row with other seeds switched on. A variant starts
at the first slot where it differs from its row and takes the activations before that from it. Ablations, prospects and
the training of incubating seeds are all variants, so every pass has one fused call per block and per (slot, blueprint).
Plans are built on the host between steps; passes never ask the device for a shape.

Three rows, two slots. Row 0 has no seed; rows 1 and 2 have a live one in slot 0; in slot 1 of row 2 one incubates:

    row 0:  --[block 0]-------[block 1]-------head
    row 1:  --[block 0]+live--[block 1]-------head
    row 2:  --[block 0]+live--[block 1]-------head    as it is: the seed in slot 1 does not act
    row 3:                             +new---head    a variant of row 2 that starts at slot 1, where the seed learns

>>> from esper_env.blueprints import BLUEPRINTS
>>> from esper_env.fused.optimizers import SGD
>>> from esper_env.hosts import MLPHost
>>> from esper_env.population.population import Engine
>>> population = Population.unborn(Engine(MLPHost(4, (3, 3), 2), (BLUEPRINTS["low_rank"],), SGD()), 3)
>>> population.rebirth(np.arange(3), torch.arange(3), lr=torch.full((3,), 0.1), live_units=np.full((3, 2), 3))
>>> rows, slots, none = np.array([1, 2, 2]), np.array([0, 0, 1]), np.zeros(3, dtype=np.int64)
>>> population.germinate(rows, slots, none, none, keys=torch.tensor(rows), steps=torch.tensor(none))
>>> population.advance(rows[:2], slots[:2])
>>> population.alpha[rows[:2], slots[:2]] = 1.0

The plan has four rows, of which three are under way before either slot; the fourth starts at slot 1:

>>> plan = training_plan(population)
>>> plan.count, plan.under_way, plan.variants, plan.starting
(4, (3, 3), tensor([2]), (None, tensor([2])))

At slot 0 two seeds act, one fused call for both. At slot 1 the newborn acts in row 3, as if its alpha were one; it
reads what row 2 has there, and no gradient goes back from it:

>>> live, newborn = plan.grafts
>>> live.rows, live.sources, live.hosts, live.attached, live.forced
(tensor([1, 2]), tensor([1, 2]), tensor([1, 2]), None, None)
>>> newborn.rows, newborn.sources, newborn.hosts, newborn.attached, newborn.forced
(tensor([3]), tensor([2]), tensor([2]), tensor([0.]), tensor([True]))

In an evaluation there are variants with seeds switched off, too. Row 2 without its live seed starts at slot 0, before
the one with the newborn, whatever the order they are asked for in:

>>> plan, order = variant_plan(population, rows=np.array([2, 2]), switched_on=np.array([0b11, 0b00]))
>>> order, plan.count, plan.under_way, plan.starting
(array([1, 0]), 5, (3, 4), (tensor([2]), tensor([2])))
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper_env.blueprints.blends import Blend
from esper_env.population.population import EMPTY, Population, SeedKey

Ints = NDArray[np.int64]


def bit_sets(flags: NDArray[np.bool_]) -> Ints:
    """Flags [n, slots] as bit sets over slots, [n]."""
    sets: Ints = (flags.astype(np.int64) << np.arange(flags.shape[1])).sum(axis=1)
    return sets


@dataclass(frozen=True)
class SeedGroup:
    """Seeds of one cohort in a pass."""

    key: SeedKey
    again: Tensor | None  # None: every member, each with gradient; else positions of members that act once more
    count: int


@dataclass(frozen=True)
class Graft:
    """The seeds that act at one slot, grouped by cohort."""

    groups: tuple[SeedGroup, ...]
    rows: Tensor  # [m], the pass's row of each seed
    sources: (
        Tensor  # [m], the pass's row that each seed's input comes from: its own, or that of its host if it starts here
    )
    attached: Tensor | None  # [m], one where the input passes gradient on, that is, is its own; None if everywhere
    hosts: Tensor  # [m], the population's row of each seed
    forced: Tensor | None  # [m], true where the seed incubates and acts fully all the same; None if nowhere
    multiply: Tensor | None  # which of the m have the blend MULTIPLY; None if none has
    gate: Tensor | None  # [m], one where the blend is GATE; None if nowhere


@dataclass(frozen=True)
class Plan:
    """The rows of a pass: those of the population, then the variants by the slot where they start."""

    variants: Tensor | None  # [v], the population's row of each variant; None if there is none
    count: int  # of all rows
    under_way: tuple[int, ...]  # per slot, how many rows have started before it
    starting: tuple[Tensor | None, ...]  # per slot, the population's row of each variant that starts there
    grafts: tuple[Graft | None, ...]  # per slot
    lesioned: tuple[bool, ...]  # per slot, whether any row is lesioned there


def training_plan(population: Population) -> Plan:
    """One variant per incubating seed, with that seed alone switched on besides the live ones."""
    rows, slots = np.nonzero((population.census.blueprint != EMPTY) & ~population.census.live)
    plan, _ = variant_plan(population, rows, bit_sets(population.census.live)[rows] | (1 << slots))
    return plan


def variant_plan(population: Population, rows: Ints, switched_on: Ints) -> tuple[Plan, Ints]:
    """A plan with variants of rows, given as bit sets of acting seeds that differ from the live ones.

    Every incubating seed must act in exactly one variant.

    Returns:
        The plan, and the order in which it computes the variants.
    """
    live = bit_sets(population.census.live)
    differing = switched_on ^ live[rows]
    start = np.log2(differing & -differing).astype(np.int64)
    order = np.argsort(start, kind="stable")
    everyone = np.arange(len(population))
    hosts = np.concatenate([everyone, rows[order]])
    acting = np.concatenate([live, switched_on[order]])
    begin = np.concatenate([np.full(len(population), -1), start[order]])
    return _plan(population, hosts, acting, begin), order


def _plan(population: Population, hosts: Ints, acting: Ints, begin: Ints) -> Plan:
    n, slots = population.census.blueprint.shape
    started = [int(np.searchsorted(begin, slot)) for slot in range(slots + 1)]
    spans = [hosts[started[slot] : started[slot + 1]] for slot in range(slots)]
    upto = [slice(0, started[slot + 1]) for slot in range(slots)]
    return Plan(
        variants=_tensor(population, hosts[n:]) if len(hosts) > n else None,
        count=len(hosts),
        under_way=tuple(started[:slots]),
        starting=tuple(_tensor(population, span) if len(span) else None for span in spans),
        grafts=tuple(
            _graft(population, slot, hosts[upto[slot]], acting[upto[slot]], started[slot]) for slot in range(slots)
        ),
        lesioned=tuple(bool(population.lesioned[:, slot].any()) for slot in range(slots)),
    )


def _graft(population: Population, slot: int, hosts: Ints, acting: Ints, under_way: int) -> Graft | None:
    census = population.census
    own, more = [], []  # of groups, each with the pass's rows: all members first, then those that act once more
    acts = (acting >> slot) & 1 == 1
    for key in sorted((key for key in population.seeds if key[0] == slot), key=population.engine.order):
        rows = np.flatnonzero(acts & (census.blueprint[hosts, slot] == key[1]))
        once = (rows < len(population)) | ~census.live[hosts[rows], slot]
        first, again = rows[once], rows[~once]
        own.append((SeedGroup(key, None, len(first)), first[np.argsort(hosts[first])]))
        if len(again):
            positions = np.searchsorted(population.seeds[key].rows, hosts[again])
            more.append((SeedGroup(key, _tensor(population, positions), len(again)), again))
    if not own:
        return None
    groups, members = zip(*own, *more, strict=True)
    where = np.concatenate(members)
    under = where < under_way
    blend, forced = census.blend[hosts[where], slot], ~census.live[hosts[where], slot]
    multiplied = np.flatnonzero(blend == Blend.MULTIPLY)
    return Graft(
        groups=groups,
        rows=_tensor(population, where),
        sources=_tensor(population, np.where(under, where, hosts[where])),
        attached=None if under.all() else _flags(population, under),
        hosts=_tensor(population, hosts[where]),
        forced=_tensor(population, forced) if forced.any() else None,
        multiply=_tensor(population, multiplied) if len(multiplied) else None,
        gate=_flags(population, blend == Blend.GATE) if (blend == Blend.GATE).any() else None,
    )


def _tensor(population: Population, values: NDArray[np.generic]) -> Tensor:
    return torch.from_numpy(values).to(population.engine.device)


def _flags(population: Population, flags: NDArray[np.bool_]) -> Tensor:
    return _tensor(population, flags).to(population.engine.dtype)
