"""Evaluation equals brute force: every variant of every row as its own plain network."""

import numpy as np
import pytest
import torch
from engine_tools import (
    HOSTS,
    PlainRow,
    Stage,
    assortment,
    build,
    grow,
    minibatches,
    plain_loss,
    some_lesions,
    unsilence,
    validation,
)
from esper_env.population import population as population_module
from esper_env.population.evaluation import evaluate
from esper_env.population.population import Population
from esper_env.population.training import train_epoch
from torch import Tensor

ROWS, SAMPLES = 16, 120


def grown(task: str, rows: int = ROWS, empty: float = 0.3) -> Population:
    """Trained for a while, so that accuracies differ from chance and from each other."""
    population = build(task, rows, live_units=some_lesions(task, rows))
    grow(population, assortment(population, empty=empty))
    train_epoch(population, minibatches(task, population, count=30))
    unsilence(population, size=0.3)
    return population


def brute_force(population: Population, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    rows = [_one_row(PlainRow(population, row), inputs, labels) for row in range(len(population))]
    return {name: torch.tensor([row[name] for row in rows], dtype=torch.float64) for name in rows[0]}


@torch.no_grad()
def _one_row(plain: PlainRow, inputs: Tensor, labels: Tensor) -> dict[str, float | list[float]]:
    live, slots = plain.live, range(len(plain.alive))
    incubating = plain.seeds.keys() - live

    def score(acting: set[int]) -> float:
        return plain.metric(inputs, labels, acting)

    return {
        "loss": plain_loss(plain.forward(inputs, live), labels).item(),
        "metric": score(live),
        "contribution": [score(live) - score(live - {slot}) if slot in live else 0.0 for slot in slots],
        "prospect": [score(live | {slot}) - score(live) if slot in incubating else 0.0 for slot in slots],
        "all_off": score(set()),
        "committed": score(plain.committed),
    }


@pytest.mark.parametrize("task", [*HOSTS, "digits_deep"])
@pytest.mark.parametrize("tile_bytes", [1 << 40, 1, 2_000_000])
def test_evaluation_equals_brute_force(task: str, tile_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(population_module, "TILE_BYTES", tile_bytes)
    population = grown(task)
    inputs, labels = validation(task, population, SAMPLES)
    found, expected = evaluate(population, inputs, labels), brute_force(population, inputs, labels)
    assert vars(found).keys() == {*expected, "right"}
    for name, value in expected.items():
        torch.testing.assert_close(getattr(found, name), value, rtol=0.0, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")
    for name in ("contribution", "prospect"):
        assert len(expected[name].unique()) > 5, f"{name} shows no differences: nothing was tested"
    assert not torch.equal(expected["all_off"], expected["committed"])
    assert not torch.equal(expected["metric"], expected["committed"])


@pytest.mark.parametrize("task", ["digits_mlp", "digits_cnn"])
def test_samples_that_do_not_count_are_as_if_they_were_not_there(task: str) -> None:
    population = grown(task, rows=4)
    inputs, labels = validation(task, population, SAMPLES)
    counted = torch.rand(4, SAMPLES, generator=torch.Generator().manual_seed(0)) < 0.4
    found = evaluate(population, inputs, labels, counted)
    assert found.right.shape == counted.shape
    for row, own in enumerate(counted):
        alone = evaluate(population, inputs[own], labels[own])
        assert float(found.right[row, own].double().mean()) == pytest.approx(float(alone.metric[row]), abs=1e-10)
        for name in vars(found).keys() - {"right"}:
            torch.testing.assert_close(getattr(found, name)[row], getattr(alone, name)[row], rtol=0.0, atol=1e-10)


@pytest.mark.parametrize("task", HOSTS)
def test_a_population_without_seeds_has_one_score(task: str) -> None:
    population = build(task, 3)
    found = evaluate(population, *validation(task, population, SAMPLES))
    assert torch.equal(found.metric, found.all_off)
    assert torch.equal(found.metric, found.committed)
    assert not found.contribution.any()
    assert not found.prospect.any()


@pytest.mark.parametrize("task", HOSTS)
def test_evaluation_changes_nothing(task: str) -> None:
    population = grown(task, rows=4)
    before = [population.body.values.clone(), *(cohort.values.clone() for cohort in population.seeds.values())]
    census = [table.copy() for table in vars(population.census).values()]
    data = validation(task, population, SAMPLES)
    first, second = evaluate(population, *data), evaluate(population, *data)
    after = [population.body.values, *(cohort.values for cohort in population.seeds.values())]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(census, vars(population.census).values(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(vars(first).values(), vars(second).values(), strict=True))


@pytest.mark.parametrize("task", HOSTS)
@pytest.mark.ledger("R12")
def test_a_seed_at_alpha_zero_contributes_exactly_nothing(task: str) -> None:
    population = build(task, 6, dtype=torch.float32)
    grow(population, assortment(population, [Stage.SILENCED]))
    unsilence(population)
    found = evaluate(population, *validation(task, population))
    assert population.census.live.any()
    assert not found.contribution.any()
    assert torch.equal(found.metric, found.all_off)
