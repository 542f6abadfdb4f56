"""The seeds that may be grafted."""

from esper_env.blueprints import dense, image, sequence
from esper_env.blueprints.base import BLUEPRINTS, Blueprint, SeedTemplate

__all__ = ["BLUEPRINTS", "Blueprint", "SeedTemplate", "dense", "image", "sequence"]
