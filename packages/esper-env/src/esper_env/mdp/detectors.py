"""Detectors of gaming: observers that every step runs over every row; their flags are in `info`."""

from collections.abc import Callable

from torch import Tensor

from esper_env.mdp.rewards.terms import Transition
from esper_env.mdp.state import LIVE, Stage
from esper_env.registry import Registry

Detector = Callable[[Transition], Tensor]
DETECTORS: Registry[Detector] = Registry("detector")


def ransomware(t: Transition) -> Tensor:
    """A seed whose removal hurts although the host without any seed does as well: it made itself needed."""
    held = (t.after.contribution > t.config.ransom_contribution) & t.after.in_stage(LIVE)
    return held.any(dim=1) & (t.after.metric - t.after.all_off <= t.config.ransom_gain)


def churn(t: Transition) -> Tensor:
    """Seeds are planted and pruned again and again."""
    return t.after.prunes >= t.config.churn_prunes


def endless_holding(t: Transition) -> Tensor:
    """A seed is neither committed nor removed for long."""
    waited = (t.after.stage == Stage.HOLDING) & (t.after.stage_age >= t.config.holding_limit)
    return waited.any(dim=1)


DETECTORS.register("ransomware", ransomware)
DETECTORS.register("churn", churn)
DETECTORS.register("endless_holding", endless_holding)


def detect(transition: Transition) -> dict[str, Tensor]:
    """The flags of every registered detector, [n] each."""
    return {name: DETECTORS[name](transition) for name in DETECTORS}
