"""Where the probability ratios of an update are most extreme, per head and jointly."""

from dataclasses import dataclass

import torch
from torch import Tensor

from esper_agent.distributed import Ranks


@dataclass(frozen=True)
class RatioExtremes:
    """Largest absolute log-ratios; a bounded report, however many steps are bad."""

    joint: Tensor  # scalar
    head: Tensor  # [heads]
    head_index: Tensor  # [heads] flat step index of each head's worst step; -1 when there is no step


def ratio_extremes(log_ratios: Tensor, step_index: Tensor) -> RatioExtremes:
    """Find the worst steps without leaving the device. A NaN counts as infinitely bad.

    Args:
        log_ratios: log pi_new - log pi_old of each head, [steps, heads]; decision steps only.
        step_index: flat index of each step in the rollout, [steps].
    """
    steps, heads = log_ratios.shape
    if steps == 0:
        zeros = log_ratios.new_zeros(heads)
        return RatioExtremes(log_ratios.new_zeros(()), zeros, torch.full_like(zeros, -1, dtype=torch.long))
    # Steps run along memory: the search for the largest is then many times faster.
    by_head = log_ratios.detach().T
    every = torch.cat([by_head, by_head.sum(0, keepdim=True)])
    size, row = every.abs_().nan_to_num_(nan=torch.inf, posinf=torch.inf).max(dim=1)
    return RatioExtremes(size[-1], size[:-1], step_index[row[:-1]])


def worst_of_ranks(own: RatioExtremes, ranks: Ranks) -> RatioExtremes:
    """The extremes over all ranks; step indices have to be those of one rollout with all environments."""
    if not ranks.several:
        return own
    joint, head = ranks.largest(own.joint, own.head)
    (index,) = ranks.largest(torch.where(own.head == head, own.head_index, -1))
    return RatioExtremes(joint, head, index)
