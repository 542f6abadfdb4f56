"""Row operations on cohorts equal operations on a dictionary of seeds, whatever their order."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from engine_tools import (
    HOSTS,
    Place,
    Stage,
    assortment,
    build,
    clone,
    cohort_of,
    columns,
    episode_keys,
    full_width,
    grow,
    largest_difference,
    logits,
    minibatches,
    occupied,
    unsilence,
    validation,
)
from esper_env.blueprints import SeedTemplate
from esper_env.fused.optimizers import AdamW
from esper_env.fused.randomness import Purpose
from esper_env.population.population import EMPTY, Blend, Population
from esper_env.population.training import train_epoch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

ROWS, SLOTS, KINDS = 6, 3, 5
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["germinate", "advance", "commit", "remove", "rebirth"]),
        st.lists(st.tuples(st.integers(0, ROWS - 1), st.integers(0, SLOTS - 1)), min_size=1, max_size=8, unique=True),
        st.integers(0, 1000),
    ),
    max_size=25,
)


@dataclass
class ModelSeed:
    kind: int
    blend: int
    tensors: list[Tensor]
    live: bool = False
    committed: bool = False


Model = dict[tuple[int, int], ModelSeed]
Pairs = list[tuple[int, int]]


def apply(population: Population, model: Model, name: str, pairs: Pairs, number: int) -> None:
    """One operation on both, on those of the places where it is allowed."""
    empty = [pair for pair in pairs if pair not in model]
    incubating = [pair for pair in pairs if pair in model and not model[pair].live]
    live = [pair for pair in pairs if pair in model and model[pair].live]
    if name == "germinate":
        germinate(population, model, empty, number)
    elif name == "advance":
        population.advance(*split(incubating))
        for pair in incubating:
            model[pair].live = True
    elif name == "commit":
        population.commit(*split(live))
        for pair in live:
            model[pair].committed = True
    elif name == "remove":
        population.remove(*split(incubating + live))
        for pair in incubating + live:
            del model[pair]
    else:
        rebirth(population, model, sorted({row for row, _ in pairs}), number)


def split(pairs: Pairs) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def germinate(population: Population, model: Model, pairs: Pairs, number: int) -> None:
    rows, slots = split(pairs)
    rng = np.random.default_rng(number)
    kinds, blends = rng.integers(KINDS, size=len(rows)), rng.integers(len(Blend), size=len(rows))
    keys = episode_keys(ROWS)
    population.germinate(rows, slots, kinds, blends, keys[rows], torch.full((len(rows),), number))
    for (row, slot), kind, blend in zip(pairs, kinds.tolist(), blends.tolist(), strict=True):
        layout = population.engine.seed_layouts[slot][kind]
        steps = torch.tensor([number])
        values = layout.initial(keys[[row]], Purpose.SEED_WEIGHTS, steps, slot, population.engine.dtype)
        model[row, slot] = ModelSeed(kind, blend, [values, *population.engine.optimizer.initial(values)])


def rebirth(population: Population, model: Model, rows: list[int], number: int) -> None:
    index = np.array(rows)[::-1].copy()
    population.rebirth(
        index, torch.from_numpy(index) + number, torch.full((len(rows),), 0.1), full_width("digits_mlp", len(rows))
    )
    for pair in [pair for pair in model if pair[0] in rows]:
        del model[pair]


def learn(population: Population, model: Model, amount: int) -> None:
    """Change every value and every optimiser state, each seed by its own amount."""
    for key, cohort in population.seeds.items():
        for position, row in enumerate(cohort.rows.tolist()):
            for number, tensor in enumerate(cohort.tensors()):
                tensor[position] += amount + 10 * row + 100 * key[0] + number
    for (row, slot), seed in model.items():
        for number, tensor in enumerate(seed.tensors):
            tensor += amount + 10 * row + 100 * slot + number


def assert_same(population: Population, model: Model) -> None:
    census = population.census
    assert set(occupied(population)) == model.keys()
    sizes = {key: len(cohort) for key, cohort in population.seeds.items()}
    assert sum(sizes.values()) == len(model)
    assert all(size > 0 for size in sizes.values())
    for (row, slot), seed in model.items():
        place = (row, slot)
        assert (census.blueprint[place], census.blend[place]) == (seed.kind, seed.blend)
        assert (census.live[place], census.committed[place]) == (seed.live, seed.committed)
        cohort = cohort_of(population, row, slot)
        assert (np.diff(cohort.rows) > 0).all()
        position = cohort.rows.tolist().index(row)
        for mine, theirs in zip(seed.tensors, cohort.tensors(), strict=True):
            assert torch.equal(theirs[position], mine[0])
    vacant = census.blueprint == EMPTY
    assert not (census.live | census.committed | (census.blend != 0))[vacant].any()
    assert not population.alpha[torch.from_numpy(vacant)].any()


@settings(max_examples=40, deadline=None)
@given(OPERATIONS)
def test_row_operations_equal_a_dictionary_of_seeds(operations: list[tuple[str, Pairs, int]]) -> None:
    population = build("digits_mlp", ROWS, optimizer=AdamW())
    model: Model = {}
    for name, pairs, number in operations:
        apply(population, model, name, pairs, number)
        learn(population, model, number)
        population.alpha[np.nonzero(population.census.live)] = 0.5
        assert_same(population, model)


@pytest.mark.parametrize("task", HOSTS)
@pytest.mark.parametrize("stage", [Stage.INCUBATING, Stage.BLENDING, Stage.HOLDING])
def test_a_pruned_seed_leaves_nothing_behind(task: str, stage: Stage) -> None:
    """From the moment of removal the population equals one that never had the seed, with the same host."""
    population = build(task, 6)
    keep = [place for place in assortment(population) if place.row % 2]
    grow(population, keep)
    unsilence(population)
    never = clone(population)
    rows, slots = columns(place for place in assortment(population, [stage], empty=0.0) if place.row % 2 == 0)
    count = len(rows)
    keys, steps = episode_keys(6)[rows], torch.zeros(count, dtype=torch.int64)
    population.germinate(rows, slots, np.arange(count) % KINDS, np.arange(count) % len(Blend), keys, steps)
    if stage is not Stage.INCUBATING:
        population.advance(rows, slots)
        population.alpha[rows, slots] = 0.5
    unsilence(population)
    for key, cohort in never.seeds.items():  # what stays moved too
        cohort.values.copy_(population.seeds[key].take(cohort.rows).values)
    population.remove(rows, slots)
    assert population.seeds.keys() == never.seeds.keys()
    for name, table in vars(never.census).items():
        np.testing.assert_array_equal(getattr(population.census, name), table)
    assert torch.equal(population.alpha, never.alpha)
    inputs, _ = validation(task, population, 20)
    assert torch.equal(logits(population, inputs), logits(never, inputs))
    for each in (population, never):
        train_epoch(each, minibatches(task, each))
    assert largest_difference(population, never) == 0.0


def test_a_seed_planted_again_starts_afresh() -> None:
    population = build("digits_mlp", 2)
    rows, slots = np.array([0, 1]), np.array([1, 1])
    kinds, blends = np.array([2, 2]), np.array([2, 2])
    arguments = (rows, slots, kinds, blends, episode_keys(2), torch.tensor([4, 4]))
    population.germinate(*arguments)
    newborn = cohort_of(population, 0, 1).take(rows)
    train_epoch(population, minibatches("digits_mlp", population))
    assert not torch.equal(cohort_of(population, 0, 1).values, newborn.values)
    population.remove(rows, slots)
    population.germinate(*arguments)
    for again, first in zip(cohort_of(population, 0, 1).tensors(), newborn.tensors(), strict=True):
        assert torch.equal(again, first)


def test_rebirth_gives_the_host_that_a_new_population_has() -> None:
    old, new = build("digits_mlp", 4), build("digits_mlp", 4, keys=episode_keys(4, first=7))
    grow(old, assortment(old))
    train_epoch(old, minibatches("digits_mlp", old))
    others = old.body.values[[1, 3]].clone()
    rows = np.array([2, 0])
    old.rebirth(rows, episode_keys(4, first=7)[rows], torch.full((2,), 0.05), full_width("digits_mlp", 2))
    for ours, fresh in zip(old.body.tensors(), new.body.tensors(), strict=True):
        assert torch.equal(ours[[0, 2]], fresh[[0, 2]])
    assert torch.equal(old.body.values[[1, 3]], others)
    assert (old.census.blueprint[rows] == EMPTY).all()
    assert (old.census.blueprint[[1, 3]] != EMPTY).any()


@pytest.mark.parametrize("task", HOSTS)
def test_sizes_count_what_acts(task: str) -> None:
    """Parameters of the blueprint's module and of the layer scale, plus the gate's under GATE only."""
    population = build(task, 8)
    places = assortment(population)
    grow(population, places)
    sizes = population.seed_sizes()
    for place in places:
        slot = population.engine.host.slots[place.slot]
        seed = SeedTemplate(population.engine.blueprints[place.kind], slot)
        gate = slot.inputs[0] + 1 if place.blend is Blend.GATE else 0
        assert (
            sizes[place.row, place.slot]
            == sum(p.numel() for part in (seed.body, seed.last) for p in part.parameters()) + gate
        )
    assert not sizes[population.census.blueprint == EMPTY].any()


def test_an_operation_where_it_does_not_fit_is_refused_and_changes_nothing() -> None:
    population = build("digits_mlp", 3)
    grow(population, [Place(0, 1, 2, Blend.ADD, Stage.INCUBATING), Place(1, 1, 2, Blend.ADD, Stage.HOLDING)])
    before = clone(population)
    one = np.array([3])
    refused = [
        ("germinate", 0, lambda row, slot: population.germinate(row, slot, one, one - 3, episode_keys(1), one)),
        ("germinate", 1, lambda row, slot: population.germinate(row, slot, one, one - 3, episode_keys(1), one)),
        ("advance", 1, population.advance),
        ("advance", 2, population.advance),
        ("commit", 0, population.commit),
        ("commit", 2, population.commit),
        ("remove", 2, population.remove),
    ]
    for name, row, operation in refused:
        with pytest.raises(ValueError, match=f"^{name} at row {row}, slot 1; allowed: where there is an? "):
            operation(np.array([row]), np.array([1]))
    assert largest_difference(population, before) == 0.0
    for name, table in vars(before.census).items():
        np.testing.assert_array_equal(getattr(population.census, name), table)
