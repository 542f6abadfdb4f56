"""Randomness is a pure function of (key, purpose, step, index), and its draws look random in every direction."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from engine_tools import HOSTS, build, grow, minibatches, unsilence, validation
from engine_tools import assortment as places_of
from esper_env.fused.randomness import Purpose, integers, permutation, random_bits, uniform
from esper_env.population.evaluation import evaluate
from esper_env.population.export import export_host
from esper_env.population.training import train_epoch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

WORDS = st.integers(-(1 << 63), (1 << 63) - 1)
MASK = (1 << 64) - 1
SMALLEST_P = 1e-5  # draws are fixed, so a test that passes once always passes
COUNT = 20_000


def one_word(value: int) -> Tensor:
    return torch.tensor([value], dtype=torch.int64)


def splitmix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


@settings(max_examples=100, deadline=None)
@given(WORDS, st.sampled_from(Purpose), st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_bits_equal_unbounded_integer_arithmetic(key: int, purpose: Purpose, step: int, index: int) -> None:
    bits = splitmix((key + 0x9E3779B97F4A7C15) & MASK)
    for word in (int(purpose), step, index):
        bits = splitmix(((bits ^ word) + 0x9E3779B97F4A7C15) & MASK)
    assert random_bits(one_word(key), purpose, step, one_word(index)).item() & MASK == bits


@settings(max_examples=30, deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=9), st.integers(0, 100), st.integers(1, 40))
def test_a_draw_does_not_depend_on_its_company(keys: list[int], step: int, size: int) -> None:
    rows, index = torch.tensor(keys), torch.arange(size)
    together = uniform(rows[:, None], Purpose.SUBSET, step, index)
    for i, key in enumerate(keys):
        for j in (0, size - 1):
            assert uniform(one_word(key), Purpose.SUBSET, step, one_word(j)).item() == together[i, j].item()
    steps = torch.full((len(keys), 1), step)
    assert torch.equal(uniform(rows[:, None], Purpose.SUBSET, steps, index), together)


def draws(key: int = 0, purpose: Purpose = Purpose.HOST_WEIGHTS, step: int = 0) -> Tensor:
    return uniform(one_word(key), purpose, step, torch.arange(COUNT))


STREAMS = {
    "indices": draws(),
    "steps": uniform(one_word(0), Purpose.MINIBATCH, torch.arange(COUNT), one_word(0)),
    "keys": uniform(torch.arange(COUNT), Purpose.MINIBATCH, 0, one_word(0)),
    "negative keys": uniform(-torch.arange(COUNT), Purpose.MINIBATCH, 0, one_word(0)),
    "high bits of the key": uniform(torch.arange(COUNT) << 40, Purpose.MINIBATCH, 0, one_word(0)),
}


@pytest.mark.parametrize("stream", STREAMS)
def test_draws_are_uniform(stream: str) -> None:
    values = STREAMS[stream]
    assert values.min() >= 0.0
    assert values.max() < 1.0
    counts = torch.histc(values, bins=100, min=0.0, max=1.0)
    assert stats.chisquare(counts.numpy()).pvalue > SMALLEST_P
    assert stats.kstest(values.numpy(), "uniform").pvalue > SMALLEST_P
    fine = values * (1 << 20) % 1.0  # the low bits are as good as the high ones
    assert stats.kstest(fine.numpy(), "uniform").pvalue > SMALLEST_P


def independent(left: Tensor, right: Tensor) -> bool:
    table = np.histogram2d(left.numpy(), right.numpy(), bins=12, range=[[0, 1], [0, 1]])[0]
    return stats.chi2_contingency(table).pvalue > SMALLEST_P


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("lag", [1, 2, 32, 1024])
def test_neighbours_in_a_stream_are_independent(stream: str, lag: int) -> None:
    assert independent(STREAMS[stream][:-lag], STREAMS[stream][lag:])


def test_purposes_are_independent() -> None:
    for left, right in pairwise([*Purpose, Purpose(1)]):
        assert independent(draws(purpose=left), draws(purpose=right)), (left, right)


@pytest.mark.parametrize("other", [1, 2, 3, 64, 1 << 32])
def test_keys_and_steps_are_independent(other: int) -> None:
    assert independent(draws(), draws(key=other))
    assert independent(draws(), draws(step=other))
    assert independent(draws(key=other), draws(step=other))


@pytest.mark.parametrize("word", ["key", "step", "index"])
def test_flipping_one_input_bit_flips_half_of_the_output(word: str) -> None:
    base = torch.arange(500)
    flips = []
    for bit in range(0, 63, 3):
        first = {"key": base, "step": one_word(7), "index": one_word(9)}
        first[word] = base
        second = first | {word: base ^ (1 << bit)}
        left, right = (random_bits(w["key"], Purpose.SUBSET, w["step"], w["index"]) for w in (first, second))
        flips.append(np.mean([(int(x) & MASK).bit_count() for x in left ^ right]))
    assert 31.0 < min(flips) <= max(flips) < 33.0  # 32 expected; one standard error is 0.18


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1 << 62), st.integers(1, 300))
def test_integers_stay_in_range_and_reach_all_of_it(key: int, high: int) -> None:
    values = integers(one_word(key), Purpose.MINIBATCH, 0, torch.arange(20 * high), high)
    assert values.min() >= 0
    assert values.max() < high
    bounds = torch.tensor([[high], [1]])
    rows = integers(torch.tensor([[key], [key]]), Purpose.MINIBATCH, 0, torch.arange(50), bounds)
    assert torch.equal(rows[0][: len(values)], values[:50])
    assert bool((rows[1] == 0).all())


def test_integers_are_uniform() -> None:
    values = integers(one_word(5), Purpose.MINIBATCH, 2, torch.arange(COUNT), 37)
    assert stats.chisquare(torch.bincount(values, minlength=37).numpy()).pvalue > SMALLEST_P


@settings(max_examples=30, deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=5, unique=True), st.integers(0, 200))
def test_permutations_are_permutations(keys: list[int], size: int) -> None:
    orders = permutation(torch.tensor(keys), Purpose.SUBSET, size)
    assert orders.shape == (len(keys), size)
    assert torch.equal(orders.sort(dim=1).values, torch.arange(size).expand(len(keys), size))
    assert torch.equal(permutation(one_word(keys[-1]), Purpose.SUBSET, size)[0], orders[-1])


def test_every_permutation_is_as_likely() -> None:
    orders = permutation(torch.arange(COUNT), Purpose.SUBSET, 4)
    code = (orders * torch.tensor([64, 16, 4, 1])).sum(dim=1)
    counts = torch.unique(code, return_counts=True)[1]
    assert len(counts) == 24
    assert stats.chisquare(counts.numpy()).pvalue > SMALLEST_P


@pytest.mark.parametrize("task", HOSTS)
def test_no_global_generator_is_read_or_changed(task: str) -> None:
    results = []
    for global_seed in (1, 2):
        torch.manual_seed(global_seed)
        np.random.seed(global_seed)
        before = torch.get_rng_state(), np.random.get_state()[1].copy()
        population = build(task, 3)
        grow(population, places_of(population))
        unsilence(population)
        train_epoch(population, minibatches(task, population, count=2))
        evaluate(population, *validation(task, population, 20))
        answers = export_host(population, 0)(validation(task, population, 20)[0])
        assert torch.equal(torch.get_rng_state(), before[0])
        assert np.array_equal(np.random.get_state()[1], before[1])
        results.append((population.body.values, answers))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
