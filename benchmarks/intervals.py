"""Bootstrap intervals over paired episodes: every statistic is drawn with the same resampled instances."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
DRAWS, COVERAGE = 4000, 0.95


@dataclass(frozen=True)
class Interval:
    """An estimate and its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def resampled_means(values: Floats) -> Floats:
    """Means of resampled episodes, [DRAWS]; the same resampling for all arrays of one length."""
    index = np.random.default_rng(0).integers(len(values), size=(DRAWS, len(values)))
    means: Floats = values[index].mean(axis=1)
    return means


def interval(values: Floats) -> Interval:
    """Of the mean."""
    return _interval(float(values.mean()), resampled_means(values))


def share(part: Floats, whole: Floats) -> Interval:
    """Of the ratio of two means over the same episodes; not a number where the whole is zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return _interval(float(part.mean() / whole.mean()), resampled_means(part) / resampled_means(whole))


def _interval(estimate: float, draws: Floats) -> Interval:
    low, high = np.quantile(draws, ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2))
    return Interval(estimate, float(low), float(high))
