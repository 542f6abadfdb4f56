"""Evaluation: one episode loop, one callback, one recorder, one place for statistics."""

from esper_agent.evaluation.callback import EvalCallback, evaluate_policy
from esper_agent.evaluation.paired import evaluate

__all__ = ["EvalCallback", "evaluate", "evaluate_policy"]
