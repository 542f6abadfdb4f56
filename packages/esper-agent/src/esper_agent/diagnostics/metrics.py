"""The statistics of one update: tensors while it runs, plain numbers after one transfer to the host."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Number = TypeVar("Number")
Columns = dict[str, NDArray[np.float64]]


@dataclass(frozen=True)
class MinibatchStats:
    """What one minibatch measured, on the learner's device. Scalars unless a shape is given."""

    active: Tensor  # False once an earlier minibatch has stopped the update; such rows are ignored
    stepped: Tensor  # whether the optimiser took the step
    steps: Tensor  # decision steps in the minibatch: the weight of its means
    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor  # [heads] normalised conditional entropy, mean over the steps where the head had a choice
    choices: Tensor  # [heads] number of those steps
    approx_kl: Tensor  # mean k3 of the joint log-ratio
    exact_kl: Tensor
    clip_fraction: Tensor
    joint_log_ratio: Tensor  # largest absolute joint log-ratio
    head_log_ratio: Tensor  # [heads] largest absolute log-ratio of each head
    head_log_ratio_index: Tensor  # [heads] flat step index at which it stands
    grad_norm_pre: Tensor
    grad_norm_post: Tensor
    grad_norms: Tensor  # [groups] before clipping
    nonfinite: Tensor  # number of non-finite values met in losses and gradients


@dataclass(frozen=True)
class AdvantageStats(Generic[Number]):
    """The spread of the advantages over decision steps."""

    mean: Number
    std: Number
    min: Number
    max: Number
    positive_share: Number


@dataclass(frozen=True)
class RolloutStats:
    """What is measured once per update, on the learner's device; every field is a scalar tensor."""

    explained_variance: Tensor
    value_mean: Tensor
    value_std: Tensor
    return_mean: Tensor
    return_std: Tensor
    advantage: AdvantageStats[Tensor]  # before normalisation
    normalized_advantage: AdvantageStats[Tensor]  # after it
    lstm_rms: Tensor
    lstm_saturation: Tensor  # share of hidden units with |h| above the configured level
    nonfinite: Tensor  # number of non-finite values met in the rollout


@dataclass(frozen=True)
class UpdateStats:
    """One update in plain numbers; every field is present after every update."""

    policy_loss: float
    value_loss: float
    entropy: dict[str, float]  # normalised conditional entropy; 0 where `entropy_available` is 0
    entropy_available: dict[str, float]  # share of steps where the head had a choice
    approx_kl: float
    approx_kl_max: float  # of any single minibatch
    exact_kl: float
    clip_fraction: float
    max_abs_log_ratio: float  # of the joint policy
    head_log_ratios: dict[str, float]
    ratio_worst_head: str
    ratio_worst_index: int  # flat step index; -1 when there was no step
    explained_variance: float
    value_mean: float
    value_std: float
    return_mean: float
    return_std: float
    advantage: AdvantageStats[float]
    normalized_advantage: AdvantageStats[float]
    grad_norm_pre: float
    grad_norm_post: float
    grad_norms: dict[str, float]
    lstm_rms: float
    lstm_saturation: float
    nonfinite: int
    learning_rate: float
    epochs: int  # epochs in which at least one optimiser step was taken
    minibatches: int  # optimiser steps taken
    stopped_early: bool
    env_steps: int
    rollouts: int
    optimizer_steps: int


@dataclass(frozen=True)
class UpdateContext:
    """What the host already knows about an update."""

    heads: tuple[str, ...]
    groups: tuple[str, ...]
    minibatches_per_epoch: int
    learning_rate: float
    env_steps: int
    rollouts: int
    optimizer_steps_before: int


def advantage_stats(advantages: Tensor) -> AdvantageStats[Tensor]:
    """The spread of a non-empty vector of advantages, without leaving the device."""
    std, mean = torch.std_mean(advantages, correction=0)
    low, high = torch.aminmax(advantages)
    return AdvantageStats(mean, std, low, high, (advantages > 0).float().mean())


def collect_update_stats(
    minibatches: Sequence[MinibatchStats], rollout: RolloutStats, context: UpdateContext
) -> UpdateStats:
    """Bring all measurements to the host in one transfer and summarise them."""
    table, measured = _to_host(minibatches, rollout)
    active = {name: column[table["active"][:, 0] > 0] for name, column in table.items()}
    taken = int(active["stepped"].sum())
    nonfinite = int(active["nonfinite"].sum() + measured.pop("nonfinite"))
    return UpdateStats(
        **_weighted_means(active),
        **_entropies(active, context.heads),
        **_worst_ratios(active, context.heads),
        **_gradient_norms(active, context.groups),
        **_rollout_numbers(measured),
        approx_kl_max=float(active["approx_kl"].max()),
        nonfinite=nonfinite,
        learning_rate=context.learning_rate,
        epochs=-(-taken // context.minibatches_per_epoch),
        minibatches=taken,
        stopped_early=taken < len(minibatches),
        env_steps=context.env_steps,
        rollouts=context.rollouts,
        optimizer_steps=context.optimizer_steps_before + taken,
    )


def _to_host(minibatches: Sequence[MinibatchStats], rollout: RolloutStats) -> tuple[Columns, dict[str, float]]:
    """All minibatches as named columns [minibatch, width], and the rollout's scalars, by one transfer."""
    columns = {
        field.name: torch.stack([getattr(row, field.name) for row in minibatches]).view(len(minibatches), -1)
        for field in fields(MinibatchStats)
    }
    scalars = _scalars(rollout)
    parts = [*columns.values(), *scalars.values()]
    flat = torch.cat([part.detach().double().flatten() for part in parts]).cpu().numpy()
    pieces = np.split(flat, np.cumsum([part.numel() for part in parts])[:-1])
    table = {name: piece.reshape(column.shape) for (name, column), piece in zip(columns.items(), pieces, strict=False)}
    numbers = zip(scalars, (float(piece[0]) for piece in pieces[len(columns) :]), strict=True)
    return table, dict(numbers)


def _scalars(rollout: RolloutStats) -> dict[str, Tensor]:
    """The rollout's scalars by dotted name."""
    named: dict[str, Tensor] = {}
    for field in fields(rollout):
        value = getattr(rollout, field.name)
        if isinstance(value, AdvantageStats):
            named |= {f"{field.name}.{part.name}": getattr(value, part.name) for part in fields(value)}
        else:
            named[field.name] = value
    return named


def _rollout_numbers(measured: dict[str, float]) -> dict[str, Any]:
    """The rollout's numbers as fields of `UpdateStats`."""
    plain: dict[str, Any] = {name: value for name, value in measured.items() if "." not in name}
    for spread in ("advantage", "normalized_advantage"):
        parts = {field.name: measured[f"{spread}.{field.name}"] for field in fields(AdvantageStats)}
        plain[spread] = AdvantageStats(**parts)
    return plain


def _weighted_means(active: Columns) -> dict[str, Any]:
    """Means over decision steps, so that a smaller last minibatch counts for what it holds."""
    names = ("policy_loss", "value_loss", "approx_kl", "exact_kl", "clip_fraction")
    return {name: float(np.average(active[name][:, 0], weights=active["steps"][:, 0])) for name in names}


def _entropies(active: Columns, heads: tuple[str, ...]) -> dict[str, Any]:
    """Entropy of each head over the steps where it had a choice, and their share."""
    choices = active["choices"].sum(axis=0)
    mean = (active["entropy"] * active["choices"]).sum(axis=0) / np.maximum(choices, 1)
    share = choices / active["steps"].sum()
    return {"entropy": _by_name(heads, mean), "entropy_available": _by_name(heads, share)}


def _worst_ratios(active: Columns, heads: tuple[str, ...]) -> dict[str, Any]:
    """The largest absolute log-ratios: joint, of each head, and where the worst head's stands."""
    minibatch, head = np.unravel_index(active["head_log_ratio"].argmax(), active["head_log_ratio"].shape)
    return {
        "max_abs_log_ratio": float(active["joint_log_ratio"].max()),
        "head_log_ratios": _by_name(heads, active["head_log_ratio"].max(axis=0)),
        "ratio_worst_head": heads[head],
        "ratio_worst_index": int(active["head_log_ratio_index"][minibatch, head]),
    }


def _gradient_norms(active: Columns, groups: tuple[str, ...]) -> dict[str, Any]:
    """Mean norms over the steps that were taken; NaN when none was."""
    taken = active["stepped"][:, 0] > 0
    names = ("grad_norm_pre", "grad_norm_post", "grad_norms")
    mean = {
        name: active[name][taken].mean(axis=0) if taken.any() else np.full(active[name].shape[1], np.nan)
        for name in names
    }
    return {
        "grad_norm_pre": float(mean["grad_norm_pre"][0]),
        "grad_norm_post": float(mean["grad_norm_post"][0]),
        "grad_norms": _by_name(groups, mean["grad_norms"]),
    }


def _by_name(names: tuple[str, ...], values: NDArray[np.float64]) -> dict[str, float]:
    return {name: float(value) for name, value in zip(names, values, strict=True)}


def flatten_stats(stats: UpdateStats) -> dict[str, float]:
    """The numbers of an update by path, such as entropy/op or advantage/std."""
    flat: dict[str, float] = {}
    for name, value in asdict(stats).items():
        if isinstance(value, dict):
            flat |= {f"{name}/{key}": float(part) for key, part in value.items()}
        elif not isinstance(value, str):
            flat[name] = float(value)
    return flat
