"""A factored, masked, recurrent, SB3-compatible PPO.

What it offers is imported when it is asked for: a command that is stopped while it starts has torch still to load.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esper_agent.config import PPOConfig
    from esper_agent.evaluation import EvalCallback, evaluate, evaluate_policy
    from esper_agent.grower import Grower
    from esper_agent.ppo import FactoredRecurrentPPO

__all__ = ["EvalCallback", "FactoredRecurrentPPO", "Grower", "PPOConfig", "evaluate", "evaluate_policy"]
_HOMES = {
    "EvalCallback": "evaluation",
    "FactoredRecurrentPPO": "ppo",
    "Grower": "grower",
    "PPOConfig": "config",
    "evaluate": "evaluation",
    "evaluate_policy": "evaluation",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
