"""The pieces of an update: what the old policy said, the targets of the rollout, and one minibatch."""

from dataclasses import dataclass, replace

import torch
from stable_baselines3.common.utils import FloatSchedule
from torch import Tensor

from esper_agent.algorithm.acting import autocast
from esper_agent.algorithm.compilation import Compilation
from esper_agent.algorithm.loss import Counts, Loss, LossSettings, Targets, ppo_loss
from esper_agent.algorithm.optimizer import GroupedAdamW
from esper_agent.algorithm.pull import Pull
from esper_agent.algorithm.rollout_buffer import (
    RolloutBuffer,
    SequenceBatch,
    Sequences,
    generalized_advantages,
    next_values,
    reaches_end,
)
from esper_agent.algorithm.schedules import EntropySchedule
from esper_agent.config import PPOConfig
from esper_agent.diagnostics.gradients import clip_gradients
from esper_agent.diagnostics.lstm import lstm_summary, pooled_summary
from esper_agent.diagnostics.metrics import Measured, spread
from esper_agent.diagnostics.ratios import ratio_extremes, worst_of_ranks
from esper_agent.distributed import ALONE, Ranks
from esper_agent.networks.distribution import joint
from esper_agent.networks.policy import Evaluation, Policy


@dataclass
class Counters:
    """What has been done so far. Schedules follow `env_steps`."""

    env_steps: int = 0
    rollouts: int = 0
    optimizer_steps: int = 0
    quarantined: int = 0  # transitions with a non-finite reward or observation


@dataclass(frozen=True)
class OldPolicy:
    """What the policy that collected a rollout says about it."""

    head_log_probs: Tensor  # [heads, sequences, time]
    p: Tensor  # [cells, width, sequences, time], of `joint`
    entropy: Tensor  # [sequences, time], joint, in nats
    values: Tensor  # [sequences, time], normalised
    hidden: Tensor  # [sequences, time, size]


class Learner:
    """Improves a policy from rollouts.

    Args:
        policy: the network; its parameters are updated in place.
        config: settings.
        gamma: discount.
        shuffle: generator that orders the sequences.
        ranks: learn as one process with the rollouts of all of them would.
    """

    def __init__(
        self, policy: Policy, config: PPOConfig, gamma: float, shuffle: torch.Generator, ranks: Ranks = ALONE
    ) -> None:
        self.policy, self.config, self.gamma, self.shuffle, self.ranks = policy, config, gamma, shuffle, ranks
        self.device = policy.padding.device
        self.entropy = EntropySchedule(policy.actions.heads, config.ent_coef)
        self.learning_rate = FloatSchedule(config.learning_rate)
        self.clip_range = FloatSchedule(config.clip_range)
        self.optimizer = GroupedAdamW(policy.parameter_groups(), config)
        ranks.copy_from_leader([self.optimizer.flat])
        self.counters = Counters()
        self.pull: Pull | None = None
        # Reading a tensor is free on the CPU and stalls an accelerator; stopping early there would cost more.
        self.may_peek = self.device.type == "cpu"
        self.compilation = Compilation() if config.compile else None
        if self.compilation is not None:
            policy.encode_call = self.compilation.wrap(policy.encode)
            policy.decode_call = self.compilation.wrap(policy.decoder.forward)

    @property
    def compiled(self) -> bool:
        """Whether compiled code is in use."""
        return self.compilation is not None and self.compilation.compiled

    def settings(self, progress_remaining: float) -> LossSettings:
        """The loss's numbers for an update."""
        config, coefs = self.config, self.entropy.coefs(progress_remaining)
        return LossSettings(
            clip_range=self.clip_range(progress_remaining),
            clip_mode=config.clip_mode,
            clip_range_vf=config.clip_range_vf,
            vf_coef=config.vf_coef,
            huber_delta=config.huber_delta,
            entropy_unit=config.entropy_unit,
            entropy_coefs=torch.tensor(list(coefs.values()), device=self.device),
            pull=0.0 if self.pull is None else self.pull.weight * progress_remaining,
        )

    def partition(self, sequences: int) -> list[Tensor]:
        """The sequences in random order, dealt into minibatches."""
        order = torch.randperm(sequences, generator=self.shuffle).to(self.device)
        return list(order.tensor_split(self.config.n_minibatches))

    def evaluate(self, batch: SequenceBatch) -> Evaluation:
        """The policy over some sequences from their stored states; acting's counterpart."""
        with autocast(self.device, self.config.precision):
            evaluation: Evaluation = self.policy(
                batch.observations, batch.state, batch.starts, batch.max_resets, batch.legality.penalty
            )
        return evaluation

    @torch.no_grad()
    def old_policy(self, batch: Sequences, partition: list[Tensor]) -> OldPolicy:
        """What the policy says before it changes, by the same code and minibatches as the first epoch."""
        pieces = []
        for rows in partition:
            part = batch.select(rows)
            evaluation = self.evaluate(part)
            distribution = evaluation.distribution
            log_probs = distribution.entry_log_prob(part.entries)
            p = joint(distribution.spec, distribution.p)
            pieces.append((log_probs, p, distribution.entropy(), evaluation.values, evaluation.hidden))
        order = torch.cat(partition).argsort()
        columns = zip(zip(*pieces, strict=True), (1, 2, 0, 0, 0), strict=True)
        return OldPolicy(*(torch.cat(column, dim).index_select(dim, order) for column, dim in columns))

    def take_in_observations(self, buffer: RolloutBuffer, batch: Sequences) -> None:
        """Let the normaliser know what the rollout saw."""
        if self.policy.normalizer is not None:
            self.policy.normalizer.update(buffer.observations.flatten(0, 1)[batch.decided], self.ranks)

    @torch.no_grad()
    def targets(
        self, buffer: RolloutBuffer, batch: Sequences, old: OldPolicy, last_values: Tensor
    ) -> tuple[Targets, Measured]:
        """Advantages and returns of the rollout, in the units in which the loss takes them, and their metrics."""
        normalizer, decided = self.policy.values, batch.decided
        if self.config.normalize_values and self.counters.rollouts == 0:
            normalizer.start(self._rewards_to_go(buffer).flatten()[decided], self.ranks)
        normalized = buffer.to_time(old.values)
        values = normalizer.denormalize(normalized)
        next_value = normalizer.denormalize(next_values(buffer, normalized, last_values))
        advantages = self._advantages(buffer, values, next_value, self.config.gae_lambda)
        returns = values + advantages
        if self.config.normalize_values:
            normalizer.update(returns.flatten()[decided], self.ranks)
        floor = self.config.advantage_floor * normalizer.deviation
        scaled = normalize_advantages(advantages, decided, floor.float(), self.ranks)
        targets = Targets(
            old.head_log_probs,
            old.p,
            old.entropy,
            buffer.to_sequences(normalizer.normalize(values)),
            buffer.to_sequences(normalizer.normalize(returns)),
            buffer.to_sequences(scaled),
        )
        played = values + self._advantages(buffer, values, next_value, 1.0)
        measured = (values, returns, advantages, scaled, played, reaches_end(buffer))
        fields = (self.ranks.join(field.flatten()[decided]) for field in measured)
        return targets, self._measure(buffer.to_time(old.hidden).flatten(0, 1)[decided], *fields)

    def _advantages(self, buffer: RolloutBuffer, values: Tensor, next_value: Tensor, decay: float) -> Tensor:
        return generalized_advantages(
            buffer.rewards,
            values,
            next_value,
            buffer.terminated,
            buffer.truncated,
            buffer.decisions,
            self.gamma,
            decay,
        )

    def _rewards_to_go(self, buffer: RolloutBuffer) -> Tensor:
        """Discounted rewards to the end of the episode or rollout: returns that need no critic."""
        nothing = torch.zeros_like(buffer.rewards)
        return self._advantages(buffer, nothing, nothing, 1.0)

    def _measure(
        self,
        hidden: Tensor,
        values: Tensor,
        returns: Tensor,
        advantages: Tensor,
        scaled: Tensor,
        played: Tensor,
        ended: Tensor,
    ) -> Measured:
        """The metrics of a rollout, over the decision steps of all ranks; `hidden` is this rank's.

        The returns that the critic learns from contain its own values. Those that were played to the end of the episode
        do not, and judge it where the episode ended in this rollout.
        """
        memory, lost = self._memory(hidden, len(returns))
        value_std, value_mean = torch.std_mean(values, correction=0)
        return_std, return_mean = torch.std_mean(returns, correction=0)
        return {
            "explained_variance": explained_variance(values, returns, torch.ones_like(values)),
            "explained_variance_monte_carlo": explained_variance(values, played, ended),
            "value_mean": value_mean,
            "value_std": value_std,
            "return_mean": return_mean,
            "return_std": return_std,
            **spread("advantage", advantages),
            **spread("normalized_advantage", scaled),
            "nonfinite": (~returns.isfinite()).sum() + lost,
            **memory,
        }

    def _memory(self, hidden: Tensor, steps: int) -> tuple[Measured, Tensor | int]:
        """The metrics of the memory's output, if there is one, and how many of its numbers are not finite."""
        if not hidden.numel():
            return {}, 0
        summary = lstm_summary(hidden, self.config.detectors.lstm_saturation_level)
        rms, _, saturation, lost = pooled_summary(summary, hidden.numel(), self.ranks).unbind()
        return {"lstm_rms": rms, "lstm_saturation": saturation}, lost * (steps * hidden.shape[1])

    def minibatch(self, batch: SequenceBatch, targets: Targets, settings: LossSettings, active: Tensor) -> Measured:
        """One optimiser step, unless the policy has moved too far or a number is not finite; what was measured."""
        counts = Counts.of(batch, self.ranks)
        loss = self._differentiate(batch, targets, settings, counts)
        clip = clip_gradients(self.optimizer.groups, self.config.max_group_grad_norm, self.config.max_grad_norm)
        finite = clip.pre + loss.total.abs() < torch.inf  # false for NaN, too
        kl = loss.metrics["exact_kl"]
        target = torch.inf if self.config.target_kl is None else self.config.target_kl
        proceed = active & (kl <= target) & finite
        self.optimizer.step(proceed)
        ratios = worst_of_ranks(ratio_extremes(loss.log_ratios.flatten(1).T, batch.index.flatten()), self.ranks)
        return {
            **loss.metrics,
            "loss": loss.total,
            "entropy_available": counts.choices / counts.steps.clamp(min=1),
            "exact_kl_max": kl,
            "max_abs_log_ratio": ratios.joint,
            "head_log_ratios": ratios.head,
            "ratio_worst_index": ratios.head_index.take(ratios.head.argmax()),
            "grad_norm_pre": clip.pre,
            "grad_norm_post": clip.post,
            "grad_norms": clip.norms,
            "nonfinite": ~finite,
            "minibatches": proceed,
            "steps": counts.steps,
            "active": active,
        }

    def _differentiate(self, batch: SequenceBatch, targets: Targets, settings: LossSettings, counts: Counts) -> Loss:
        """The loss over the minibatches of all ranks; its gradients are left in the optimiser."""
        evaluation = self.evaluate(batch)
        loss = ppo_loss(evaluation, batch, targets, settings, counts)
        if self.pull is not None:
            away = (self.pull(evaluation, batch) * batch.decisions).sum() / counts.steps.clamp(min=1)
            loss = replace(loss, total=loss.total + settings.pull * away, metrics={**loss.metrics, "pull": away})
        self.optimizer.differentiate(loss.total)
        parts = [part.detach() for part in (loss.total, *loss.metrics.values())]
        gradient, total, *summed = self.ranks.sum(self.optimizer.gradient, *parts)
        if self.ranks.several:
            self.optimizer.gradient.copy_(gradient)
        return replace(loss, total=total, metrics=dict(zip(loss.metrics, summed, strict=True)))


def in_union(batch: Sequences, n_envs: int, ranks: Ranks) -> Sequences:
    """The same with the step indices of one rollout with the environments of all ranks."""
    if not ranks.several:
        return batch
    time, env = batch.index // n_envs, batch.index % n_envs
    return replace(batch, index=(time * ranks.size + ranks.rank) * n_envs + env)


def explained_variance(values: Tensor, returns: Tensor, counted: Tensor) -> Tensor:
    """The share of the variance of the counted returns that the values explain; NaN where they do not vary."""
    weights = counted / counted.sum()

    def variance(numbers: Tensor) -> Tensor:
        return ((numbers - numbers @ weights).square()) @ weights

    return 1 - variance(returns - values) / variance(returns)


def normalize_advantages(advantages: Tensor, decided: Tensor, floor: Tensor, ranks: Ranks = ALONE) -> Tensor:
    """Centre and scale by the moments of all ranks' decision steps; a spread below the floor is not blown up."""
    std, mean = torch.std_mean(ranks.join(advantages.flatten()[decided]), correction=0)
    return (advantages - mean) / torch.maximum(std, floor)
