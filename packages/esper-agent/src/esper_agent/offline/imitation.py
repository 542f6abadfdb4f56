"""Behaviour cloning: the factored recurrent policy learns to decide as recorded, and the critic what came of it."""

import torch
from torch import Tensor

from esper_agent.diagnostics.metrics import Measured
from esper_agent.offline.method import Method, judge_policy, mean_over, value_loss
from esper_agent.offline.sequences import EpisodeBatch


class Imitation(Method):
    """Minimises the cross-entropy of the joint action over whole episodes; heads without a choice add nothing."""

    name = "imitate"
    watched = "loss"

    def loss(self, data: EpisodeBatch) -> tuple[Tensor, Measured]:
        """Cross-entropy of the recorded actions, and the critic's error against the recorded returns."""
        evaluation, config = self.learner.evaluate(data.batch), self.model.config
        log_p = evaluation.distribution.entry_log_prob(data.batch.entries).sum(0)
        policy = -mean_over(log_p, data.batch.decisions)
        targets = self.policy.values.normalize(data.returns)
        value = value_loss(evaluation.values, targets, data.steps, config.huber_delta)
        parts = {"policy_loss": policy.detach(), "value_loss": value.detach()}
        return policy + config.vf_coef * value, parts | self.measure(evaluation, data)

    @torch.no_grad()
    def judge(self, data: EpisodeBatch) -> dict[str, float]:
        """How well the policy knows decisions that it did not learn from."""
        return judge_policy(self.model, self.learner.evaluate(data.batch), data)
