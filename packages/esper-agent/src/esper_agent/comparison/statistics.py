"""Statistics over training seeds: the trained agent is the unit of replication, never the episode.

The bootstrap is rliable's; it draws from NumPy's global generator, whatever generator it is given, so that generator is
seeded for the time of a call and then put back. The statistics are rliable's too, in forms that are fast enough to be
resampled thousands of times.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

try:
    from rliable import library
    from scipy import stats  # type: ignore[import-untyped]
except ImportError as error:
    raise ImportError("comparing agents needs rliable: pip install 'esper-agent[compare]'") from error

Floats = NDArray[np.float64]
CONFIDENCE, REPLICATIONS, BOOTSTRAP_SEED = 0.95, 2_000, 0


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval; a single seed has none."""

    point: float
    interval: tuple[float, float] | None

    def __str__(self) -> str:
        return f"{self.point:.3f}" + (f" [{self.interval[0]:.3f}, {self.interval[1]:.3f}]" if self.interval else "")

    @property
    def verdict(self) -> str:
        """What it says as a difference: "ahead", "behind", or "open" when the interval holds 0 or there is none."""
        if self.interval is None or self.interval[0] <= 0 <= self.interval[1]:
            return "open"
        return "ahead" if self.point > 0 else "behind"


def interquartile_mean(scores: Floats) -> Floats:
    """The mean over seeds, [seeds, ...] to [...], without a quarter of them at either end."""
    cut = len(scores) // 4
    mean: Floats = np.sort(scores, axis=0)[cut : len(scores) - cut].mean(axis=0)
    return mean


def probability_of_improvement(ours: Floats, theirs: Floats) -> float:
    """That one drawn from ours is higher than one drawn from theirs; ties count half."""
    return float((ours[:, None] > theirs).mean() + (ours[:, None] == theirs).mean() / 2)


def iqm(scores: Floats) -> Estimate:
    """Interquartile mean of one score per seed."""
    point, low, high = iqm_curve(scores[:, None])[:, 0].tolist()
    return Estimate(point, (low, high) if len(scores) > 1 else None)


def iqm_curve(scores: Floats) -> Floats:
    """Interquartile mean at every point of curves [seeds, points]: its value, low and high end, [3, points]."""
    return _bootstrap(len(scores), lambda seeds: interquartile_mean(scores[seeds]))


def profile(scores: Floats, thresholds: Floats) -> Floats:
    """The share of instances whose score is above each threshold, from [seeds, instances] to [3, thresholds].

    Whole seeds are resampled: what one agent did in its instances is not independent.
    """
    shares = (scores[..., None] > thresholds).mean(axis=1)
    return _bootstrap(len(scores), lambda seeds: shares[seeds].mean(axis=0))


def improvement(ours: Floats, theirs: Floats) -> Estimate:
    """The probability that a seed of ours scores higher than one of theirs."""
    pair = {"": [ours[:, None], theirs[:, None]]}
    with _seeded_globally():
        points, intervals = library.get_interval_estimates(
            pair, lambda x, y: np.array([probability_of_improvement(x[:, 0], y[:, 0])]), reps=REPLICATIONS
        )
    low, high = intervals[""][:, 0].tolist()
    return Estimate(float(points[""][0]), (low, high) if max(len(ours), len(theirs)) > 1 else None)


def difference(ours: Floats, theirs: Floats) -> Estimate:
    """Mean of ours minus theirs, seed by seed, with Student's interval; a single score of theirs meets every seed."""
    differences = ours - theirs
    mean, number = float(differences.mean()), len(differences)
    if number < 2:
        return Estimate(mean, None)
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, number - 1) * differences.std(ddof=1) / np.sqrt(number))
    return Estimate(mean, (mean - reach, mean + reach))


def _bootstrap(seeds: int, statistic: Callable[[NDArray[np.int64]], Floats]) -> Floats:
    """A statistic of chosen seeds: its value for all of them, and the ends of its interval, [3, size]."""
    numbers = np.arange(seeds)[:, None]
    if seeds == 1:
        return np.tile(statistic(numbers[:, 0]), (3, 1))
    with _seeded_globally():
        points, intervals = library.get_interval_estimates(
            {"": numbers}, lambda drawn: statistic(drawn[:, 0]), reps=REPLICATIONS
        )
    return np.vstack([points[""], intervals[""]])


@contextmanager
def _seeded_globally() -> Iterator[None]:
    before = np.random.get_state()
    np.random.seed(BOOTSTRAP_SEED)
    try:
        yield
    finally:
        np.random.set_state(before)
