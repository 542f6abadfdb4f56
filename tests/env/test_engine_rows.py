"""A row's life depends on its own seed alone: not on how many rows live beside it, nor on how they are tiled."""

import numpy as np
import pytest
import torch
from engine_tools import (
    HOSTS,
    Place,
    Stage,
    build,
    episode_keys,
    grow,
    host_state,
    largest_difference,
    minibatches,
    occupied,
    seed_state,
    some_lesions,
    unsilence,
    validation,
)
from engine_tools import assortment as places_of
from esper_env.population import population as population_module
from esper_env.population.evaluation import Evaluation, evaluate
from esper_env.population.population import EMPTY, Blend, Population
from esper_env.population.training import train_epoch
from torch import Tensor

SIZES = (1, 7, 64)
SHARED = 5  # the row that all populations have in common: the last of 1, in the middle of 7 and 64


def offset(size: int) -> int:
    """Where the shared row lies."""
    return 0 if size == 1 else SHARED


def keys_of(size: int) -> Tensor:
    return episode_keys(size, first=1000 + SHARED - offset(size))


def settled(task: str, size: int, dtype: torch.dtype) -> Population:
    """The shared row with seeds in three stages, among rows with seeds in any."""
    rates = 0.02 + 0.01 * (keys_of(size) % 4).to(torch.float64)
    widths = some_lesions(task, SHARED + 1)[[SHARED] * size]
    population = build(task, size, dtype=dtype, keys=keys_of(size), lr=rates, live_units=widths)
    others = [place for place in places_of(population, empty=0.7) if place.row != offset(size)]
    stages = (Stage.INCUBATING, Stage.BLENDING, Stage.COMMITTED)
    own = [Place(offset(size), slot, 3 - slot, Blend(slot), stages[slot]) for slot in range(3)]
    grow(population, [*others, *own], keys=keys_of(size))
    return population


def life(task: str, size: int, dtype: torch.dtype, minibatch_count: int) -> list[Tensor]:
    """All parameters of the shared row after so many minibatches."""
    population, row = settled(task, size, dtype), offset(size)
    data = minibatches(task, population, keys=keys_of(size), count=minibatch_count, batch=8)
    train_epoch(population, data)
    assert (population.census.blueprint[row] != EMPTY).all()
    parts = [host_state(population, row), *(seed_state(population, row, slot) for slot in range(3))]
    return [value for part in parts for value in part.values()]


@pytest.mark.parametrize("task", HOSTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_initial_weights_and_minibatches_are_the_same_to_the_bit(task: str, dtype: torch.dtype) -> None:
    lone = settled(task, 1, dtype)
    draws = minibatches(task, lone, keys=keys_of(1))
    for size in SIZES[1:]:
        population, row = settled(task, size, dtype), offset(size)
        assert torch.equal(population.body.values[row], lone.body.values[0])
        for slot in range(3):
            alone, among = seed_state(lone, 0, slot), seed_state(population, row, slot)
            assert all(torch.equal(alone[name], among[name]) for name in alone)
        more = minibatches(task, population, keys=keys_of(size))
        assert torch.equal(more.index[row], draws.index[0])
        assert torch.equal(more.labels[row], draws.labels[0])
        others = [i for i in range(size) if i != row]
        assert not (population.body.values[others] == lone.body.values[0]).all(dim=1).any()


@pytest.mark.parametrize("task", HOSTS)
@pytest.mark.parametrize(
    ("dtype", "minibatch_count", "tolerance"), [(torch.float64, 50, 1e-9), (torch.float32, 5, 1e-5)], ids=str
)
def test_training_is_the_same_in_any_company(
    task: str, dtype: torch.dtype, minibatch_count: int, tolerance: float
) -> None:
    lone, *others = (life(task, size, dtype, minibatch_count) for size in SIZES)
    for other in others:
        for alone, among in zip(lone, other, strict=True):
            torch.testing.assert_close(among, alone, rtol=0.0, atol=tolerance)


def tiled(task: str, tile_bytes: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Population, Evaluation]:
    monkeypatch.setattr(population_module, "TILE_BYTES", tile_bytes)
    population = build(task, 13, live_units=some_lesions(task, 13))
    grow(population, places_of(population))
    unsilence(population)
    report = train_epoch(population, minibatches(task, population))
    assert report.loss.shape == (13,)
    return population, evaluate(population, *validation(task, population, 60))


@pytest.mark.parametrize("task", HOSTS)
@pytest.mark.parametrize("tile_bytes", [1, 200_000])
def test_tiles_change_nothing(task: str, tile_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, expected = tiled(task, 1 << 40, monkeypatch)
    parts, found = tiled(task, tile_bytes, monkeypatch)
    assert len(list(parts.tiles(16))) > 1
    assert largest_difference(whole, parts) < 1e-10
    for name, value in vars(expected).items():
        torch.testing.assert_close(getattr(found, name), value, rtol=0.0, atol=1e-10)


@pytest.mark.parametrize("task", HOSTS)
def test_tiles_change_no_training_report(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reports = []
    for tile_bytes in (1 << 40, 1):
        monkeypatch.setattr(population_module, "TILE_BYTES", tile_bytes)
        population = build(task, 6)
        grow(population, places_of(population, [Stage.INCUBATING, Stage.BLENDING, Stage.COMMITTED]))
        unsilence(population)
        reports.append(train_epoch(population, minibatches(task, population)))
    for name, value in vars(reports[0]).items():
        torch.testing.assert_close(getattr(reports[1], name), value, rtol=0.0, atol=1e-10)
    marked = np.zeros((6, 3), dtype=bool)
    for row, slot in occupied(population):
        marked[row, slot] = True
    np.testing.assert_array_equal(reports[0].seed_grad_norm.numpy() > 0, marked)
