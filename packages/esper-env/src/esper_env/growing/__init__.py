"""Growth outside the environment: a user's own module, in a user's own training loop."""

from esper_env.growing.growth import Growth
from esper_env.growing.module import GrowingModule
from esper_env.growing.slot import GrowingSlot

__all__ = ["GrowingModule", "GrowingSlot", "Growth"]
