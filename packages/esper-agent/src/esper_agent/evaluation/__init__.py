"""Evaluation: one episode loop, one callback, one recorder, one place for statistics."""

from esper_agent.evaluation.callback import EvalCallback, evaluate_policy

__all__ = ["EvalCallback", "evaluate_policy"]
