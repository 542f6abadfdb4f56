"""Statistics and their 95 % intervals: one bootstrap for instances, for training seeds, and for both at once.

Whoever calls decides what is resampled: paired instances where nothing is trained, training seeds where only means are
known, and seeds and instances where agents are compared that played the same instances. Interquartile mean,
probability of improvement and the stratified percentile bootstrap are those of rliable, which the tests compare with.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from math import isnan, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]
CONFIDENCE, REPLICATIONS, BOOTSTRAP_SEED = 0.95, 2_000, 0
DIGITS = 3  # that are printed, and that decide who is ahead
BATCH = 200  # resamples in memory at a time


@dataclass(frozen=True)
class Estimate:
    """A number and the ends of its 95 % interval, which are not numbers where there is none."""

    point: float
    low: float = nan
    high: float = nan

    def __str__(self) -> str:
        return f"{self.point:z.{DIGITS}f}" + (
            "" if isnan(self.low) else f" [{self.low:z.{DIGITS}f}, {self.high:z.{DIGITS}f}]"
        )

    @property
    def verdict(self) -> str:
        """As a difference: "ahead", "behind", or "open" when the interval, as printed, holds 0 or is not there."""
        return "ahead" if round(self.low, DIGITS) > 0 else "behind" if round(self.high, DIGITS) < 0 else "open"


def bootstrap(statistic: Callable[..., Any], *samples: Floats, paired: bool = False) -> Floats:
    """A statistic over the first axis of samples [n, ...] and the ends of its interval, [3, ...].

    Args:
        statistic: takes the samples and an axis.
        samples: from a single observation there is no interval.
        paired: resample all samples alike, not each by itself.
    """
    point = np.asarray(statistic(*samples, axis=0))
    if max(map(len, samples)) < 2:
        return np.stack([point, np.full_like(point, nan), np.full_like(point, nan)])
    # SciPy refuses samples of a single observation; repeated, it is the same observation.
    several = [np.repeat(sample, 2, axis=0) if len(sample) == 1 else sample for sample in samples]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)  # about ends that are not numbers
        found = stats.bootstrap(
            several, statistic, n_resamples=REPLICATIONS, batch=BATCH, axis=0, paired=paired, method="percentile",
            confidence_level=CONFIDENCE, rng=BOOTSTRAP_SEED,
        )  # fmt: skip
    return np.stack([point, *found.confidence_interval])


def interquartile_mean(scores: Floats, axis: int = 0) -> Floats:
    """The mean without a quarter at either end."""
    mean: Floats = np.asarray(stats.trim_mean(scores, 0.25, axis=axis))
    return mean


def mean(values: Floats) -> Estimate:
    """The mean of one value per unit."""
    return Estimate(*bootstrap(np.mean, values).tolist())


def ratio(part: Floats, whole: Floats) -> Estimate:
    """The ratio of two means over the same units; not a number where the whole is zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return Estimate(*bootstrap(lambda p, w, axis: p.mean(axis) / w.mean(axis), part, whole, paired=True).tolist())


def iqm(scores: Floats) -> Estimate:
    """Interquartile mean of one score per seed."""
    return Estimate(*bootstrap(interquartile_mean, scores).tolist())


def profile(scores: Floats, thresholds: Floats) -> Floats:
    """The share of instances whose score is above each threshold, from [seeds, instances] to [3, thresholds].

    Whole seeds are resampled: what one agent did in its instances is not independent.
    """
    return bootstrap(np.mean, (scores[..., None] > thresholds).mean(axis=1))


def hierarchical(statistic: Callable[..., Any], *samples: Floats) -> Estimate:
    """A statistic of the means of each seed, with an interval over seeds and instances.

    Seeds are resampled, and instances, the same for all seeds and samples since they all played the same ones. One
    seed alone stands for a policy that was not trained: then instances alone are resampled.

    Args:
        statistic: takes the means, a score per seed, and an axis.
        samples: [seeds, instances] each.
    """
    point, number = float(statistic(*(one.mean(axis=1) for one in samples), axis=0)), samples[0].shape[1]
    if number < 2:
        return Estimate(point)
    random = np.random.default_rng(BOOTSTRAP_SEED)
    weights = random.multinomial(number, np.full(number, 1 / number), REPLICATIONS) / number  # of the instances
    drawn = []
    for sample in samples:
        seeds = random.integers(len(sample), size=(REPLICATIONS, len(sample)))
        drawn.append(np.take_along_axis(weights @ sample.T, seeds, axis=1))
    low, high = np.quantile(statistic(*drawn, axis=1), ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    return Estimate(point, float(low), float(high))


def hierarchical_iqm(scores: Floats) -> Estimate:
    """Interquartile mean of the seeds' means, from [seeds, instances]."""
    return hierarchical(interquartile_mean, scores)


def hierarchical_difference(scores: Floats, others: Floats) -> Estimate:
    """Mean difference, seed by seed on the same instances; a single seed of the others meets every seed."""
    return hierarchical(np.mean, scores - others)


def hierarchical_improvement(scores: Floats, others: Floats) -> Estimate:
    """The probability that a seed's mean is higher than that of one of the others; ties count half."""
    return hierarchical(probability_of_improvement, scores, others)


def probability_of_improvement(scores: Floats, others: Floats, axis: int = 0) -> Floats:
    """Over all pairs along an axis."""
    pairs = np.moveaxis(scores, axis, -1)[..., :, None] - np.moveaxis(others, axis, -1)[..., None, :]
    share: Floats = (np.sign(pairs) / 2 + 0.5).mean(axis=(-2, -1))
    return share


def difference(scores: Floats, others: Floats) -> Estimate:
    """Mean difference, seed by seed, with Student's interval; a single score of the others meets every seed."""
    differences = scores - others
    point, number = float(differences.mean()), len(differences)
    if number < 2:
        return Estimate(point)
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, number - 1) * differences.std(ddof=1) / np.sqrt(number))
    return Estimate(point, point - reach, point + reach)
