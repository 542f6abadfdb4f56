"""Reward presets: named compositions of terms."""

from dataclasses import dataclass

import torch
from torch import Tensor

from esper_env.config import EsperConfig, check_choice
from esper_env.mdp.rewards.terms import TERMS, Limits, Transition
from esper_env.registry import Registry

_ALWAYS = ("invalid_action", "rollback")

PRESETS: Registry[tuple[str, ...]] = Registry("reward preset")
PRESETS.register("shaped", ("final_metric", "rent", "shaping", *_ALWAYS))
PRESETS.register("sparse", ("final_metric", "rent", *_ALWAYS))
PRESETS.register(
    "contribution",
    ("final_metric", "rent", "contribution", "entanglement", "holding", "alpha_shock", "op_cost", *_ALWAYS),
)
PRESETS.register("stream", ("final_metric", "online_metric", "rent", "shaping", *_ALWAYS))
PRESETS.register("loss", ("loss_drop", "rent", *_ALWAYS))


@dataclass(frozen=True)
class Reward:
    """The reward of an environment: the terms of its preset, scaled last."""

    config: EsperConfig
    limits: Limits

    def __post_init__(self) -> None:
        check_choice("reward", self.config.reward, tuple(PRESETS))
        if self.config.measurements == "partial" and self.needs_control:
            others = [name for name in PRESETS if not any(TERMS[term].needs_control for term in PRESETS[name])]
            allowed = f"with partial measurements {', '.join(others)}"
            raise ValueError(f"reward is {self.config.reward!r}; allowed: {allowed}")

    @property
    def terms(self) -> tuple[str, ...]:
        """Names of the terms."""
        return PRESETS[self.config.reward]

    @property
    def needs_control(self) -> bool:
        """Whether some term compares the host with one that never had a seed."""
        return any(TERMS[name].needs_control for name in self.terms)

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest reward of a step."""
        each = [TERMS[name].bounds(self.config, self.limits) for name in self.terms]
        low, high = (sum(ends) for ends in zip(*each, strict=True))
        return self.config.reward_scale * low, self.config.reward_scale * high

    def __call__(self, transition: Transition) -> tuple[Tensor, dict[str, Tensor]]:
        """The reward of each row, float64 [n], and its scaled terms, which sum to it."""
        # Adding 0 turns -0.0 into 0.0: what costs nothing is no loss to a reader.
        terms = {name: self.config.reward_scale * TERMS[name].value(transition) + 0.0 for name in self.terms}
        return torch.stack(list(terms.values())).sum(dim=0), terms
