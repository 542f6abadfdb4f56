"""No pass reads the device or strays from it: everything runs on `meta`, and on CUDA as on the CPU."""

import numpy as np
import pytest
import torch
from engine_tools import (
    HOSTS,
    assortment,
    build,
    columns,
    episode_keys,
    full_width,
    grow,
    largest_difference,
    minibatches,
    some_lesions,
    validation,
)
from esper_env.fused.optimizers import AdamW, Optimizer
from esper_env.population.evaluation import evaluate
from esper_env.population.population import EMPTY, Population
from esper_env.population.training import train_epoch

ROWS = 12
without_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def grown(task: str, device: str, optimizer: Optimizer | None = None) -> Population:
    population = build(
        task,
        ROWS,
        dtype=torch.float32,
        device=device,
        optimizer=optimizer,
        max_grad_norm=1.0,
        live_units=some_lesions(task, ROWS),
    )
    grow(population, assortment(population))
    return population


def tensors_of(population: Population) -> list[torch.Tensor]:
    cohorts = [population.body, *population.seeds.values()]
    own = [population.alpha, population.lr, *population.lesions]
    return [*own, *(tensor for cohort in cohorts for tensor in cohort.tensors())]


@pytest.mark.parametrize("task", HOSTS)
@pytest.mark.parametrize("optimizer", [None, AdamW()], ids=["sgd", "adamw"])
def test_training_and_evaluation_run_on_meta(task: str, optimizer: Optimizer | None) -> None:
    """Meta tensors have no values: reading one on the host raises, and so does mixing them with CPU tensors."""
    population = grown(task, "meta", optimizer)
    assert set(population.census.blend[population.census.live]) == {0, 1, 2}
    report = train_epoch(population, minibatches(task, population))
    evaluation = evaluate(population, *validation(task, population))
    for tensor in [*vars(report).values(), *vars(evaluation).values(), *tensors_of(population)]:
        assert tensor.is_meta
    assert report.block_grad_norm.shape == evaluation.contribution.shape == (ROWS, 3)


@pytest.mark.parametrize("task", HOSTS)
def test_row_operations_run_on_meta(task: str) -> None:
    population = grown(task, "meta")
    rows, slots = columns(assortment(population))
    population.remove(rows[::2], slots[::2])
    population.rebirth(
        np.array([3, 1]),
        episode_keys(2).to("meta"),
        torch.full((2,), 0.1, device="meta"),
        full_width(task, 2),
    )
    assert (population.census.blueprint[[1, 3]] == EMPTY).all()
    train_epoch(population, minibatches(task, population))
    assert all(tensor.is_meta for tensor in tensors_of(population))


@pytest.mark.cuda
@without_cuda
@pytest.mark.parametrize("task", HOSTS)
@pytest.mark.parametrize("optimizer", [None, AdamW()], ids=["sgd", "adamw"])
def test_cuda_equals_cpu(task: str, optimizer: Optimizer | None) -> None:
    here, there = (grown(task, device, optimizer) for device in ("cpu", "cuda"))
    assert torch.equal(there.body.values.cpu(), here.body.values)
    reports = [train_epoch(population, minibatches(task, population, count=5)) for population in (here, there)]
    on_host = grown(task, "cpu", optimizer)
    for target, source in zip(tensors_of(on_host), tensors_of(there), strict=True):
        target.copy_(source)
    assert largest_difference(here, on_host) < 1e-4
    torch.testing.assert_close(reports[1].loss.cpu(), reports[0].loss, rtol=1e-4, atol=1e-4)
    results = [evaluate(population, *validation(task, population)) for population in (here, there)]
    for name, value in vars(results[0]).items():
        torch.testing.assert_close(getattr(results[1], name).cpu(), value, rtol=0.0, atol=2 / 240)


@pytest.mark.cuda
@without_cuda
@pytest.mark.parametrize("task", HOSTS)
def test_the_minibatch_loop_never_waits_for_the_device(task: str) -> None:
    population = grown(task, "cuda")
    data = minibatches(task, population)
    train_epoch(population, data)
    torch.cuda.set_sync_debug_mode("error")
    try:
        train_epoch(population, data)
    finally:
        torch.cuda.set_sync_debug_mode("default")
