"""The reward: bounded terms, and presets that compose them."""

from esper_env.rewards.presets import PRESETS, Reward
from esper_env.rewards.terms import TERMS, Transition, potential

__all__ = ["PRESETS", "TERMS", "Reward", "Transition", "potential"]
