"""What a blueprint is: a small module that maps a block's input to something added to its output."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from esper_env.fused.families import FAMILIES
from esper_env.fused.layout import LayerScale, Params
from esper_env.fused.vmapped import Vmapped, undrawn
from esper_env.hosts.base import Slot
from esper_env.registry import Registry

Fused = Callable[[Params, Tensor], Tensor]  # what n models with these parameters make of activations


@dataclass(frozen=True)
class TwoProducts:
    """The inside of a dense seed as two linear layers with an activation between: such seeds share padded products."""

    down: tuple[str, ...]  # names of the linear layers that read the input, side by side
    up: str  # name of the one that writes
    activation: str  # linear, relu, or gated: the first of two layers times the sigmoid of the second

    def __post_init__(self) -> None:
        allowed = {"linear": 1, "relu": 1, "gated": 2}
        if allowed.get(self.activation) != len(self.down):
            raise ValueError(
                f"TwoProducts has {len(self.down)} layers down and the activation {self.activation!r}; "
                "allowed: one with linear or relu, two with gated"
            )


@dataclass(frozen=True)
class Blueprint:
    """The inside of a kind of seed: a plain module.

    A layer scale that starts at zero follows it, so a newborn seed is silent and yet receives gradient.
    """

    family: str  # which hosts it fits: those of the same family
    template: Callable[[Slot], nn.Module]  # one plain module for a slot
    gain: float  # of the layer scale; the smaller it is, the smaller are the steps that training takes with the seed
    fused: Fused | None = None  # a faster form for n models that gives the same; None: `torch.func.vmap`
    products: TwoProducts | None = None  # the template's layers, if they are two products on dense activations

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(f"Blueprint.family is {self.family!r}; allowed: {', '.join(FAMILIES)}")

    def body(self, slot: Slot) -> Fused:
        """The fused module for a slot; parameters under the template's names."""
        if self.fused is not None:
            return self.fused
        family, module = FAMILIES[self.family], Vmapped(undrawn(lambda: self.template(slot)))
        return lambda params, x: family.arranged(module(params, family.models_first(x)))


BLUEPRINTS: Registry[Blueprint] = Registry("blueprint")


class SeedTemplate(nn.Module):
    """A seed as it is born: the blueprint's module, a layer scale, and a scalar gate that only the GATE blend uses."""

    def __init__(self, blueprint: Blueprint, slot: Slot) -> None:
        super().__init__()
        self.body = blueprint.template(slot)
        self.last = LayerScale(slot.outputs[0], blueprint.gain, image=len(slot.outputs) == 3)
        self.gate = nn.Linear(slot.inputs[0], 1)

    def forward(self, x: Tensor) -> Tensor:
        """The seed's delta."""
        delta: Tensor = self.last(self.body(x))
        return delta
