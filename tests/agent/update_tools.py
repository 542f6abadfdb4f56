"""A small agent, and its update taken apart into the steps that tests look at."""

from dataclasses import replace
from typing import Any

from esper_agent import FactoredRecurrentPPO
from esper_agent.algorithm.loss import Counts, Targets, ppo_loss
from esper_agent.algorithm.rollout_buffer import Sequences
from esper_agent.algorithm.update import Learner
from precision import ulps
from stable_baselines3.common.callbacks import CallbackList
from torch import Tensor
from toy_envs import MaskedHeads

SMALL: dict[str, Any] = {
    "n_steps": 24, "sequence_length": 8, "n_minibatches": 3, "n_epochs": 2, "encoder_sizes": (16,), "lstm_size": 16,
    "head_hidden": 16, "policy_gain": 1.0,
}  # fmt: skip
FEW_ULPS = 8  # a log-probability is a sum over heads of what several layers in float32 made


def make_model(env: Any = None, **changes: Any) -> FactoredRecurrentPPO:
    return FactoredRecurrentPPO(env or MaskedHeads(6), seed=3, **{**SMALL, **changes})


def collect(model: FactoredRecurrentPPO) -> Sequences:
    callback = CallbackList([])
    callback.init_callback(model)
    assert model.collect(callback)
    return model.buffer.sequences()


def with_targets(model: FactoredRecurrentPPO) -> tuple[Sequences, Targets, list[Tensor]]:
    batch = collect(model)
    partition = model.learner.partition(batch.count)
    old_policy = model.learner.old_policy(batch, partition)
    targets, _ = model.learner.targets(model.buffer, batch, old_policy, model.collector.last_values())
    return batch, targets, partition


def first_deviation(model: FactoredRecurrentPPO) -> float:
    """How far the first ratios of a new rollout are from 1, in units of the log-probabilities' last place."""
    batch, targets, partition = with_targets(model)
    return max(deviation(model, batch.select(rows), targets.select(rows)) for rows in partition)


def deviation(model: FactoredRecurrentPPO, batch: Any, targets: Targets) -> float:
    loss = loss_of(model.learner, batch, targets)
    return ulps(loss.log_ratios.sum(0), targets.head_log_probs.sum(0))


def loss_of(learner: Learner, batch: Any, targets: Targets, **changes: Any) -> Any:
    settings = replace(learner.settings(1.0), **changes)
    return ppo_loss(learner.evaluate(batch), batch, targets, settings, Counts.of(batch))
