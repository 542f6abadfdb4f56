"""A user's own module grows in a user's own loop as a host grows in the environment."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from engine_tools import clone
from esper_env import GrowingModule, Op
from esper_env.blueprints import BLUEPRINTS, Blueprint
from esper_env.blueprints.blends import Blend
from esper_env.growing import Growth
from esper_env.mdp.instances import minibatches
from esper_env.tasks import TASKS
from esper_env.vector_env import EsperVectorEnv
from own_modules import RESIDUAL_SLOTS, ResNet
from torch import Tensor, nn

TASKS.register("unclipped_digits", replace(TASKS["digits_mlp"], max_grad_norm=None))
SETTINGS: dict[str, Any] = {"task": "unclipped_digits", "num_envs": 1, "dtype": "float64", "lesion_weights": (1, 0, 0)}
SCRIPT = [
    (Op.WAIT, 0, 0, Blend.ADD),
    (Op.WAIT, 0, 0, Blend.ADD),
    (Op.GERMINATE, 1, 2, Blend.GATE),
    (Op.GERMINATE, 0, 0, Blend.MULTIPLY),
    (Op.ADVANCE, 1, 0, Blend.ADD),
    (Op.ADVANCE, 0, 0, Blend.ADD),
    (Op.WAIT, 0, 0, Blend.ADD),
    (Op.FOSSILIZE, 2, 0, Blend.ADD),  # illegal
    (Op.FOSSILIZE, 1, 0, Blend.ADD),
    (Op.PRUNE, 0, 0, Blend.ADD),
    (Op.GERMINATE, 2, 3, Blend.ADD),
    (Op.WAIT, 0, 0, Blend.ADD),
]
IMAGES = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(6) % 10


def accuracy_of(model: nn.Module, inputs: Tensor, labels: Tensor) -> tuple[float, float]:
    with torch.no_grad():
        logits = model(inputs)
    return F.cross_entropy(logits, labels).item(), (logits.argmax(dim=1) == labels).double().mean().item()


def newborn_weights(env: EsperVectorEnv, slot: int, kind: int, blend: Blend) -> dict[str, Tensor]:
    """What the environment would give a seed that is planted now."""
    simulation = env.simulation
    trial, where = clone(simulation.population), np.array([0])
    key, step = simulation.instance.key, simulation.state.step
    trial.germinate(where, np.array([slot]), np.array([kind]), np.array([int(blend)]), key, step)
    cohort = trial.seeds[slot, kind]
    return cohort.layout.state_dict(cohort.values[0])


def train_as(env: EsperVectorEnv, growing: GrowingModule, growth: Growth, optimizer: torch.optim.Optimizer) -> None:
    simulation = env.simulation
    batches = minibatches(simulation.instance, simulation.state.step, simulation.task, simulation.data)
    for number in range(batches.index.shape[1]):
        inputs, labels = (tensor[0] for tensor in batches.batch(number, 0, 1))
        optimizer.zero_grad()
        growing.loss(lambda x=inputs, y=labels: F.cross_entropy(growing(x), y)).backward()
        growth.note_seed_gradients()
        optimizer.step()


def test_every_observation_and_mask_equals_the_environments() -> None:
    env = EsperVectorEnv(**SETTINGS)
    seen, infos = env.reset(seed=3)
    model, val = env.export_host(0).host, env.simulation.data.val
    names = [f"blocks.{number}" for number in range(len(env.simulation.task.host.slots))]
    growing = GrowingModule(model, slots=names, example_input=val.inputs[:2], blueprints=env.simulation.task.blueprints)
    growth = Growth(growing, lambda: accuracy_of(growing, val.inputs, val.labels), env.config.horizon)
    optimizer = torch.optim.SGD(growing.parameters(), lr=env.simulation.instance.lr.item(), momentum=0.9)
    for op, slot, kind, blend in SCRIPT:
        np.testing.assert_allclose(growth.observation().numpy(), seen, rtol=0.0, atol=2e-6)
        for name, tables in growth.infos().items():
            for head, table in tables.items():
                np.testing.assert_array_equal(table, infos[name][head])
        action = {"op": op, "slot": slot, "blueprint": kind, "blend": blend, "tempo": 0}
        born, gone = growth.act({head: np.array([int(value)]) for head, value in action.items()})
        if born:
            growing.slots[slot].seed.load_state_dict(newborn_weights(env, slot, kind, blend))
        optimizer.param_groups[0]["params"] += born
        optimizer.param_groups[0]["params"] = [
            p for p in optimizer.param_groups[0]["params"] if all(p is not g for g in gone)
        ]
        train_as(env, growing, growth, optimizer)
        seen, _, _, _, infos = env.step({head: np.array([int(value)]) for head, value in action.items()})
        growth.record()
    np.testing.assert_allclose(growth.observation().numpy(), seen, rtol=0.0, atol=2e-6)
    grown = env.export_host(0)
    torch.testing.assert_close(growing(val.inputs), grown(val.inputs), rtol=0.0, atol=1e-9)


class Dropping(nn.Module):
    """Batch norm with running statistics and dropout: state and draws that a seed behind the block must not disturb."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Dropout(0.3))
        self.second = nn.Sequential(nn.Linear(7, 6), nn.Tanh())
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.second(self.first(x)))


def trained(growing: GrowingModule, steps: int = 3) -> dict[str, Tensor]:
    optimizer = torch.optim.AdamW(growing.parameters())
    torch.manual_seed(1)
    for _ in range(steps):
        inputs = torch.randn(8, 5)
        optimizer.zero_grad()
        loss = growing.loss(lambda x=inputs: F.cross_entropy(growing(x), torch.arange(8) % 3))
        loss.backward()
        optimizer.step()
    return {name: value for name, value in growing.state_dict().items() if isinstance(value, Tensor)}


def test_a_module_trains_exactly_as_without_the_seed_that_learns_behind_it() -> None:
    plain = Dropping()
    alone, growing = (
        GrowingModule(deepcopy(plain), slots=["first", "second"], example_input=torch.zeros(2, 5)) for _ in range(2)
    )
    growing.germinate(0, "medium_mlp", Blend.GATE)
    growing.germinate(1, "low_rank")
    before = {name: value.clone() for name, value in growing.state_dict().items() if "seed" in name}
    expected, found = trained(alone), trained(growing)
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert all(p.requires_grad for p in growing.parameters())
    assert not torch.equal(found["model.first.seed.last.scale"], before["model.first.seed.last.scale"])
    assert not torch.equal(found["model.second.seed.last.scale"], before["model.second.seed.last.scale"])


def growing_resnet() -> GrowingModule:
    torch.manual_seed(0)
    return GrowingModule(ResNet(), slots=RESIDUAL_SLOTS, example_input=IMAGES)


@pytest.mark.parametrize("blend", Blend)
def test_a_newborn_seed_is_silent_and_its_block_answers_as_before(blend: Blend) -> None:
    torch.manual_seed(0)
    plain = ResNet()
    growing = growing_resnet()
    growing.germinate(1, "convolution", blend)
    growing.advance(1)
    assert torch.equal(growing(IMAGES), plain(IMAGES))
    growing.loss(lambda: F.cross_entropy(growing(IMAGES), LABELS)).backward()
    assert growing.slots[1].seed.last.scale.grad.norm() > 1e-6


def test_a_state_dict_brings_the_seeds_back(tmp_path: Path) -> None:
    growing = growing_resnet()
    growing.germinate(0, "pointwise", Blend.GATE)
    growing.advance(0, alpha=0.4)
    nn.init.normal_(growing.slots[0].seed.last.scale)
    growing.germinate(2, "wide_convolution")
    torch.save(growing.state_dict(), tmp_path / "growing.pt")
    again = growing_resnet()
    again.germinate(1, "depthwise")
    again.load_state_dict(torch.load(tmp_path / "growing.pt", weights_only=True))
    assert again.slots[1].seed is None
    assert not again.slots[2].live
    assert torch.equal(again(IMAGES), growing(IMAGES))
    assert torch.equal(again.germinate(1, "depthwise")[0], growing.germinate(1, "depthwise")[0])


def test_what_stays_is_the_module_with_its_committed_seeds() -> None:
    growing = growing_resnet()
    for slot in (0, 2):
        growing.germinate(slot, "convolution")
        growing.advance(slot)
        nn.init.normal_(growing.slots[slot].seed.last.scale)
    growing.fossilize(2)
    plain, types = growing.plain(), [type(growing.model.layer1[0].block), type(growing.model.layer1[0])]
    growing.prune(0)
    assert torch.equal(plain(IMAGES), growing(IMAGES))
    assert [type(plain.layer1[0]), type(plain.layer2[1])] == types
    assert not {id(p) for p in plain.parameters()} & {id(p) for p in growing.parameters()}


def test_a_compiled_module_grows() -> None:
    growing = growing_resnet()
    compiled = torch.compile(growing, backend="eager")
    growing.germinate(1, "convolution")
    growing.loss(lambda: F.cross_entropy(compiled(IMAGES), LABELS)).backward()
    growing.advance(1, alpha=0.5)
    nn.init.normal_(growing.slots[1].seed.last.scale)
    torch.testing.assert_close(compiled(IMAGES), growing(IMAGES))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"slots": ["layer9"]}, "slot 'layer9' is no submodule of the model"),
        ({"slots": ["layer2.0"]}, "slot 'layer2.0' changes shape"),
        ({"slots": ["layer1.0"], "blueprints": ["low_rank"]}, "blueprint 'low_rank' is for the family 'dense'"),
        ({"slots": ["layer1.0"], "blueprints": []}, r"blueprints is \[\]; allowed: a list of one or more names"),
    ],
)
def test_bad_input_leaves_the_module_untouched(settings: dict[str, Any], message: str) -> None:
    refused(ResNet(), message, example_input=IMAGES, **settings)


def refused(model: nn.Module, message: str, **settings: Any) -> None:
    before = dict(model.named_modules())
    with pytest.raises(ValueError, match=message):
        GrowingModule(model, **settings)
    assert dict(model.named_modules()) == before
    assert all(module.training and not module._forward_hooks for module in before.values())


class Aliased(nn.Module):
    """Calls a layer by another name than its first, so that a slot in its place would never act."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.same, self.out = self.layer, nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.same(x))


def test_a_slot_that_would_never_act_is_refused() -> None:
    refused(Aliased(), "slot 'layer' is called by another name", slots=["layer"], example_input=torch.zeros(2, 4))


def test_a_module_gets_its_slots_once() -> None:
    message = "has slots already; allowed: one GrowingModule"
    for module in (growing_resnet(), growing_resnet().model):
        refused(module, message, slots=RESIDUAL_SLOTS, example_input=IMAGES)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda g: g.advance(0), "slot 'layer1.0' is empty"),
        (lambda g: g.prune(0), "slot 'layer1.0' is empty"),
        (lambda g: (g.germinate(0, "pointwise"), g.germinate(0, "pointwise")), "slot 'layer1.0' is occupied"),
        (lambda g: (g.germinate(0, "pointwise"), g.fossilize(0)), "slot 'layer1.0' has no seed that acts"),
        (lambda g: g.germinate(0, "sine"), "blueprint is 'sine'; allowed: pointwise, depthwise"),
    ],
)
def test_an_operation_that_is_not_possible_is_named(act: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        act(growing_resnet())


def test_a_blueprint_of_ones_own_is_grafted() -> None:
    BLUEPRINTS.register(
        "plain_pointwise", Blueprint("image", lambda slot: nn.Conv2d(slot.inputs[0], slot.outputs[0], 1), 1.0)
    )
    growing = GrowingModule(ResNet(), slots=["layer1.0"], example_input=IMAGES, blueprints=["plain_pointwise"])
    assert len(growing.germinate(0, "plain_pointwise")) == 5


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ((1.0, 76.5), "the metric 76.5; allowed: numbers from 0.0 to 1.0"),
        ((float("nan"), 0.5), "the loss nan; allowed"),
        (0.5, "evaluate gives 0.5; allowed: a pair of numbers, loss and metric"),
    ],
)
def test_a_measurement_that_cannot_be_is_refused(found: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        Growth(growing_resnet(), lambda: found, 30)
