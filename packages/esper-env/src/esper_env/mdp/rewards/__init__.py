"""The reward: bounded terms, and presets that compose them."""

from esper_env.mdp.rewards.presets import PRESETS, Reward
from esper_env.mdp.rewards.terms import TERMS, Transition, potential

__all__ = ["PRESETS", "TERMS", "Reward", "Transition", "potential"]
