"""Evaluation over whole episodes."""

from esper_agent.evaluation.episodes import EvalCallback, evaluate_policy

__all__ = ["EvalCallback", "evaluate_policy"]
