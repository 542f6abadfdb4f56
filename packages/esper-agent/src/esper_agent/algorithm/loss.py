"""The PPO loss, as pure functions of what the policy says now, what the old policy said, and the targets."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from esper_agent.algorithm.rollout_buffer import SequenceBatch
from esper_agent.diagnostics.metrics import Measured
from esper_agent.distributed import ALONE, Ranks
from esper_agent.networks.distribution import cross_entropy
from esper_agent.networks.policy import Evaluation


@dataclass(frozen=True)
class Targets:
    """What a batch of sequences is judged by, each [sequences, time]."""

    head_log_probs: Tensor  # [heads, sequences, time], of the old policy
    p: Tensor  # [cells, width, sequences, time], of `joint`, of the old policy
    entropy: Tensor  # of the old policy's joint distribution, in nats
    values: Tensor  # normalised, of the old policy
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
    entropy_unit: Literal["share", "nats"]
    entropy_coefs: Tensor  # [heads]
    pull: float = 0.0  # weight of the divergence from where the training started


@dataclass(frozen=True)
class Counts:
    """What the means of a loss are taken over; with several ranks, all of them, so that their losses add up."""

    steps: Tensor  # decisions
    choices: Tensor  # [heads] decisions where the head had a choice

    @classmethod
    def of(cls, batch: SequenceBatch, ranks: Ranks = ALONE) -> "Counts":
        """Those of the minibatches of all ranks."""
        choices = (batch.legality.available & batch.decisions).flatten(1).sum(1)
        return cls(*ranks.sum(batch.decisions.sum(), choices))


@dataclass(frozen=True)
class Loss:
    """The number that is minimised, and what was measured on the way."""

    total: Tensor
    log_ratios: Tensor  # [heads, sequences, time]; 0 on steps without a decision
    metrics: Measured  # means over the counted steps, of which this batch has its share


def ppo_loss(
    evaluation: Evaluation, batch: SequenceBatch, targets: Targets, settings: LossSettings, counts: Counts
) -> Loss:
    """Clipped surrogate, Huber value loss and per-head entropies over the decision steps."""
    distribution, decisions = evaluation.distribution, batch.decisions
    weights = (decisions / counts.steps.clamp(min=1)).flatten()
    head_log_probs = distribution.entry_log_prob(batch.entries)
    head_log_ratios = torch.where(decisions, head_log_probs - targets.head_log_probs, 0.0)
    policy = -surrogate(head_log_ratios, targets.advantages, settings).flatten() @ weights
    value = value_loss(evaluation.values, targets, settings).flatten() @ weights
    capacity = batch.legality.inverse_capacity
    entropy = bonus = mean_entropies(distribution.head_entropy(capacity), decisions, counts.choices)
    if settings.entropy_unit == "nats":
        bonus = mean_entropies(distribution.head_entropy((capacity > 0).float()), decisions, counts.choices)
    total = policy + settings.vf_coef * value - (settings.entropy_coefs * bonus).sum()
    with torch.no_grad():
        log_ratio = head_log_ratios.sum(0)
        measured = {
            "approx_kl": k3(log_ratio),
            "exact_kl": cross_entropy(targets.p, distribution.log_p) - targets.entropy,
            "clip_fraction": (torch.expm1(log_ratio).abs() > settings.clip_range).float(),
        }
        means = torch.stack(list(measured.values())).flatten(1) @ weights
    metrics = {
        "policy_loss": policy,
        "value_loss": value,
        "entropy": entropy,
        **dict(zip(measured, means, strict=True)),
    }
    return Loss(total, head_log_ratios, metrics)


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
    """The Huber loss of each step in normalised units, clipped around the old policy's if so configured."""
    loss = functional.huber_loss(values, targets.returns, reduction="none", delta=settings.huber_delta)
    if settings.clip_range_vf is None:
        return loss
    moved = (values - targets.values).clamp(-settings.clip_range_vf, settings.clip_range_vf)
    clipped = functional.huber_loss(
        targets.values + moved, targets.returns, reduction="none", delta=settings.huber_delta
    )
    return torch.maximum(loss, clipped)


def mean_entropies(head_entropies: Tensor, decisions: Tensor, choices: Tensor) -> Tensor:
    """Entropy of each head over the decision steps where it had a choice."""
    total = head_entropies.flatten(1) @ decisions.flatten().float()  # they are 0 where there is no choice
    return total / choices.clamp(min=1)


def k3(log_ratio: Tensor) -> Tensor:
    """Schulman's estimator of KL(old || new) for each step: unbiased and never negative."""
    return torch.expm1(log_ratio) - log_ratio
