"""A factored, masked, recurrent, SB3-compatible PPO."""

from esper_agent.config import PPOConfig
from esper_agent.evaluation import EvalCallback, evaluate_policy
from esper_agent.ppo import FactoredRecurrentPPO

__all__ = ["EvalCallback", "FactoredRecurrentPPO", "PPOConfig", "evaluate_policy"]
