"""Detectors of gaming: observers that every step runs over every row; their flags are in `info`."""

from collections.abc import Callable

from torch import Tensor

from esper_env.config import EsperConfig
from esper_env.mdp.rewards.terms import Transition
from esper_env.mdp.state import LIVE, Stage
from esper_env.registry import Registry

Detector = Callable[[Transition], Tensor]
DETECTORS: Registry[Detector] = Registry("detector")


def held_to_ransom(t: Transition, without: Tensor) -> Tensor:
    """Rows with a live seed whose removal hurts although its host gains next to nothing over another metric."""
    held = (t.after.contribution > t.config.ransom_contribution) & t.after.in_stage(LIVE)
    return held.any(dim=1) & (t.after.metric - without <= t.config.ransom_gain)


def ransomware(t: Transition) -> Tensor:
    """A seed whose removal hurts although the host does no better than its control: it made itself needed."""
    return t.control_measured & held_to_ransom(t, t.control)


def entanglement(t: Transition) -> Tensor:
    """A seed whose removal hurts although the host without any seed does as well: seeds that undo each other."""
    return held_to_ransom(t, t.after.all_off)


def churn(t: Transition) -> Tensor:
    """Seeds are planted and pruned again and again."""
    return t.after.prunes >= t.config.churn_prunes


def endless_holding(t: Transition) -> Tensor:
    """A seed is neither committed nor removed for long."""
    waited = (t.after.stage == Stage.HOLDING) & (t.after.stage_age >= t.config.holding_limit)
    return waited.any(dim=1)


DETECTORS.register("ransomware", ransomware)
DETECTORS.register("entanglement", entanglement)
DETECTORS.register("churn", churn)
DETECTORS.register("endless_holding", endless_holding)


NEED_CONTROL = ("ransomware",)
NEED_EVERY_SEED = ("ransomware", "entanglement")  # measured in every step


def measurable(controlled: bool, config: EsperConfig) -> tuple[str, ...]:
    """Names of the detectors that an environment with or without a control runs."""
    missing: tuple[str, ...] = () if controlled else NEED_CONTROL
    missing += NEED_EVERY_SEED if config.measurements == "partial" else ()
    return tuple(name for name in DETECTORS if name not in missing)


def detect(transition: Transition, names: tuple[str, ...]) -> dict[str, Tensor]:
    """The flags of some registered detectors, [n] each."""
    return {name: DETECTORS[name](transition) for name in names}
