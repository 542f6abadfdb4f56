"""Running moments, observation scaling and PopArt against closed forms."""

import copy
import math

import pytest
import torch
from esper_agent.networks.normalization import (
    Moments,
    ObservationNormalizer,
    RunningMoments,
    ValueNormalizer,
    merge,
    moments_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn


@pytest.mark.ledger("V3", "V6")
@given(st.integers(0, 10_000), st.lists(st.integers(1, 30), min_size=1, max_size=8), st.floats(-1e3, 1e3))
@settings(max_examples=60, deadline=None)
def test_merged_shards_equal_one_pass(seed: int, shards: list[int], offset: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(n, 3, generator=generator, dtype=torch.float64) * 5 + offset for n in shards]
    merged = moments_of(parts[0])
    for part in parts[1:]:
        merged = merge(merged, moments_of(part))
    running = RunningMoments((3,))
    for part in parts:
        running.update(part)
    whole = torch.cat(parts)
    for found in (merged, Moments(running.count, running.mean, running.variance)):
        torch.testing.assert_close(found.mean, whole.mean(0), rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(found.variance, whole.var(0, correction=0), rtol=1e-8, atol=1e-10)
        assert found.count == len(whole)
    assert running.updates == len(parts)


@pytest.mark.ledger("V6", "TG6")
def test_a_window_forgets_geometrically_by_the_closed_form() -> None:
    window, samples = 5, torch.randn(40, 16, dtype=torch.float64)
    running = RunningMoments((), window)
    for sample in samples:
        running.update(sample)
    weights = torch.tensor([1.0], dtype=torch.float64)
    for step in range(1, len(samples)):
        share = 1 / min(step + 1, window)
        weights = torch.cat([weights * (1 - share), weights.new_tensor([share])])
    torch.testing.assert_close(running.mean, (weights * samples.mean(1)).sum())
    second = (weights * samples.square().mean(1)).sum()
    torch.testing.assert_close(running.variance, second - running.mean.square())


@pytest.mark.ledger("V6", "TG6")
def test_a_windowed_stream_converges_to_the_true_moments_and_follows_a_change() -> None:
    generator = torch.Generator().manual_seed(0)
    running = RunningMoments((), 10)
    for _ in range(100):
        running.update(torch.randn(1000, generator=generator) * 3 + 7)
    assert running.mean.item() == pytest.approx(7, abs=0.15)
    assert math.sqrt(running.variance.item()) == pytest.approx(3, abs=0.1)
    for _ in range(100):
        running.update(torch.randn(1000, generator=generator) - 2)
    assert running.mean.item() == pytest.approx(-2, abs=0.05)


@pytest.mark.ledger("U3")
def test_observation_statistics_change_only_on_update() -> None:
    normalizer = ObservationNormalizer(2, clip=5.0)
    observations = torch.tensor([[10.0, 7.0], [14.0, 7.0]])
    assert torch.equal(normalizer(observations), observations.clamp(-5, 5))
    assert normalizer.moments.updates == 0
    normalizer.update(observations)
    torch.testing.assert_close(normalizer(observations), torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
    assert normalizer.moments.updates == 1
    assert normalizer(torch.tensor([[1e6, 7.0]])).tolist() == [[5.0, 0.0]]
    assert {"moments.mean", "scale", "shift", "moments.updates"} <= set(normalizer.state_dict())


@given(st.integers(0, 10_000), st.floats(-100, 100), st.floats(0.01, 100))
@settings(max_examples=40, deadline=None)
def test_popart_keeps_the_values_when_the_units_move(seed: int, mean: float, spread: float) -> None:
    torch.manual_seed(seed)
    layer = nn.Linear(4, 1)
    normalizer = ValueNormalizer(layer, window=4)
    normalizer.start(torch.randn(50))
    features = torch.randn(9, 4)
    before = normalizer.denormalize(layer(features))
    returns = torch.randn(50) * spread + mean
    normalizer.update(returns)
    after = normalizer.denormalize(layer(features))
    torch.testing.assert_close(before, after, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(normalizer.denormalize(normalizer.normalize(returns)), returns, rtol=1e-4, atol=1e-3)


def test_normalised_returns_have_unit_moments_in_the_first_window() -> None:
    normalizer = ValueNormalizer(nn.Linear(2, 1), window=4)
    returns = torch.randn(2000) * 30 + 200
    normalizer.start(returns)
    units = normalizer.normalize(returns)
    assert units.mean().item() == pytest.approx(0, abs=1e-5)
    assert units.std(correction=0).item() == pytest.approx(1, abs=1e-5)


def test_constant_returns_keep_finite_units() -> None:
    normalizer = ValueNormalizer(nn.Linear(2, 1), window=4)
    normalizer.start(torch.full((10,), 3.0))
    assert normalizer.deviation == 1.0
    assert normalizer.normalize(torch.full((10,), 3.0)).abs().max() == 0.0


@pytest.mark.ledger("V3")
def test_two_normalisers_share_nothing() -> None:
    first, second = ObservationNormalizer(2, 10.0), ObservationNormalizer(2, 10.0)
    alone = copy.deepcopy(second)
    samples = torch.randn(6, 20, 2)
    for index, sample in enumerate(samples):
        (first if index % 2 else second).update(sample)
        if index % 2 == 0:
            alone.update(sample)
    assert all(
        torch.equal(a, b) for a, b in zip(second.state_dict().values(), alone.state_dict().values(), strict=True)
    )
