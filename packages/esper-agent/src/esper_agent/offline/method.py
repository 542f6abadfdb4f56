"""What methods that learn from a dataset share: units, the gradient step, and what is measured of a policy."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from esper_agent.algorithm.update import explained_variance
from esper_agent.diagnostics.gradients import clip_gradients
from esper_agent.diagnostics.lstm import lstm_summary
from esper_agent.diagnostics.metrics import Measured
from esper_agent.networks.distribution import FactoredDistribution
from esper_agent.networks.policy import Evaluation
from esper_agent.offline.config import OfflineConfig
from esper_agent.offline.sequences import EpisodeBatch
from esper_agent.ppo import FactoredRecurrentPPO


class Method(ABC):
    """Improves the policy of an agent by one minibatch of recorded episodes after another.

    Args:
        model: the agent.
        config: settings.
        data: the episodes that are learnt from; they set the units of observations and returns.
    """

    name: ClassVar[str]  # of the command
    watched: ClassVar[str | None]  # held-out number whose lowest value decides which policy is kept; None for the last

    def __init__(self, model: FactoredRecurrentPPO, config: OfflineConfig, data: EpisodeBatch) -> None:
        self.model, self.config, self.policy, self.learner = model, config, model.policy, model.learner
        if self.policy.normalizer is not None:
            self.policy.normalizer.update(data.batch.observations[data.steps])
        if model.config.normalize_values:
            self.policy.values.start(data.returns[data.steps])

    @abstractmethod
    def loss(self, data: EpisodeBatch) -> tuple[Tensor, Measured]:
        """What is minimised in the agent's own network, and what was measured on the way."""

    @abstractmethod
    def judge(self, data: EpisodeBatch) -> dict[str, float]:
        """Numbers about episodes that nothing was learnt from."""

    def state_dict(self) -> dict[str, Any]:
        """What changes in the course of the learning beside the agent itself."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state; here there is none."""
        del state

    def minibatch(self, data: EpisodeBatch) -> Measured:
        """One gradient step of the agent's network, unless a number is not finite; what was measured."""
        loss, measured = self.loss(data)
        optimizer, config = self.learner.optimizer, self.model.config
        optimizer.differentiate(loss)
        clip = clip_gradients(optimizer.groups, config.max_group_grad_norm, config.max_grad_norm)
        finite = clip.pre + loss.detach().abs() < torch.inf
        optimizer.step(finite)
        return {
            **measured,
            "loss": loss.detach(),
            "grad_norm_pre": clip.pre,
            "grad_norm_post": clip.post,
            "grad_norms": clip.norms,
            "nonfinite": ~finite,
            "minibatches": finite,
            "active": torch.ones_like(finite),
            "steps": data.batch.decisions.sum(),
        }

    def measure(self, evaluation: Evaluation, data: EpisodeBatch) -> Measured:
        """What a policy's and critic's health is read from, over one minibatch."""
        legality, decisions = data.batch.legality, data.batch.decisions
        with torch.no_grad():
            choices = (legality.available & decisions).flatten(1).sum(1)
            entropy = evaluation.distribution.head_entropy(legality.inverse_capacity)
            values = self.policy.values.denormalize(evaluation.values)[data.steps]
            return {
                "entropy": entropy.flatten(1) @ decisions.flatten().float() / choices.clamp(min=1),
                "entropy_available": choices / decisions.sum().clamp(min=1),
                "value_std": values.std(correction=0),
                "value_mean": values.mean(),
                "return_std": data.returns[data.steps].std(correction=0),
                **self._memory(evaluation.hidden[data.steps]),
            }

    def _memory(self, hidden: Tensor) -> Measured:
        """The health of the memory, if there is one."""
        if not hidden.shape[-1]:
            return {}
        rms, _, saturation, _ = lstm_summary(hidden, self.model.config.detectors.lstm_saturation_level).unbind()
        return {"lstm_rms": rms, "lstm_saturation": saturation}


def mean_over(values: Tensor, flags: Tensor) -> Tensor:
    """The mean of the entries with a flag, [episodes, time] each; 0 if there are none."""
    return (values * flags).sum() / flags.sum().clamp(min=1)


def value_loss(values: Tensor, targets: Tensor, steps: Tensor, delta: float) -> Tensor:
    """Huber's loss of normalised values."""
    return mean_over(functional.huber_loss(values, targets, reduction="none", delta=delta), steps)


def judge_policy(model: FactoredRecurrentPPO, evaluation: Evaluation, data: EpisodeBatch) -> dict[str, float]:
    """How well a policy knows the recorded decisions, and its critic their returns.

    `accuracy/HEAD` is over the decisions in which the recorded op leaves the head a choice, given that op; `recall/OP`
    is the share of the decisions with that op in which the whole action is the recorded one.
    """
    spec, batch, distribution = model.action_spec, data.batch, evaluation.distribution
    log_p = distribution.entry_log_prob(batch.entries).sum(0)
    found = {"loss": mean_over(-log_p, batch.decisions)}
    right, choice = _right_heads(distribution, data), _choices(distribution, data)
    found |= {f"accuracy/{head}": mean_over(right[i], choice[i]) for i, head in enumerate(spec.heads)}
    joint = right.all(0)
    found["accuracy"] = mean_over(joint, batch.decisions)
    for op in range(spec.sizes[0]):
        chosen = batch.decisions & (batch.actions[0] == op)
        if chosen.any():
            found[f"recall/{op}"] = mean_over(joint, chosen)
    values = model.policy.values.denormalize(evaluation.values)[data.steps]
    found["explained_variance"] = explained_variance(values, data.returns[data.steps], torch.ones_like(values))
    return {name: float(value) for name, value in found.items()}


def _right_heads(distribution: FactoredDistribution, data: EpisodeBatch) -> Tensor:
    """Where the most likely value of each head, given the recorded op, is the recorded one, bool [heads, ...]."""
    width, entries = distribution.spec.width, data.batch.entries
    best = distribution.scores.argmax(1)  # [cells, ...]
    return best.gather(0, entries // width) == entries % width


def _choices(distribution: FactoredDistribution, data: EpisodeBatch) -> Tensor:
    """Decisions in which each head has more than one legal value under the recorded op, bool [heads, ...]."""
    width, entries, legality = distribution.spec.width, data.batch.entries, data.batch.legality
    choice = (legality.inverse_capacity > 0).expand(-1, *entries.shape[1:])
    return choice.gather(0, entries // width) & data.batch.decisions
