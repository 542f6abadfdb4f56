"""A factored, masked, recurrent PPO with the manners of Stable-Baselines3."""

from esper_agent.config import PPOConfig
from esper_agent.evaluation import EvalCallback, evaluate_policy
from esper_agent.ppo import FactoredRecurrentPPO

__all__ = ["EvalCallback", "FactoredRecurrentPPO", "PPOConfig", "evaluate_policy"]
