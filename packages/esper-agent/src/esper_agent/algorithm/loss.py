"""The PPO loss, as pure functions of what the policy says now, what it said at the anchor, and the targets."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from esper_agent.algorithm.rollout_buffer import SequenceBatch
from esper_agent.networks.distribution import cross_entropy
from esper_agent.networks.policy import Evaluation


@dataclass(frozen=True)
class Targets:
    """What a batch of sequences is judged by, each [sequences, time]."""

    head_log_probs: Tensor  # [heads, sequences, time], at the anchor
    p: Tensor  # [cells, width, sequences, time], of `joint`, at the anchor
    entropy: Tensor  # of the joint distribution at the anchor, in nats
    values: Tensor  # normalised, at the anchor
    returns: Tensor  # normalised
    advantages: Tensor  # normalised

    def select(self, rows: Tensor) -> "Targets":
        """Some of the sequences."""
        return Targets(
            self.head_log_probs.index_select(1, rows),
            self.p.index_select(2, rows),
            self.entropy.index_select(0, rows),
            self.values.index_select(0, rows),
            self.returns.index_select(0, rows),
            self.advantages.index_select(0, rows),
        )


@dataclass(frozen=True)
class LossSettings:
    """The numbers that weigh the loss, as they are for one update."""

    clip_range: float
    clip_mode: Literal["joint", "per_head"]
    clip_range_vf: float | None
    vf_coef: float
    huber_delta: float
    entropy_coefs: Tensor  # [heads]


@dataclass(frozen=True)
class Loss:
    """The parts of the loss and what was measured on the way; all are means over decision steps."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor  # [heads]
    choices: Tensor  # [heads] decision steps with a choice
    approx_kl: Tensor
    exact_kl: Tensor
    clip_fraction: Tensor
    log_ratios: Tensor  # [heads, sequences, time]; 0 on steps without a decision
    steps: Tensor


def mean_weights(decisions: Tensor) -> Tensor:
    """Weights that turn a sum over steps into the mean over decision steps; all 0 if there is none."""
    return decisions / decisions.sum().clamp(min=1)


def ppo_loss(evaluation: Evaluation, batch: SequenceBatch, targets: Targets, settings: LossSettings) -> Loss:
    """Clipped surrogate, Huber value loss and per-head entropies over the decision steps."""
    distribution, decisions = evaluation.distribution, batch.decisions
    weights = mean_weights(decisions).flatten()
    head_log_probs, head_entropies = distribution.terms(batch.entries, batch.legality.inverse_capacity)
    head_log_ratios = torch.where(decisions, head_log_probs - targets.head_log_probs, 0.0)
    policy = -surrogate(head_log_ratios, targets.advantages, settings).flatten() @ weights
    value = value_loss(evaluation.values, targets, settings).flatten() @ weights
    entropy, choices = entropies(head_entropies, batch)
    total = weigh(policy, value, entropy, settings)
    with torch.no_grad():
        log_ratio = head_log_ratios.sum(0)
        moved = torch.expm1(log_ratio).abs()
        exact = cross_entropy(targets.p, distribution.log_p) - targets.entropy
        measured = torch.stack([k3(log_ratio), exact, (moved > settings.clip_range).float()])
        approx_kl, exact_kl, clip_fraction = (measured.flatten(1) @ weights).unbind()
    return Loss(
        total, policy, value, entropy, choices, approx_kl, exact_kl, clip_fraction, head_log_ratios,
        decisions.sum(),
    )  # fmt: skip


def weigh(policy: Tensor, value: Tensor, entropy: Tensor, settings: LossSettings) -> Tensor:
    """The number that is minimised."""
    return policy + settings.vf_coef * value - (settings.entropy_coefs * entropy).sum()


def share_of(loss: Loss, settings: LossSettings, steps: Tensor, choices: Tensor) -> Loss:
    """What one rank contributes to the means over the decision steps of all ranks: the shares sum to them.

    Args:
        loss: over this rank's decision steps.
        settings: of the loss.
        steps: decision steps of all ranks.
        choices: those of each head with a choice, of all ranks.
    """
    of_steps, of_choices = loss.steps / steps.clamp(min=1), loss.choices / choices.clamp(min=1)
    policy, value, entropy = loss.policy * of_steps, loss.value * of_steps, loss.entropy * of_choices
    return replace(
        loss,
        total=weigh(policy, value, entropy, settings),
        policy=policy,
        value=value,
        entropy=entropy,
        approx_kl=loss.approx_kl * of_steps,
        exact_kl=loss.exact_kl * of_steps,
        clip_fraction=loss.clip_fraction * of_steps,
        steps=steps,
        choices=choices,
    )


SHARED = ("total", "policy", "value", "entropy", "approx_kl", "exact_kl", "clip_fraction")
"""The fields of a share that have to be summed over the ranks."""


def surrogate(head_log_ratios: Tensor, advantages: Tensor, settings: LossSettings) -> Tensor:
    """The clipped objective of each step: of the joint action, or head by head.

    Head by head, all terms but one are taken relative to the advantage, so that both modes agree at ratio 1.
    """
    if settings.clip_mode == "joint":
        return _clipped(head_log_ratios.sum(0).exp(), advantages, settings.clip_range)
    gains = _clipped(head_log_ratios.exp(), advantages, settings.clip_range) - advantages
    return advantages + gains.sum(0)


def _clipped(ratio: Tensor, advantages: Tensor, clip_range: float) -> Tensor:
    """min(r * A, clip(r) * A): r * A, but no better than at that end of the range that A pulls towards."""
    return (ratio * advantages).clamp(max=advantages + clip_range * advantages.abs())


def value_loss(values: Tensor, targets: Targets, settings: LossSettings) -> Tensor:
    """The Huber loss of each step in normalised units, clipped around the anchor if so configured."""
    loss = functional.huber_loss(values, targets.returns, reduction="none", delta=settings.huber_delta)
    if settings.clip_range_vf is None:
        return loss
    moved = (values - targets.values).clamp(-settings.clip_range_vf, settings.clip_range_vf)
    clipped = functional.huber_loss(
        targets.values + moved, targets.returns, reduction="none", delta=settings.huber_delta
    )
    return torch.maximum(loss, clipped)


def entropies(head_entropies: Tensor, batch: SequenceBatch) -> tuple[Tensor, Tensor]:
    """Normalised entropy of each head over the decision steps where it had a choice, and their number."""
    choices = (batch.legality.available & batch.decisions).flatten(1).sum(1)
    total = head_entropies.flatten(1) @ batch.decisions.flatten().float()  # they are 0 where there is no choice
    return total / choices.clamp(min=1), choices


def k3(log_ratio: Tensor) -> Tensor:
    """Schulman's estimator of KL(old || new) for each step: unbiased and never negative."""
    return torch.expm1(log_ratio) - log_ratio
