"""Running moments, the observation normaliser and the value normaliser (PopArt).

Only the learner updates them, once per rollout; environments and workers own none. Moments of parallel learners are
combined by `merge`.
"""

import math
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor, nn

from esper_agent.distributed import ALONE, Ranks


@dataclass(frozen=True)
class Moments:
    """Count, mean and population variance of a sample."""

    count: Tensor
    mean: Tensor
    variance: Tensor


def moments_of(sample: Tensor) -> Moments:
    """The moments of a sample along its first dimension, in float64."""
    sample = sample.double()
    variance, mean = torch.var_mean(sample, dim=0, correction=0)
    return Moments(torch.tensor(float(sample.shape[0]), dtype=torch.float64, device=sample.device), mean, variance)


def merge(first: Moments, second: Moments) -> Moments:
    """The moments of two samples together (Chan, Golub and LeVeque)."""
    count = first.count + second.count
    share = second.count / count
    gap = second.mean - first.mean
    mean = first.mean + gap * share
    variance = first.variance * (1 - share) + second.variance * share + gap.square() * share * (1 - share)
    return Moments(count, mean, variance)


def pool(own: Moments, ranks: Ranks) -> Moments:
    """The moments of the samples of all ranks together."""
    if not ranks.several:
        return own
    columns = (ranks.join(part[None]) for part in (own.count, own.mean, own.variance))
    return reduce(merge, [Moments(*row) for row in zip(*columns, strict=True)])


class RunningMoments(nn.Module):
    """Moments of all samples so far, or of about the last `window` samples.

    A window limits the weight of the past to that of `window - 1` samples, so that old ones fade geometrically.
    """

    count: Tensor
    mean: Tensor
    variance: Tensor
    updates: Tensor  # how many samples were merged: the identity of the snapshot in use

    def __init__(self, shape: tuple[int, ...], window: float = math.inf) -> None:
        super().__init__()
        self.window = window
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("updates", torch.zeros((), dtype=torch.long))

    def update(self, sample: Tensor, ranks: Ranks = ALONE) -> None:
        """Take in a sample of shape [n, *shape], and those of the other ranks."""
        new = pool(moments_of(sample), ranks)
        past = Moments(self.count.clamp(max=(self.window - 1) * new.count), self.mean, self.variance)
        merged = merge(past, new)
        self.count.copy_(merged.count)
        self.mean.copy_(merged.mean)
        self.variance.copy_(merged.variance)
        self.updates += 1


class ObservationNormalizer(nn.Module):
    """Scales observations by moments that stay fixed between two calls of `update`."""

    scale: Tensor
    shift: Tensor

    def __init__(self, size: int, clip: float) -> None:
        super().__init__()
        self.clip = clip
        self.moments = RunningMoments((size,))
        self.register_buffer("scale", torch.ones(size))
        self.register_buffer("shift", torch.zeros(size))

    def forward(self, observations: Tensor) -> Tensor:
        """Normalised observations, within the clip."""
        return torch.addcmul(self.shift, observations, self.scale).clamp_(-self.clip, self.clip)

    def update(self, observations: Tensor, ranks: Ranks = ALONE) -> None:
        """Take in the observations of a rollout, [n, size], and those of the other ranks."""
        self.moments.update(observations, ranks)
        deviation = self.moments.variance.sqrt()
        # A component that does not vary carries nothing: leave its scale alone.
        scale = torch.where(deviation > 1e-6, 1 / deviation.clamp(min=1e-6), 1.0)
        self.scale.copy_(scale)
        self.shift.copy_(-self.moments.mean * scale)


class ValueNormalizer(nn.Module):
    """PopArt: the critic's last layer works in units of the returns' moments.

    When the moments move, the layer is corrected so that the values it stands for stay the same.
    """

    def __init__(self, output: nn.Linear, window: float) -> None:
        super().__init__()
        self.moments = RunningMoments((), window)
        self._output = [output]  # in a list: the layer belongs to the critic, not to this module

    @property
    def deviation(self) -> Tensor:
        """The unit of normalised values; 1 while returns have not varied."""
        deviation = self.moments.variance.sqrt()
        return torch.where(deviation > 1e-8, deviation, 1.0)

    def normalize(self, returns: Tensor) -> Tensor:
        """Returns in units of their moments."""
        return ((returns - self.moments.mean) / self.deviation).float()

    def denormalize(self, values: Tensor) -> Tensor:
        """The critic's output in units of the reward."""
        return (values * self.deviation + self.moments.mean).float()

    @torch.no_grad()
    def start(self, returns: Tensor, ranks: Ranks = ALONE) -> None:
        """Set the first units, before the critic has learnt any values worth keeping."""
        self.moments.update(returns, ranks)

    @torch.no_grad()
    def update(self, returns: Tensor, ranks: Ranks = ALONE) -> None:
        """Take in a rollout's returns, and those of the other ranks, and correct the layer."""
        mean, deviation = self.moments.mean.clone(), self.deviation
        self.moments.update(returns, ranks)
        layer = self._output[0]
        layer.weight.mul_(deviation / self.deviation)
        layer.bias.copy_((layer.bias * deviation + mean - self.moments.mean) / self.deviation)
