"""A module of one's own is a host: it answers as the plain module does, and one line says what cannot be a slot."""

from collections.abc import Callable
from dataclasses import replace

import gymnasium
import pytest
import torch
from engine_tools import TINY_LENGTH, build, logits, minibatches, validation
from esper_env.hosts import from_module
from esper_env.population.training import train_epoch
from esper_env.tasks import TASKS
from esper_env.testing import check_vector_env
from own_modules import RESIDUAL_SLOTS, TOKEN_SLOTS, ResNet, Tokens
from torch import Tensor, nn

IMAGES, DENSE = torch.zeros(2, 1, 8, 8), torch.zeros(2, 4)
OWN = {
    "own_resnet": (ResNet, RESIDUAL_SLOTS, IMAGES, "digits_cnn"),
    "own_tokens": (Tokens, TOKEN_SLOTS, torch.zeros(2, TINY_LENGTH, dtype=torch.int64), "tiny_text"),
}
for name, (make, slots, example, like) in OWN.items():
    TASKS.register(name, replace(TASKS[like], host=from_module(make, slots=slots, example_input=example)))


def own_module(name: str, row: dict[str, Tensor]) -> nn.Module:
    """The user's module with the parameters of a row, which are sorted by the part of the host that they belong to."""
    make, slots, _, _ = OWN[name]
    model = make().double()
    model.load_state_dict(model.state_dict() | {_own_name(where, slots): value for where, value in row.items()})
    return model


def _own_name(where: str, slots: list[str]) -> str:
    part, rest = where.split(".", 1)
    if part in ("enter", "head"):
        return rest
    number, local = rest.split(".", 1)
    return local if part == "bridges" else f"{slots[int(number)]}.{local}"


@pytest.mark.parametrize("name", OWN)
def test_a_host_answers_as_the_module_it_was_made_from(name: str) -> None:
    population = build(name, 3)
    train_epoch(population, minibatches(name, population))
    inputs, _ = validation(name, population, 20)
    answers, layout = logits(population, inputs), population.body.layout
    for row in range(3):
        model = own_module(name, layout.state_dict(population.body.values[row]))
        torch.testing.assert_close(model(inputs), answers[row], rtol=0.0, atol=1e-11)


def test_slots_have_the_shapes_that_an_example_shows() -> None:
    assert [slot.inputs for slot in TASKS["own_resnet"].host.slots] == [(4, 8, 8), (4, 8, 8), (6, 4, 4)]
    assert [slot.outputs for slot in TASKS["own_tokens"].host.slots] == [(8, TINY_LENGTH)] * 2


def test_making_a_host_draws_nothing_and_leaves_the_module_alone() -> None:
    model, before = ResNet(), torch.get_rng_state()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    from_module(lambda: model, slots=RESIDUAL_SLOTS, example_input=IMAGES)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_any_id_plays_it() -> None:
    settings = {"task": "own_tokens", "horizon": 3, "dtype": "float64"}
    check_vector_env(
        lambda n, mode: gymnasium.make_vec("Esper-v0", n, autoreset_mode=mode, **settings),
        lambda: gymnasium.make("Esper-v0", **settings),
    )


class Around(nn.Module):
    """One layer and what a user may do around it."""

    def __init__(self, forward: Callable[["Around", Tensor], Tensor], **modules: nn.Module) -> None:
        super().__init__()
        self.layer, self.out, self.way = nn.Linear(4, 4), nn.Linear(4, 2), forward
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self, x)


class Noisy(nn.Module):
    """Draws random numbers without saying so."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


class Two(nn.Module):
    """Gives two tensors."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    return model


def plain(m: Around, x: Tensor) -> Tensor:
    return m.out(m.layer(x))


REFUSED = {
    "no such slot": (lambda: Around(plain), ["layr"], "slot 'layr' is no submodule of the model; there are: layer"),
    "no slot": (lambda: Around(plain), [], "allowed: a list of one or more different names"),
    "a name alone": (lambda: Around(plain), "layer", "allowed: a list of one or more different names"),
    "named twice": (lambda: Around(plain), ["layer", "layer"], "allowed: a list of one or more different names"),
    "used twice": (
        lambda: Around(lambda m, x: m.out(m.layer(m.layer(x)))),
        ["layer"],
        "slot 'layer' is called 2 times in a forward; allowed: once",
    ),
    "not used": (lambda: Around(lambda m, x: m.out(x)), ["layer"], "called 0 times in a forward; allowed: once"),
    "in another order": (lambda: Around(plain), ["out", "layer"], r"allowed: in the order .*\['layer', 'out'\]"),
    "inside another": (
        lambda: nn.Sequential(nn.Sequential(nn.Linear(4, 4))),
        ["0", "0.0"],
        "slot '0.0' is inside slot '0'",
    ),
    "two tensors": (
        lambda: Around(lambda m, x: m.out(m.two(x)[0]), two=Two()),
        ["two"],
        "slot 'two' is called with other than one tensor, or gives other than one; allowed: one",
    ),
    "scripted": (
        lambda: Around(lambda m, x: m.out(m.fast(x)), fast=torch.jit.script(nn.Linear(4, 4))),
        ["fast"],
        "slot 'fast' is inside a torch.jit module; allowed: modules before they are scripted",
    ),
    "skip past a slot": (
        lambda: Around(lambda m, x: m.out(x + m.layer(x))),
        ["layer"],
        "passes by slot 'layer'; allowed: after a slot only its output is used",
    ),
    "control flow on values": (
        lambda: Around(lambda m, x: m.out(m.layer(x) if x.sum() >= 0 else x)),
        ["layer"],
        "torch.fx cannot trace Around around its slots .* allowed: no control flow on values",
    ),
    "tied": (tied, ["0"], "'1.weight' and '0.weight' are one parameter; allowed: no tied parameters"),
    "one module on both sides": (
        lambda: Around(lambda m, x: m.out(m.more(m.layer(m.more(x)))), more=nn.Linear(4, 4)),
        ["layer"],
        "is used before a slot and after it; allowed: modules used in one place",
    ),
    "running statistics": (
        lambda: Around(lambda m, x: m.out(m.norm(m.layer(x))), norm=nn.BatchNorm1d(4)),
        ["layer"],
        r"'norm' \(BatchNorm1d\) keeps running statistics; allowed: track_running_stats=False, GroupNorm",
    ),
    "dropout": (
        lambda: Around(lambda m, x: m.out(m.drop(m.layer(x))), drop=nn.Dropout(0.1)),
        ["layer"],
        r"'drop' \(Dropout\) draws random numbers; allowed: p=0",
    ),
    "hidden randomness": (
        lambda: Around(lambda m, x: m.out(m.noisy(m.layer(x))), noisy=Noisy()),
        ["layer"],
        "torch.func.vmap cannot run the model",
    ),
    "one number per sample": (
        lambda: Around(lambda m, x: m.out(m.layer(x)).sum(1)),
        ["layer"],
        r"allowed: logits \[batch, ..., classes\]",
    ),
    "no module": (lambda: "model", ["layer"], "the model is a str; allowed: an nn.Module"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_one_line_says_what_cannot_be_a_host(case: str) -> None:
    make, slots, message = REFUSED[case]
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        from_module(make, slots=slots, example_input=DENSE)
    assert "\n" not in str(caught.value)


def test_a_slot_that_changes_the_size_of_an_image_is_refused() -> None:
    with pytest.raises(ValueError, match=r"slot 'layer2.0' changes shape, from \(4, 8, 8\) to \(6, 4, 4\)"):
        from_module(ResNet, slots=["layer2.0"], example_input=IMAGES)


def test_slots_of_two_families_are_refused() -> None:
    with pytest.raises(ValueError, match=r"have \[2, 4\] axes; allowed: all with 2 \(dense\), 3 \(sequence\) or 4"):
        from_module(ResNet, slots=["layer1.0", "fc"], example_input=IMAGES)
