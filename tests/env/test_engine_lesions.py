"""A lesion leaves exactly k units of a block alive, and does not narrow the seed beside the block."""

import numpy as np
import pytest
import torch
from engine_tools import (
    HOSTS,
    TINY_TEXT,
    Place,
    PlainRow,
    Stage,
    build,
    full_width,
    grow,
    host_state,
    logits,
    minibatches,
    train_plain,
    unsilence,
    validation,
)
from esper_env.population.export import export_host
from esper_env.population.population import Blend, Population
from esper_env.population.training import train_epoch
from esper_env.tasks import TASKS
from torch import Tensor


def lesioned(task: str, slot: int, counts: list[int]) -> Population:
    widths = full_width(task, len(counts))
    widths[:, slot] = counts
    return build(task, len(counts), live_units=widths)


def block_outputs(population: Population, row: int, slot: int, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """What leaves a block, before and after its seed, per unit: whether any sample moves it."""
    plain, outputs = PlainRow(population, row), []
    seen = []
    for bridge in plain.host.bridges:
        bridge.register_forward_pre_hook(lambda _bridge, arguments: seen.append(arguments[0]))
    plain.forward(inputs, plain.live, outputs)
    axes = [0, 2, 3] if outputs[slot].dim() == 4 else list(range(outputs[slot].dim() - 1))
    return outputs[slot].abs().sum(dim=axes) > 0, seen[slot].abs().sum(dim=axes) > 0


@pytest.mark.parametrize("task", HOSTS)
@pytest.mark.parametrize("slot", range(3))
def test_a_lesioned_block_has_exactly_k_live_outputs(task: str, slot: int) -> None:
    width = TASKS[task].host.slots[slot].outputs[0]
    counts = [1, 2, 3, width]
    population = lesioned(task, slot, counts)
    inputs, _ = validation(task, population, 30)
    answers = logits(population, inputs)
    for row, count in enumerate(counts):
        alive, _ = block_outputs(population, row, slot, inputs)
        assert alive.tolist() == [True] * count + [False] * (width - count)
        plain = PlainRow(population, row)
        torch.testing.assert_close(answers[row], plain.forward(inputs, ()), rtol=0.0, atol=1e-11)
    np.testing.assert_array_equal(population.lesioned[:, slot], [True, True, True, False])
    assert population.lesioned.sum() == 3


@pytest.mark.parametrize("task", HOSTS)
@pytest.mark.parametrize("blend", [Blend.ADD, Blend.GATE])
def test_the_seed_beside_a_lesion_reaches_every_unit(task: str, blend: Blend) -> None:
    population = lesioned(task, 1, [1, 2])
    grow(population, [Place(row, 1, 2, blend, Stage.HOLDING) for row in range(2)])
    unsilence(population)
    inputs, _ = validation(task, population, 30)
    for row, count in enumerate([1, 2]):
        block, with_seed = block_outputs(population, row, 1, inputs)
        assert block.sum() == count
        assert with_seed.all()


@pytest.mark.parametrize("task", HOSTS)
def test_a_dead_unit_learns_nothing(task: str) -> None:
    """The weights that lead to it stay as they were born; those of live units move."""
    population, weight = lesioned(task, 1, [2]), f"blocks.1.{'down' if task == TINY_TEXT else '0'}.weight"
    before, data = host_state(population, 0)[weight], minibatches(task, population)
    plain = PlainRow(population, 0)
    train_epoch(population, data)
    train_plain(plain, data)
    after = host_state(population, 0)[weight]
    assert plain.largest_difference(population) < 1e-10
    moved = (after != before).flatten(1).any(dim=1)
    # In the CNN a dead channel shares its norm's statistics with live ones, so its weights may move.
    shared = 2 if task == "digits_cnn" else 0
    assert moved[:2].all()
    assert not moved[2 + shared :].any()


@pytest.mark.parametrize("task", HOSTS)
def test_an_exported_host_carries_its_lesion(task: str) -> None:
    population = lesioned(task, 0, [2, 5])
    inputs, _ = validation(task, population, 30)
    for row, count in enumerate([2, 5]):
        network = export_host(population, row)
        assert network.description["live_units"][0] == count
        torch.testing.assert_close(network(inputs), logits(population, inputs)[row], rtol=0.0, atol=1e-11)
