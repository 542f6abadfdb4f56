"""A host and a blueprint that are plain modules and nothing else do all that the hand-fused ones do."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_tools import (
    HOSTS as FUSED,
)
from engine_tools import (
    TINY_LENGTH,
    TINY_TEXT,
    Place,
    PlainRow,
    Stage,
    assortment,
    build,
    clone,
    grow,
    largest_difference,
    logits,
    minibatches,
    some_lesions,
    train_plain,
    unsilence,
    validation,
)
from esper_env.blueprints import BLUEPRINTS, Blueprint
from esper_env.blueprints.blends import Blend
from esper_env.fused.families import FAMILIES
from esper_env.fused.optimizers import SGD
from esper_env.hosts import HOSTS, Network, Slot, host_of
from esper_env.mdp.actions import Op
from esper_env.population.evaluation import evaluate
from esper_env.population.export import export_host, load_network, save_network
from esper_env.population.population import Engine, Population
from esper_env.population.training import train_epoch
from esper_env.tasks import TASKS
from esper_env.tasks.text import ALPHABET
from esper_env.vector_env import EsperVectorEnv
from own_modules import RESIDUAL, TOKENS
from torch import Tensor, nn

ROWS = 7


class Shifted(nn.Module):
    """A dense layer with a constant that is no parameter."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, outputs)
        self.register_buffer("shift", torch.linspace(-0.1, 0.1, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return (self.dense(x) + self.shift).tanh()


def tanh_mlp(inputs: int, widths: tuple[int, ...] = (12, 10, 12)) -> Network:
    blocks = [Shifted(i, o) for i, o in pairwise((inputs, *widths))]
    return Network(blocks, nn.Linear(widths[-1], 10), nn.Flatten())


def maxpool_cnn(channels: tuple[int, ...]) -> Network:
    blocks = [
        nn.Sequential(nn.Conv2d(i, o, 3, padding=1, padding_mode="circular"), nn.GroupNorm(1, o), nn.SiLU())
        for i, o in pairwise((1, *channels))
    ]
    head = nn.Sequential(nn.Flatten(), nn.Linear(channels[-1] * 4 * 4, 10))
    return Network(blocks, head, bridges=[nn.MaxPool2d(2), *[nn.Identity()] * (len(channels) - 1)])


class Mixing(nn.Module):
    """Positions mixed by a causal matrix of weights, then a layer."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width, eps=0.1)
        self.mix = nn.Parameter(torch.empty(length, length))
        self.layer = nn.Linear(width, width)
        self.register_buffer("past", torch.ones(length, length).tril())

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.layer((self.mix * self.past) @ self.norm(x)).relu()
        return out


def mixing_text(length: int, width: int, depth: int) -> Network:
    blocks = [Mixing(length, width) for _ in range(depth)]
    return Network(blocks, nn.Linear(width, len(ALPHABET)), nn.Embedding(len(ALPHABET), width))


class Sine(nn.Module):
    """A dense seed; on a text it acts position by position."""

    def __init__(self, slot: Slot) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(slot.inputs[0], 5), nn.Linear(5, slot.outputs[0])

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(x).sin())
        return out


def squeeze(slot: Slot) -> nn.Module:
    down = nn.Conv2d(slot.inputs[0], 2, 3, padding=1)
    return nn.Sequential(down, nn.GroupNorm(1, 2), nn.GELU(), nn.Conv2d(2, slot.outputs[0], 1))


HOSTS.register("tanh_mlp", host_of(tanh_mlp, "dense"))
HOSTS.register("maxpool_cnn", host_of(maxpool_cnn, "image"))
HOSTS.register("mixing_text", host_of(mixing_text, "sequence", torch.int64))
BLUEPRINTS.register("sine", Blueprint("dense", Sine, 0.5))
BLUEPRINTS.register("squeeze", Blueprint("image", squeeze, 0.7))
BLUEPRINTS.register("token_sine", Blueprint("sequence", Sine, 3.0))

NETWORKS = {
    "plain_digits_mlp": ("digits_mlp", HOSTS["tanh_mlp"](shape=(64,), inputs=64), ("sine", "low_rank", "gated_unit")),  # type: ignore[call-arg]
    "plain_digits_cnn": (
        "digits_cnn",
        HOSTS["maxpool_cnn"](shape=(1, 8, 8), channels=(4, 6, 5)),  # type: ignore[call-arg]
        ("squeeze", "depthwise", "convolution"),
    ),
    "plain_tiny_text": (
        TINY_TEXT,
        HOSTS["mixing_text"](shape=(TINY_LENGTH,), length=TINY_LENGTH, width=8, depth=3),  # type: ignore[call-arg]
        ("token_sine", "attention_head", "affine_norm"),
    ),
    "own_digits_cnn": ("digits_cnn", RESIDUAL, ("squeeze", "depthwise", "convolution")),
    "own_tiny_text": (TINY_TEXT, TOKENS, ("token_sine", "attention_head", "affine_norm")),
}
for name, (task, host, blueprints) in NETWORKS.items():
    TASKS.register(name, replace(TASKS[task], host=host, blueprints=blueprints))
each_family = pytest.mark.parametrize("task", NETWORKS)


def grown(task: str, dtype: torch.dtype = torch.float64) -> Population:
    """Lesions, and seeds of every blueprint, blend and stage."""
    population = build(task, ROWS, dtype=dtype, live_units=some_lesions(task, ROWS))
    grow(population, assortment(population))
    unsilence(population)
    return population


@each_family
def test_training_equals_a_loop_over_plain_modules(task: str) -> None:
    population = grown(task)
    assert {group[1] for group in population.seeds} == {0, 1, 2}
    plain, data = [PlainRow(population, row) for row in range(ROWS)], minibatches(task, population)
    report, expected = train_epoch(population, data), [train_plain(row, data) for row in plain]
    assert max(row.largest_difference(population) for row in plain) < 1e-9
    for name, value in vars(report).items():
        wanted = torch.tensor([getattr(e, name) for e in expected], dtype=torch.float64)
        torch.testing.assert_close(value, wanted, rtol=0.0, atol=1e-9)


@each_family
def test_an_exported_and_a_saved_row_answer_as_the_population_does(task: str, tmp_path: Path) -> None:
    population = grown(task)
    inputs, _ = validation(task, population, 30)
    answers = logits(population, inputs)
    for row in range(ROWS):
        network = export_host(population, row)
        torch.testing.assert_close(network(inputs), answers[row], rtol=0.0, atol=1e-11)
        save_network(network, tmp_path / "network.pt")
        assert torch.equal(load_network(tmp_path / "network.pt")(inputs), network(inputs))


@each_family
@pytest.mark.parametrize("blend", Blend)
def test_a_newborn_seed_is_silent_and_learns_from_its_first_step(task: str, blend: Blend) -> None:
    population = build(task, 2, dtype=torch.float32)
    inputs, _ = validation(task, population, 20)
    before = logits(population, inputs)
    grow(population, [Place(row, 1, 0, blend, stage) for row, stage in enumerate((Stage.INCUBATING, Stage.HOLDING))])
    assert torch.equal(logits(population, inputs), before)
    report = train_epoch(population, minibatches(task, population, count=1))
    assert bool((report.seed_grad_norm[:, 1] > 1e-5).all())


@each_family
def test_weights_are_drawn_by_key_and_no_global_generator_is_touched(task: str) -> None:
    before = torch.get_rng_state()
    many, one = build(task, 3), build(task, 1, keys=torch.tensor([1002]))
    for population in (many, one):
        train_epoch(population, minibatches(task, population, keys=torch.arange(1002 - len(population) + 1, 1003)))
    torch.testing.assert_close(many.body.values[2], one.body.values[0], rtol=0.0, atol=1e-11)
    assert torch.equal(torch.get_rng_state(), before)


@each_family
def test_an_interrupted_environment_goes_on(task: str) -> None:
    settings = {"task": task, "num_envs": 2, "training_steps": 1, "warmup_steps": 0, "live_units": (1, 2)}
    straight, after = EsperVectorEnv(**settings), EsperVectorEnv(**settings)
    ops = (Op.GERMINATE, Op.WAIT, Op.ADVANCE, Op.WAIT)
    actions = [{"op": op, "slot": 0, "blueprint": 0, "blend": Blend.GATE, "tempo": 0} for op in ops]
    batches = [{head: np.full(2, int(value)) for head, value in action.items()} for action in actions]
    straight.reset(seed=4)
    for batch in batches[:3]:
        straight.step(batch)
    after.reset(seed=5)
    after.load_state_dict(straight.state_dict())
    (seen, reward, *_), (seen_after, reward_after, *_) = straight.step(batches[3]), after.step(batches[3])
    np.testing.assert_array_equal(seen, seen_after)
    np.testing.assert_array_equal(reward, reward_after)
    assert straight.simulation.population.census.live[:, 0].all()


def plain_only(population: Population) -> Population:
    """The same rows with nothing hand-fused."""
    engine = population.engine
    host, blueprints = engine.host, tuple(replace(blueprint, fused=None) for blueprint in engine.blueprints)
    sample = host.sample()
    default = host_of(host.template, host.family, sample.dtype)(shape=tuple(sample.shape[1:]))
    settings = (engine.optimizer, engine.max_grad_norm, engine.device, engine.dtype, engine.metric)
    return replace(clone(population), engine=Engine(default, blueprints, *settings))


@pytest.mark.parametrize("task", [*FUSED, "digits_deep"])
def test_what_is_fused_by_hand_equals_the_default(task: str) -> None:
    fused = grown(task)
    default = plain_only(fused)
    assert default.engine.host.slots == fused.engine.host.slots
    inputs, labels = validation(task, fused, 40)
    expected, found = evaluate(default, inputs, labels), evaluate(fused, inputs, labels)
    for name, value in vars(found).items():
        torch.testing.assert_close(value, getattr(expected, name), rtol=0.0, atol=1e-10)
    for population in (default, fused):
        train_epoch(population, minibatches(task, population))
    assert largest_difference(default, fused) < 1e-8


@each_family
def test_training_and_evaluation_never_ask_the_device(task: str) -> None:
    real, population = grown(task), build(task, 2, device="meta")
    train_epoch(population, minibatches(task, population, count=1))
    result = evaluate(population, *validation(task, population, 5))
    assert result.metric.device.type == "meta"
    assert real.body.values.shape[1] == population.body.values.shape[1]


def test_a_forgotten_argument_default_is_the_networks_own() -> None:
    host = HOSTS["tanh_mlp"](shape=(4,), inputs=4)  # type: ignore[call-arg]
    assert [slot.outputs for slot in host.slots] == [(12,), (10,), (12,)]
    assert host == HOSTS["tanh_mlp"](shape=(4,), inputs=4, widths=(12, 10, 12))  # type: ignore[call-arg]


@pytest.mark.parametrize("make", [lambda: host_of(tanh_mlp, "graph"), lambda: Blueprint("graph", Sine, 1.0)])
def test_an_unknown_family_is_answered_with_the_known_ones(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=f"amily is 'graph'; allowed: {', '.join(FAMILIES)}"):
        make()


def test_bridges_are_one_per_block() -> None:
    with pytest.raises(ValueError, match="there are 1 bridges; allowed: one per block, 2"):
        Network([nn.Linear(3, 3), nn.Linear(3, 3)], nn.Linear(3, 2), bridges=[nn.Identity()])


@pytest.mark.parametrize("unfit", [nn.Dropout(0.5), nn.BatchNorm1d(4)], ids=["dropout", "batch norm"])
def test_a_module_with_randomness_or_memory_of_its_own_is_refused(unfit: nn.Module) -> None:
    def network() -> Network:
        return Network([nn.Sequential(nn.Linear(4, 4), unfit)], nn.Linear(4, 2))

    with pytest.raises((RuntimeError, ValueError)):
        logits(Population.unborn(Engine(host_of(network, "dense")(shape=(4,)), (), SGD()), 1), torch.zeros(3, 4))
