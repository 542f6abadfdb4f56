"""The metrics of an update: one mapping from name to tensor while it runs, to plain number after one transfer.

A metric is declared where it is measured, by its name in the mapping of a minibatch or of the rollout. That of a
minibatch becomes the mean over all decision steps of the update unless `SUMMARIES` says otherwise. A vector has one
number per head or per group of parameters, and becomes one metric each, such as entropy/op.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Measured = dict[str, Tensor]
"""Scalars, or vectors over heads or groups, on the learner's device."""
Metrics = dict[str, float]
Column = NDArray[np.float64]  # [minibatches, width]
Columns = dict[str, Column]


def spread(name: str, values: Tensor) -> Measured:
    """Moments, range and share above 0 of a non-empty vector, without leaving the device."""
    std, mean = torch.std_mean(values, correction=0)
    low, high = torch.aminmax(values)
    parts = {"mean": mean, "std": std, "min": low, "max": high, "positive_share": (values > 0).float().mean()}
    return {f"{name}/{part}": value for part, value in parts.items()}


def summarize(minibatches: Sequence[Measured], rollout: Measured, *labels: Sequence[str]) -> Metrics:
    """Bring all measurements of an update to the host in one transfer and summarise them.

    Args:
        minibatches: what each measured, with `steps`, its number of decisions, and `active`, which is False once an
            earlier minibatch has stopped the update: such a one is ignored.
        rollout: what was measured once.
        labels: names for the entries of vectors, which they fit by their number.
    """
    stacked = {name: torch.stack([row[name] for row in minibatches]) for name in minibatches[0]}
    pieces = _to_host([*stacked.values(), *rollout.values()])
    table = {name: piece.reshape(len(minibatches), -1) for name, piece in zip(stacked, pieces, strict=False)}
    measured = {name: float(piece[0]) for name, piece in zip(rollout, pieces[len(stacked) :], strict=True)}
    active = {name: column[table["active"][:, 0] > 0] for name, column in table.items()}
    metrics: Metrics = {}
    for name in (name for name in active if name not in ("active", "steps")):
        values = SUMMARIES.get(name, mean)(active[name], active)
        metrics |= _named(name, values, labels) if stacked[name].dim() > 1 else {name: float(values[0])}
    return {**metrics, **measured, "nonfinite": metrics["nonfinite"] + measured["nonfinite"]}


def by_label(metrics: Mapping[str, float], name: str) -> dict[str, float]:
    """The entries of what was a vector, by head or group."""
    return {key.removeprefix(f"{name}/"): value for key, value in metrics.items() if key.startswith(f"{name}/")}


def _to_host(tensors: Sequence[Tensor]) -> list[NDArray[np.float64]]:
    flat = torch.cat([tensor.detach().double().flatten() for tensor in tensors]).cpu().numpy()
    return np.split(flat, np.cumsum([tensor.numel() for tensor in tensors])[:-1])


def _named(name: str, values: NDArray[np.float64], labels: Sequence[Sequence[str]]) -> Metrics:
    (names,) = (each for each in labels if len(each) == len(values))
    return {f"{name}/{label}": float(value) for label, value in zip(names, values, strict=True)}


def mean(values: Column, columns: Columns) -> NDArray[np.float64]:
    """Over decision steps, so that a smaller last minibatch counts for what it holds."""
    return np.asarray((values * columns["steps"]).sum(0) / columns["steps"].sum())


def over_choices(values: Column, columns: Columns) -> NDArray[np.float64]:
    """The mean over the decision steps where the head had a choice; 0 where it never had."""
    choices = columns["steps"] * columns["entropy_available"]
    return np.asarray((values * choices).sum(0) / np.where(choices.any(0), choices.sum(0), 1.0))


def over_steps_taken(values: Column, columns: Columns) -> NDArray[np.float64]:
    """The mean over the optimiser's steps; NaN when none was taken."""
    taken = columns["minibatches"][:, 0] > 0
    return np.asarray(values[taken].mean(0)) if taken.any() else np.full(values.shape[1], np.nan)


def at_the_worst_ratio(values: Column, columns: Columns) -> NDArray[np.float64]:
    """The value of the minibatch in which some head's ratio was most extreme."""
    return np.asarray(values[columns["head_log_ratios"].max(1).argmax()])


def largest(values: Column, _: Columns) -> NDArray[np.float64]:
    """The maximum over minibatches."""
    return np.asarray(values.max(0))


def total(values: Column, _: Columns) -> NDArray[np.float64]:
    """The sum over minibatches."""
    return np.asarray(values.sum(0))


SUMMARIES: dict[str, Callable[[Column, Columns], NDArray[np.float64]]] = {
    "entropy": over_choices,
    "exact_kl_max": largest,
    "max_abs_log_ratio": largest,
    "head_log_ratios": largest,
    "ratio_worst_index": at_the_worst_ratio,
    "grad_norm_pre": over_steps_taken,
    "grad_norm_post": over_steps_taken,
    "grad_norms": over_steps_taken,
    "minibatches": total,
    "nonfinite": total,
}
"""How metrics of minibatches that are no mean over decision steps are summarised."""
