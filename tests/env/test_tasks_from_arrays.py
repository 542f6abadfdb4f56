"""Data of one's own: a task from arrays in one call, and one clear line for each thing that does not fit."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from esper_env.hosts import CNNHost, MLPHost
from esper_env.tasks import TASKS, Data, Split, Task, task_from_arrays

RNG = np.random.default_rng(0)
LABELS = np.arange(300, dtype=np.int32) % 3
POINTS = np.eye(3)[LABELS] * 4 + RNG.normal(size=(300, 3))


def registered(name: str, task: Task) -> str:
    if name not in TASKS:
        TASKS.register(name, task)
    return name


def test_arrays_become_a_task_that_a_host_learns() -> None:
    task = registered("points", task_from_arrays(POINTS, LABELS))
    env = gymnasium.make("Esper-v0", task=task, lesion_weights=(1.0, 0.0, 0.0), label_noise=(0.0, 0.0))
    env.reset(seed=0)
    wait = dict.fromkeys(env.action_space, 0)
    for _ in range(8):
        *_, info = env.step(wait)
    assert info["metric"] > 0.9


def test_the_splits_are_disjoint_complete_and_scaled_by_the_training_part() -> None:
    inputs = np.arange(100, dtype=np.float64)[:, None] + np.zeros((1, 2))
    data = task_from_arrays(inputs, np.arange(100) % 2, val=0.2, test=0.1).load()
    assert [len(split) for split in (data.train, data.val, data.test)] == [70, 20, 10]
    joined = torch.cat([data.train.inputs, data.val.inputs, data.test.inputs])[:, 0]
    assert len(joined.unique()) == 100
    assert data.train.inputs.mean(0).abs().max() < 1e-6
    assert torch.allclose(data.train.inputs.std(0, correction=0), torch.ones(2), atol=1e-5)


def test_a_constant_feature_stays_finite() -> None:
    data = task_from_arrays(np.ones((20, 2)), np.arange(20) % 2).load()
    assert torch.equal(data.train.inputs, torch.zeros_like(data.train.inputs))


def test_samples_keep_their_labels() -> None:
    labels = np.arange(60) % 4
    data = task_from_arrays(labels[:, None].astype(float), labels, test=0.3).load()
    for split in (data.train, data.val, data.test):
        order = split.inputs[:, 0].argsort()
        assert (split.labels[order].diff() >= 0).all()


def test_a_host_of_ones_own_brings_the_seeds_of_its_family() -> None:
    images = RNG.normal(size=(30, 1, 4, 4))
    task = task_from_arrays(images, np.arange(30) % 2, CNNHost((1, 4, 4), (2, 2), 2))
    assert "convolution" in task.blueprints
    assert "wide_mlp" not in task.blueprints


BAD: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "flat inputs": (POINTS[:, 0], LABELS, {}, "inputs is float64 of shape (300,); allowed: numbers of shape"),
    "text": (POINTS.astype(str), LABELS, {}, "inputs is <U"),
    "not finite": (np.full((300, 3), np.nan), LABELS, {}, "inputs has values that are not finite"),
    "float labels": (POINTS, LABELS.astype(float), {}, "labels is float64 of shape (300,); allowed: integers"),
    "one-hot labels": (POINTS, np.eye(3, dtype=int)[LABELS], {}, "labels is int64 of shape (300, 3)"),
    "labels from 1": (POINTS, LABELS + 1, {}, "labels has the classes [1, 2, 3]; allowed: 0, 1"),
    "a gap": (POINTS, LABELS * 2, {}, "labels has the classes [0, 2, 4]"),
    "lengths": (POINTS, LABELS[:-1], {}, "labels has 299 entries; allowed: one per sample, 300"),
    "too few": (POINTS[:2], LABELS[:2], {}, "inputs has 2 samples; allowed: at least 3"),
    "width": (POINTS, LABELS, {"host": MLPHost(4, (8,), 3)}, "inputs has samples of shape (3,); allowed: what the"),
    "classes": (POINTS, LABELS, {"host": MLPHost(3, (8,), 5)}, "labels has 3 classes; allowed: what the host tells"),
    "seeds": (POINTS, LABELS, {"blueprints": ("convolution",)}, "blueprints is 'convolution'; allowed: low_rank"),
    "shares": (POINTS, LABELS, {"val": 0.6, "test": 0.5}, "val + test is 1.1; allowed: shares that leave"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_gets_one_line(case: str) -> None:
    inputs, labels, more, message = BAD[case]
    with pytest.raises(ValueError, match="allowed") as error:
        task_from_arrays(inputs, labels, **more)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_split_takes_tensors_with_int64_labels_only() -> None:
    inputs, labels = torch.from_numpy(POINTS).float(), torch.from_numpy(LABELS)
    with pytest.raises(ValueError, match=r"^inputs is a numpy.ndarray; allowed: a tensor \(task_from_arrays takes"):
        Split(POINTS, labels.long())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^labels has dtype torch.int32; allowed: torch.int64$"):
        Split(inputs, labels)
    with pytest.raises(ValueError, match=r"^labels has 299 entries; allowed: one per sample, 300$"):
        Split(inputs, labels[:-1].long())


def test_an_environment_refuses_data_that_its_host_does_not_take() -> None:
    split = Split(torch.zeros(40, 5), torch.arange(40) % 10)
    original = TASKS["digits_mlp"]
    task = Task(original.host, original.blueprints, lambda: Data(split, split, split, 10), original.optimizer, 8, 1)
    with pytest.raises(
        ValueError, match=r"^inputs has samples of shape \(5,\); allowed: what the host takes, \(64,\)$"
    ):
        gymnasium.make("Esper-v0", task=registered("too_narrow", task))
