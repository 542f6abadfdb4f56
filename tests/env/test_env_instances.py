"""Instances: pure functions of keys, drawn as declared, in three sets; the test split is never looked at."""

from dataclasses import replace
from itertools import combinations
from math import erf, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from env_tools import WAIT, everywhere, play, tiny
from esper_env import EsperVectorEnv
from esper_env.config import INSTANCE_SETS, EsperConfig
from esper_env.mdp.instances import Instance, draw, episode_keys, minibatches, noisy_labels
from esper_env.tasks import TASKS, Data, Split
from torch import Tensor

TASK = TASKS["digits_mlp"]
DATA = TASK.load()
KEYS = torch.arange(4000) * 7919 + 3


def drawn(keys: Tensor = KEYS, **settings: Any) -> Instance:
    return draw(keys, TASK, DATA, EsperConfig(task="digits_mlp", **settings))


def assert_share(count: int, total: int, share: float) -> None:
    """A count that a share explains: a two-sided binomial test by its normal limit, at one in a million."""
    deviation = abs(count - total * share) / sqrt(total * share * (1 - share))
    assert 1 - erf(deviation / sqrt(2)) > 1e-6


def assert_uniform(values: Tensor, low: float, high: float) -> None:
    assert ((values >= low) & (values <= high)).all()
    shares = torch.histc((values - low) / (high - low), bins=8, min=0.0, max=1.0)
    for count in shares.tolist():
        assert_share(int(count), len(values), 1 / 8)


def test_an_instance_is_a_pure_function_of_its_key_whatever_the_company() -> None:
    together = drawn(KEYS[:50])
    for row in (0, 17, 49):
        alone = drawn(KEYS[row : row + 1])
        for name, value in vars(alone).items():
            np.testing.assert_array_equal(value[0], getattr(together, name)[row], err_msg=name)


def test_lesions_are_as_frequent_as_declared_and_everywhere_alike() -> None:
    lesioned = drawn(lesion_weights=(0.2, 0.6, 0.2)).live_units < 24
    counts = np.bincount(lesioned.sum(axis=1), minlength=4)
    for count, share in zip(counts, (0.2, 0.6, 0.2), strict=False):
        assert_share(int(count), len(KEYS), share)
    assert counts[3] == 0
    single = lesioned[lesioned.sum(axis=1) == 1]
    for slot in range(3):
        assert_share(int(single[:, slot].sum()), len(single), 1 / 3)


@pytest.mark.parametrize(("weights", "count"), [((1, 0, 0), 0), ((0, 1, 0), 1), ((0, 0, 5), 2)])
def test_a_certain_number_of_lesions_is_certain(weights: tuple[float, float, float], count: int) -> None:
    assert ((drawn(lesion_weights=weights).live_units < 24).sum(axis=1) == count).all()


def test_live_units_are_uniform_over_their_range_and_whole_elsewhere() -> None:
    units = drawn(lesion_weights=(0, 0, 1), live_units=(2, 5)).live_units
    lesioned = units[units < 24]
    assert set(units[units >= 24].tolist()) == {24}
    for value in range(2, 6):
        assert_share(int((lesioned == value).sum()), len(lesioned), 1 / 4)
    assert set(lesioned.tolist()) == {2, 3, 4, 5}


def test_learning_rate_noise_and_subset_are_uniform_over_their_ranges() -> None:
    instance = drawn(learning_rate=(0.03, 0.08), label_noise=(0.0, 0.1), subset=(0.6, 1.0))
    assert_uniform(instance.lr, 0.03, 0.08)
    assert_uniform(instance.label_noise, 0.0, 0.1)
    assert_uniform(instance.subset_size.double() + 0.5, 600, 1000)
    exact = drawn(learning_rate=(0.05, 0.05), label_noise=(0.0, 0.0), subset=(1.0, 1.0))
    assert exact.lr.unique().tolist() == [0.05]
    assert exact.label_noise.unique().tolist() == [0.0]
    assert exact.subset_size.unique().tolist() == [1000]


def test_what_an_instance_draws_is_independent_of_the_rest_of_it() -> None:
    instance = drawn()
    parts = torch.stack(
        [
            instance.lr,
            instance.label_noise,
            instance.subset_size.double(),
            torch.from_numpy((instance.live_units < 24).sum(axis=1)).double(),
            torch.from_numpy(instance.live_units[:, 0]).double(),
        ]
    )
    correlation = torch.corrcoef(parts).fill_diagonal_(0.0)
    correlation[3, 4] = correlation[4, 3] = 0.0  # the number of lesions and one of the places do depend
    assert correlation.abs().max() < 5 / sqrt(len(KEYS))


def test_the_three_sets_are_disjoint_and_episodes_do_not_repeat() -> None:
    base = torch.arange(500)[:, None].expand(-1, 40).reshape(-1)
    for name in INSTANCE_SETS:
        keys = episode_keys(base, torch.arange(40).repeat(500), EsperConfig(task="digits_mlp", instances=name)).tolist()
        assert len(set(keys)) == 20_000
        # Parity and sign tell the sets apart for every key, not only for those that are drawn here.
        assert {("test" if key < 0 else ("train", "validation")[key % 2]) for key in keys} == {name}


def test_environments_of_different_sets_play_different_instances_under_the_same_seed() -> None:
    envs = [tiny(8, instances=name) for name in INSTANCE_SETS]
    for env in envs:
        env.reset(seed=0)
    for one, other in combinations((env.simulation for env in envs), 2):
        assert set(one.instance.key.tolist()).isdisjoint(other.instance.key.tolist())
        assert not torch.equal(one.instance.lr, other.instance.lr)
        assert not torch.equal(one.population.body.values, other.population.body.values)


def test_each_episode_of_a_row_is_another_instance() -> None:
    env, seen = tiny(4, horizon=1, autoreset_mode="same_step"), set()
    env.reset(seed=0)
    for _ in range(10):
        seen |= set(env.simulation.instance.key.tolist())
        env.step(everywhere(WAIT, 4))
    assert len(seen) == 40


def test_minibatches_come_from_the_subset_and_differ_by_step() -> None:
    instance = drawn(KEYS[:20], subset=(0.1, 0.3), label_noise=(0.0, 0.0))
    batches = [minibatches(instance, torch.full((20,), step), TASK, DATA) for step in range(3)]
    for row in range(20):
        allowed = set(instance.subset[row, : int(instance.subset_size[row])].tolist())
        for batch in batches:
            assert set(batch.index[row].flatten().tolist()) <= allowed
            assert torch.equal(batch.labels[row], DATA.train.labels[batch.index[row]])
    assert not torch.equal(batches[0].index, batches[1].index)
    assert batches[0].index.shape == (20, TASK.minibatches_per_step, TASK.batch_size)


def test_label_noise_redraws_the_declared_share_once_and_for_all() -> None:
    instance = drawn(KEYS[:40], label_noise=(0.3, 0.3))
    index = torch.arange(1000).expand(40, -1)
    labels = noisy_labels(instance, index, DATA)
    wrong = (labels != DATA.train.labels).sum()
    assert_share(int(wrong), labels.numel(), 0.3 * 0.9)  # a tenth of the redrawn are right by chance
    assert torch.equal(noisy_labels(instance, index.flip(1), DATA).flip(1), labels)


def test_noise_in_a_text_redraws_single_characters() -> None:
    task, data = TASKS["text"], TASKS["text"].load()
    instance = draw(KEYS[:20], task, data, EsperConfig(task="text", label_noise=(0.3, 0.3), live_units=(1, 2)))
    index = torch.arange(300).expand(20, -1)
    wrong = noisy_labels(instance, index, data) != data.train.labels[index]
    assert_share(int(wrong.sum()), wrong.numel(), 0.3 * (1 - 1 / data.classes))
    assert (wrong.any(dim=2) & ~wrong.all(dim=2)).double().mean() > 0.99  # hardly a window is all of one kind
    assert torch.equal(noisy_labels(instance, index.flip(1), data).flip(1) != data.train.labels[index], wrong)
    batch = minibatches(instance, torch.zeros(20, dtype=torch.int64), task, data)
    assert batch.labels.shape == (20, task.minibatches_per_step, task.batch_size, data.train.labels.shape[1])


@pytest.mark.ledger("V4")
@pytest.mark.parametrize("task", ["digits_mlp", "digits_deep", "digits_cnn", "fashion_mnist_cnn", "cifar10_cnn"])
def test_an_episode_trains_with_the_batches_of_its_task(task: str) -> None:
    changed = replace(TASKS[task], batch_size=3, minibatches_per_step=2)
    instance = draw(KEYS[:4], changed, DATA, EsperConfig(task=task))
    assert minibatches(instance, torch.zeros(4, dtype=torch.int64), changed, DATA).index.shape == (4, 2, 3)


class Watched(Split):
    """A split that counts how often anyone looks at it."""

    looks = 0

    def __getattribute__(self, name: str) -> Any:
        if name in ("inputs", "labels"):
            Watched.looks += 1
        return super().__getattribute__(name)


@pytest.mark.ledger("X9")
@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_no_step_and_no_reset_looks_at_the_test_split(mode: str) -> None:
    env = tiny(4, horizon=5, learning_rate=(0.02, 4.0), autoreset_mode=mode)
    test = env.simulation.data.test
    env.simulation.data = replace(env.simulation.data, test=Watched(test.inputs, test.labels))
    Watched.looks = 0
    for _ in play(env, 15, seed=0, illegal=0.2):
        env.state_dict()
    assert Watched.looks == 0
    report = env.evaluate_test()
    assert Watched.looks > 0
    assert report.metric.shape == (4,)


@pytest.mark.ledger("X9")
def test_the_test_split_changes_nothing_but_the_report() -> None:
    env, other = tiny(3, horizon=5), tiny(3, horizon=5)
    data: Data = other.simulation.data
    other.simulation.data = replace(data, test=Split(data.test.inputs * float("nan"), (data.test.labels + 1) % 10))
    mine, theirs = ([result for _, *result in play(e, 7, seed=1)] for e in (env, other))
    for one, two in zip(mine, theirs, strict=True):
        np.testing.assert_array_equal(one[0], two[0])
        np.testing.assert_array_equal(one[1], two[1])
    assert not torch.equal(env.evaluate_test().metric, other.evaluate_test().metric)


@pytest.mark.ledger("X9")
def test_the_report_is_the_exported_network_on_the_test_split() -> None:
    env = EsperVectorEnv(2, task="digits_mlp")
    for _ in play(env, 6, seed=3):
        pass
    report = env.evaluate_test()
    for row in range(2):
        right = env.export_host(row)(DATA.test.inputs).argmax(dim=1) == DATA.test.labels
        assert report.metric[row].item() == pytest.approx(right.double().mean().item(), abs=1 / len(DATA.test))
