"""A row leaves the population as a plain module that answers alike, and survives a file without pickled code."""

from pathlib import Path

import pytest
import torch
from engine_tools import (
    HOSTS,
    TINY_TEXT,
    assortment,
    build,
    grow,
    logits,
    minibatches,
    some_lesions,
    unsilence,
    validation,
)
from env_tools import IMAGE_TASKS
from esper_env.population.export import export_host, load_network, save_network
from esper_env.population.population import Population
from esper_env.population.training import train_epoch
from torch import nn

ROWS = 8


def grown(task: str, dtype: torch.dtype = torch.float32) -> Population:
    population = build(task, ROWS, dtype=dtype, live_units=some_lesions(task, ROWS))
    grow(population, assortment(population))
    unsilence(population)
    train_epoch(population, minibatches(task, population))
    return population


@pytest.mark.parametrize("task", [*HOSTS, "digits_deep", *IMAGE_TASKS])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-11)], ids=str)
def test_an_exported_row_answers_as_the_population_does(task: str, dtype: torch.dtype, tolerance: float) -> None:
    population = grown(task, dtype)
    inputs, _ = validation(task, population)
    answers = logits(population, inputs)
    assert answers.std() > 0.1
    for row in range(ROWS):
        network = export_host(population, row)
        assert isinstance(network, nn.Module)
        live = population.census.live[row]
        assert {int(slot) for slot in network.seeds} == set(live.nonzero()[0].tolist())
        # Seeds this loud swell a transformer's stream, and rounding with it, before the last norm shrinks it again.
        swell = (10 if task == TINY_TEXT else 1) * max(1.0, answers[row].abs().max().item())
        torch.testing.assert_close(network(inputs), answers[row], rtol=0.0, atol=tolerance * swell)


@pytest.mark.parametrize("task", HOSTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_saved_network_is_read_without_running_code(task: str, dtype: torch.dtype, tmp_path: Path) -> None:
    population = grown(task, dtype)
    inputs, _ = validation(task, population, 50)
    for row in range(ROWS):
        network, path = export_host(population, row), tmp_path / f"{row}.pt"
        save_network(network, path)
        assert network.description.items() <= torch.load(path, weights_only=True)["description"].items()
        again = load_network(path)
        assert torch.equal(again(inputs), network(inputs))
        assert next(again.parameters()).dtype is dtype


@pytest.mark.parametrize("task", HOSTS)
def test_an_export_shares_nothing_with_the_population(task: str) -> None:
    population = grown(task)
    network, before = export_host(population, 0), population.body.values.clone()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    assert torch.equal(population.body.values, before)


@pytest.mark.parametrize("row", [-1, ROWS, 100])
def test_a_row_that_is_not_there_is_named(row: int) -> None:
    with pytest.raises(IndexError, match=rf"row is {row}; allowed: 0 to {ROWS - 1}"):
        export_host(build("digits_mlp", ROWS), row)
