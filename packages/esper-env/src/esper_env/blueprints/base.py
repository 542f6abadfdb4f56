"""What a blueprint is: a small module that maps a block's input to something added to its output."""

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor, nn

from esper_env.fused.layout import LayerScale, Params
from esper_env.hosts.base import Slot
from esper_env.registry import Registry


class Blueprint(ABC):
    """The inside of a kind of seed, described once for one model (`template`) and once fused for n models (`apply`).

    A layer scale that starts at zero follows it, so a newborn seed is silent and yet receives gradient.
    """

    family: ClassVar[str]  # which hosts it fits: those of the same family
    gain: float  # of the layer scale; the smaller it is, the smaller are the steps that training takes with the seed

    @abstractmethod
    def template(self, slot: Slot) -> nn.Module:
        """One plain module for a slot."""

    @abstractmethod
    def apply(self, params: Params, x: Tensor) -> Tensor:
        """What the fused modules make of x; `params` under the template's names."""


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
