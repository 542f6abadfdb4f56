"""MLPs with dense seeds: stacks of padded seeds and a backward pass by hand give what autograd gives."""

import numpy as np
import pytest
import torch
from engine_tools import (
    assortment,
    build,
    clone,
    grow,
    largest_difference,
    minibatches,
    some_lesions,
    unsilence,
    validation,
)
from esper_env.blueprints.base import TwoProducts
from esper_env.fused.optimizers import SGD, AdamW, Optimizer
from esper_env.population.evaluation import evaluate
from esper_env.population.plan import training_plan
from esper_env.population.population import Engine, Population
from esper_env.population.steps import DenseStep
from esper_env.population.training import train_epoch

ROWS = 12


def grown(task: str, optimizer: Optimizer | None = None) -> Population:
    population = build(task, ROWS, optimizer=optimizer, live_units=some_lesions(task, ROWS))
    grow(population, assortment(population))
    unsilence(population)
    return population


def by_autograd(monkeypatch: pytest.MonkeyPatch, population: Population) -> Population:
    """A copy that takes the way of hosts and seeds of one's own."""
    other = clone(population)
    other.engine = Engine(**{name: getattr(population.engine, name) for name in Engine.__dataclass_fields__})
    monkeypatch.setitem(vars(other.engine), "dense_kinds", [])
    return other


@pytest.mark.parametrize("task", ["digits_mlp", "digits_deep"])
@pytest.mark.parametrize("optimizer", [SGD(0.9, 0.01), AdamW()], ids=["sgd", "adamw"])
def test_training_and_evaluation_equal_autograd(
    monkeypatch: pytest.MonkeyPatch, task: str, optimizer: Optimizer
) -> None:
    population = grown(task, optimizer)
    other = by_autograd(monkeypatch, population)
    assert population.engine.dense_kinds
    assert not other.engine.dense_kinds
    data, samples = minibatches(task, population, count=5), validation(task, population, 60)
    for work in (lambda each: train_epoch(each, data), lambda each: evaluate(each, *samples)):
        for mine, theirs in zip(*(vars(work(each)).values() for each in (population, other)), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0.0, atol=1e-9)
    assert largest_difference(population, other) < 1e-9


def test_units_that_a_seed_does_not_have_stay_zero() -> None:
    population = grown("digits_mlp")
    assert training_plan(population).variants is not None
    step, data = DenseStep(population), minibatches("digits_mlp", population, count=4)
    for number in range(4):
        step.run(*data.batch(number, 0, ROWS))
    padded = 0
    for (_, stack, values), trained in zip(step.stacks, step.trained[1:], strict=True):
        outside = torch.ones_like(values)
        for _, shared in stack._pairs(outside, [cohort.values for cohort in stack.cohorts]):
            shared.zero_()
        padded += int(outside.sum())
        for tensor in (values, *trained.state):
            assert not (tensor * outside).any()
    assert padded > 0


def test_seeds_of_one_width_share_a_stack_and_return_to_their_cohorts() -> None:
    population = grown("digits_mlp")
    before = clone(population)
    step = DenseStep(population)
    assert len(step.stacks) < len(population.seeds)
    assert sum(len(stack.cohorts) for _, stack, _ in step.stacks) == len(population.seeds)
    step.finish()
    assert largest_difference(population, before) == 0.0
    rows = np.concatenate([trained.rows.numpy() for trained in step.trained[1:]])
    assert len(rows) == sum(map(len, population.seeds.values()))


def test_two_products_name_as_many_layers_as_their_activation_reads() -> None:
    with pytest.raises(ValueError, match="TwoProducts has 2 layers down and the activation 'relu'; allowed: "):
        TwoProducts(("value", "key"), "out", "relu")
