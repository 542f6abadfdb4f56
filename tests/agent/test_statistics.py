"""Statistics and intervals: those of rliable, over whole seeds or paired instances."""

import math

import numpy as np
import pytest
from esper_agent.evaluation import statistics
from rliable import metrics


@pytest.mark.parametrize("seeds", [1, 2, 4, 5, 9])
def test_the_interquartile_mean_is_rliables(seeds: int) -> None:
    scores = np.random.default_rng(seeds).normal(size=(seeds, 3))
    expected = [metrics.aggregate_iqm(scores[:, i]) for i in range(3)]
    np.testing.assert_allclose(statistics.interquartile_mean(scores), expected)


def test_the_probability_of_improvement_is_rliables() -> None:
    ours, theirs = np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.5])
    expected = metrics.probability_of_improvement(ours[:, None], theirs[:, None])
    assert statistics.probability_of_improvement(ours, theirs) == pytest.approx(expected) == 3.5 / 6


def test_intervals_are_those_of_a_bootstrap_over_seeds() -> None:
    scores, generator = np.array([0.1, 0.4, 0.5, 0.7, 0.9]), np.random.default_rng(0)
    drawn = scores[generator.integers(5, size=(20_000, 5))]
    expected = np.quantile(statistics.interquartile_mean(drawn.T), (0.025, 0.975))
    estimate = statistics.iqm(scores)
    assert estimate.point == pytest.approx(1.6 / 3)
    np.testing.assert_allclose([estimate.low, estimate.high], expected, atol=0.1)
    assert statistics.iqm(scores) == estimate


def test_statistics_leave_numpys_global_generator_alone() -> None:
    np.random.seed(3)
    expected = np.random.random(2)
    np.random.seed(3)
    first = np.random.random()
    statistics.iqm(np.arange(4.0))
    assert [first, np.random.random()] == expected.tolist()


def test_differences_are_paired_by_seed() -> None:
    luck = np.array([0.0, 5.0, -3.0])  # of a seed, the same for both
    estimate = statistics.difference(luck + np.array([0.1, 0.2, 0.3]), luck)
    reach = 4.302653 * 0.1 / np.sqrt(3)  # Student's t with two degrees of freedom
    np.testing.assert_allclose(
        [estimate.point, estimate.low, estimate.high], [0.2, 0.2 - reach, 0.2 + reach], rtol=1e-6
    )
    assert (estimate.verdict, statistics.difference(luck, luck + estimate.point).verdict) == ("open", "behind")
    assert statistics.difference(np.array([0.5]), np.array([0.1])).verdict == "open"  # one seed shows nothing


def test_nobody_is_ahead_by_what_is_printed_as_nothing() -> None:
    hair = statistics.Estimate(-0.0002, -0.0003, -0.0001)
    assert (str(hair), hair.verdict) == ("0.000 [0.000, 0.000]", "open")
    assert statistics.Estimate(-0.002, -0.003, -0.001).verdict == "behind"
    assert statistics.Estimate(0.002, 0.001, 0.003).verdict == "ahead"


def test_a_profile_counts_instances_and_resamples_whole_seeds() -> None:
    scores = np.array([[0.0, 1.0], [0.0, 1.0], [2.0, 3.0]])
    share, low, high = statistics.profile(scores, np.array([-1.0, 0.5, 2.5, 9.0]))
    np.testing.assert_allclose(share, [1.0, 4 / 6, 1 / 6, 0.0])
    assert (low[1], high[1]) == (0.5, 1.0)  # three times the first two seeds, or three times the last


def test_intervals_of_a_mean_cover_what_they_should() -> None:
    rng = np.random.default_rng(0)
    samples = rng.normal(0.3, 1.0, (200, 100))
    covered = [one.low <= 0.3 <= one.high for one in map(statistics.mean, samples)]
    assert 0.9 <= np.mean(covered) <= 0.98
    wide = rng.normal(size=2_000)
    estimate = statistics.mean(wide)
    assert (estimate.high - estimate.low) / 2 == pytest.approx(1.96 * wide.std() / math.sqrt(len(wide)), rel=0.1)


def test_the_ratio_of_means_is_paired_by_instance() -> None:
    whole = np.random.default_rng(0).normal(1.0, 0.5, 100)
    half = statistics.ratio(whole / 2, whole)
    assert (half.point, half.low, half.high) == pytest.approx((0.5, 0.5, 0.5))


def test_one_observation_has_no_interval() -> None:
    estimate = statistics.mean(np.array([0.25]))
    assert math.isnan(estimate.low)
    assert (str(estimate), estimate.verdict) == ("0.250", "open")


def test_a_single_seed_stands_against_every_seed() -> None:
    ours, theirs = np.array([[0.1, 0.4, 0.6, 0.9]]).T.repeat(2, axis=1), np.array([[0.5, 0.5]])
    estimate = statistics.hierarchical_improvement(ours, theirs)
    assert estimate.point == 0.5
    assert 0 <= estimate.low < 0.5 < estimate.high <= 1
    assert statistics.hierarchical_difference(ours, theirs).point == pytest.approx(0.0)


def spread(estimate: statistics.Estimate) -> float:
    return estimate.high - estimate.low


def test_a_hierarchical_interval_has_the_chance_of_seeds_and_of_instances() -> None:
    """Both are resampled, and instances as the common ones that they are: more seeds do not average them out."""
    random = np.random.default_rng(0)
    of_seed, of_instance = random.normal(0, 0.1, (12, 1)), random.normal(0, 1.0, (1, 100))
    both = spread(statistics.hierarchical(np.mean, of_seed + of_instance))
    variances = [one.std() ** 2 / one.size for one in (of_seed, of_instance)]
    assert both == pytest.approx(2 * 1.96 * math.sqrt(sum(variances)), rel=0.1)
    assert spread(statistics.hierarchical(np.mean, of_seed + 0 * of_instance)) < both / 2
    assert spread(statistics.hierarchical(np.mean, 0 * of_seed + of_instance)) == pytest.approx(both, rel=0.1)


def test_a_hierarchical_difference_is_paired_by_instance() -> None:
    hard = np.random.default_rng(0).normal(0, 5, (1, 50))
    estimate = statistics.hierarchical_difference(hard + np.array([[0.1], [0.2], [0.3]]), hard)
    assert (estimate.low, estimate.point, estimate.high) == pytest.approx((0.1, 0.2, 0.3))
    assert estimate.verdict == "ahead"


def test_one_instance_has_no_interval() -> None:
    assert math.isnan(statistics.hierarchical_iqm(np.array([[0.1], [0.2]])).low)
