"""Every seed of every blueprint, under every blend, in every slot, is born silent and learns from its first step."""

import numpy as np
import pytest
import torch
from engine_tools import (
    HOSTS,
    Place,
    Stage,
    assortment,
    build,
    grow,
    logits,
    minibatches,
    seed_state,
    unsilence,
    validation,
)
from env_tools import FILES
from esper_env.population.population import Blend
from esper_env.population.training import train_epoch
from esper_env.registration import ENVIRONMENTS
from esper_env.tasks import TASKS

INCUBATING, LIVE = 0, 1  # rows
BOUND = sorted({settings["task"] for settings in ENVIRONMENTS.values()})
CASES = [
    (task, slot, kind, blend)
    for task in BOUND
    if not task.startswith(FILES)  # those have a test of their own
    for slot in range(len(TASKS[task].host.slots))
    for kind in range(len(TASKS[task].blueprints))
    for blend in Blend
]
NAMES = [f"{task}-slot{slot}-{TASKS[task].blueprints[kind]}-{blend.name}" for task, slot, kind, blend in CASES]
each_seed = pytest.mark.parametrize(("task", "slot", "kind", "blend"), CASES, ids=NAMES)


@each_seed
def test_a_newborn_seed_is_silent_and_learns_from_its_first_step(task: str, slot: int, kind: int, blend: Blend) -> None:
    population = build(task, 2, dtype=torch.float32)
    inputs, _ = validation(task, population, 50)
    before = logits(population, inputs)
    stages = {INCUBATING: Stage.INCUBATING, LIVE: Stage.HOLDING}
    grow(population, [Place(row, slot, kind, blend, stage) for row, stage in stages.items()])
    assert torch.equal(logits(population, inputs), before)

    newborn = [seed_state(population, row, slot) for row in stages]
    first = train_epoch(population, minibatches(task, population, count=1))
    assert bool((first.seed_grad_norm[:, slot] > 1e-4).all())
    train_epoch(population, minibatches(task, population, step=1, count=4))
    for row in stages:
        for name, value in seed_state(population, row, slot).items():
            used = blend is Blend.GATE or not name.startswith("gate")
            assert torch.equal(value, newborn[row][name]) is not used, (row, name)


@pytest.mark.parametrize("task", HOSTS)
@pytest.mark.ledger("R12")
def test_a_seed_at_alpha_zero_leaves_the_host_as_it_is_to_the_bit(task: str) -> None:
    population = build(task, 12, dtype=torch.float32)
    inputs, _ = validation(task, population)
    before = logits(population, inputs)
    grow(population, assortment(population, [Stage.INCUBATING, Stage.SILENCED]))
    unsilence(population)
    assert len(population.seeds) > 10
    assert torch.equal(logits(population, inputs), before)
    population.alpha[np.nonzero(population.census.live)] = 1e-3
    assert not torch.equal(logits(population, inputs), before)
