"""FLOPs of training are those that torch counts around the same networks in plain torch."""

from collections.abc import Callable

import gymnasium
import numpy as np
import pytest
import torch
from engine_tools import HOSTS, assortment, build, grow
from env_tools import WAIT
from esper_env import Op
from esper_env.blueprints.base import SeedTemplate
from esper_env.blueprints.blends import Blend
from esper_env.population.export import GrownNetwork, export_host
from esper_env.population.flops import TrainingFlops
from esper_env.population.population import EMPTY, Population
from quick_life import QUICK_LIFE
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

ROWS = 16


def counted(run: Callable[[], Tensor]) -> int:
    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH):
        run().sum().backward()
    return int(counter.get_total_flops())


def plain_flops(population: Population, row: int) -> int:
    """Of the row with its live seeds, and of every newborn through a frozen copy of what stands behind it."""
    census, sample = population.census, population.engine.host.sample()
    network = export_host(population, row)
    total = counted(lambda: network(sample))
    for slot in np.flatnonzero((census.blueprint[row] != EMPTY) & ~census.live[row]):
        blueprint = population.engine.blueprints[census.blueprint[row, slot]]
        newborn = SeedTemplate(blueprint, population.engine.host.slots[slot])
        frozen = export_host(population, row).requires_grad_(False)
        total += newborn_flops(frozen, sample, int(slot), newborn, census.blend[row, slot] == Blend.GATE)
    return total


def newborn_flops(network: GrownNetwork, sample: Tensor, slot: int, newborn: SeedTemplate, gated: bool) -> int:
    """The way from the slot to the logits and back; what comes before it is computed anyway."""
    host, x = network.host, network.host.enter(sample)
    for before in range(slot):
        x = host.bridges[before](network._beside(before, x, host.blocks[before](x)))
    h = host.blocks[slot](x)

    def onwards() -> Tensor:
        delta = newborn(x)
        if gated:
            delta = delta * newborn.gate(x.mean(dim=(2, 3)) if x.dim() == 4 else x).sum()
        y = host.bridges[slot](h + delta)
        for behind in range(slot + 1, len(host.blocks)):
            y = host.bridges[behind](network._beside(behind, y, host.blocks[behind](y)))
        return host.head(y)

    return counted(onwards)


@pytest.mark.parametrize("task", [*HOSTS, "digits_deep"])
def test_every_row_costs_what_its_plain_networks_cost(task: str) -> None:
    population = build(task, ROWS, dtype=torch.float32)
    grow(population, assortment(population))
    found = TrainingFlops(population.engine).per_sample(population.census)
    assert found.tolist() == [plain_flops(population, row) for row in range(ROWS)]
    assert len(set(found.tolist())) > ROWS // 2  # or nothing would be compared


def test_a_step_tells_the_flops_of_its_training() -> None:
    env = gymnasium.make_vec("Esper-v0", num_envs=2, autoreset_mode="next_step", horizon=2, **QUICK_LIFE)
    _, infos = env.reset(seed=0)
    assert infos["training_flops"].tolist() == [0, 0]  # a reset trains nothing
    first = {head: np.full(2, value) for head, value in WAIT.items()}
    infos = env.step(first | {"op": np.array([Op.WAIT, Op.GERMINATE])})[-1]
    task = env.unwrapped.task
    samples = task.batch_size * task.minibatches_per_step
    widths = [slot.outputs[0] for slot in task.host.slots]
    first_layer, *others = (a * b for a, b in zip([64, *widths], [*widths, 10], strict=True))
    # Forward and by the weights; by the input as well, but that nothing before the first layer learns.
    assert infos["training_flops"][0] == samples * 2 * (2 * first_layer + 3 * sum(others))
    assert infos["training_flops"][1] > infos["training_flops"][0]
    env.step(first)
    assert env.step(first)[-1]["training_flops"].tolist() == [0, 0]  # nor does the reset in place of a step
