"""What a blueprint is: a small module that maps a block's input to something added to its output."""

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor, nn

from esper_env.hosts.base import Slot
from esper_env.population.layout import Params
from esper_env.registry import Registry


class Blueprint(ABC):
    """A kind of seed, described once for one model (`template`) and once fused for n models (`apply`).

    The last operation is a layer scale that starts at zero, so a newborn seed is silent and yet receives gradient.
    """

    family: ClassVar[str]  # which hosts it fits: those of the same family

    @abstractmethod
    def template(self, slot: Slot) -> nn.Module:
        """One plain seed for a slot, ending in a `LayerScale`."""

    @abstractmethod
    def apply(self, params: Params, x: Tensor) -> Tensor:
        """The fused seeds' delta(x); `params` under the template's names."""


BLUEPRINTS: Registry[Blueprint] = Registry("blueprint")


class SeedTemplate(nn.Module):
    """A seed as it is born: the blueprint's body, and a scalar gate that only the GATE blend uses."""

    def __init__(self, blueprint: Blueprint, slot: Slot) -> None:
        super().__init__()
        self.body = blueprint.template(slot)
        self.gate = nn.Linear(slot.inputs[0], 1)
