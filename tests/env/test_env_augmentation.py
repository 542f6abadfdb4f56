"""Augmentation: exact shifts and mirrored copies, drawn from the episode's seed alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from esper_env import EsperVectorEnv
from esper_env.config import EsperConfig
from esper_env.fused.minibatches import Minibatches
from esper_env.mdp.instances import draw, minibatches
from esper_env.tasks import TASKS, Data
from esper_env.tasks.augmentation import Augmentation, shifted
from esper_env.tasks.digits import load_digits
from torch import Tensor

TASK = replace(TASKS["digits_cnn"], batch_size=16, minibatches_per_step=3)
CONFIG = EsperConfig(task="digits_cnn")


def taken(augmentation: Augmentation | None, seeds: list[int], steps: list[int]) -> Tensor:
    """All samples of a step, [n, minibatches, batch, 1, 8, 8]."""
    data = batches(augmentation, seeds, steps)
    return torch.stack([data.batch(number, 0, len(seeds))[0] for number in range(3)], dim=1)


def batches(augmentation: Augmentation | None, seeds: list[int], steps: list[int]) -> Minibatches:
    task, data = replace(TASK, augmentation=augmentation), load_digits()
    return minibatches(draw(torch.tensor(seeds), task, data, CONFIG), torch.tensor(steps), task, data)


@pytest.mark.parametrize("margin", [0, 1, 3])
def test_shifts_are_those_of_an_image_with_repeated_edges(margin: int) -> None:
    images = np.random.default_rng(0).normal(size=(60, 2, 5, 7))
    down, right = np.random.default_rng(1).integers(2 * margin + 1, size=(2, 60))
    mine = shifted(torch.from_numpy(images), margin, torch.from_numpy(down), torch.from_numpy(right)).numpy()
    for number, image in enumerate(images):
        rows = np.clip(np.arange(5) - (down[number] - margin), 0, 4)
        columns = np.clip(np.arange(7) - (right[number] - margin), 0, 6)
        np.testing.assert_array_equal(mine[number], image[:, rows][:, :, columns])


def test_every_sample_is_a_shift_of_the_plain_one_or_of_its_mirror_image() -> None:
    plain, mine = (taken(a, [5, 6], [4, 9]).flatten(0, 2) for a in (None, Augmentation(shift=1, mirror=True)))
    seen = set()
    for before, after in zip(plain, mine, strict=True):
        found = [
            (down, right, flip)
            for down in range(3)
            for right in range(3)
            for flip in (False, True)
            if torch.equal(moved(before.flip(-1) if flip else before, down, right), after)
        ]
        assert found
        seen |= set(found)
    assert len(seen) == 18  # every shift, mirrored and not


def moved(image: Tensor, down: int, right: int) -> Tensor:
    return shifted(image[None], 1, torch.tensor([down]), torch.tensor([right]))[0]


def test_without_mirror_and_shift_nothing_changes() -> None:
    assert torch.equal(taken(None, [5, 6], [4, 9]), taken(Augmentation(shift=0), [5, 6], [4, 9]))


def test_labels_and_choice_of_samples_stay_as_they_are() -> None:
    plain, mine = (batches(a, [5, 6], [4, 9]) for a in (None, Augmentation(shift=2)))
    for number in range(3):
        assert torch.equal(plain.batch(number, 0, 2)[1], mine.batch(number, 0, 2)[1])
    assert torch.equal(plain.index, mine.index)


def test_a_row_is_augmented_alike_in_any_company_and_anew_in_every_step() -> None:
    augmentation = Augmentation(shift=2, mirror=True)
    alone, together = taken(augmentation, [6], [9]), taken(augmentation, [5, 6, 7], [4, 9, 9])
    assert torch.equal(alone[0], together[1])
    data = batches(augmentation, [5, 6, 7], [4, 9, 9])
    assert torch.equal(data.batch(1, 1, 3)[0], together[1:3, 1])  # a window of rows
    assert not torch.equal(batches(augmentation, [6], [9]).down, batches(augmentation, [6], [10]).down)


def test_draws_are_uniform_and_independent_of_each_other() -> None:
    data = batches(Augmentation(shift=1, mirror=True), list(range(400)), [0] * 400)
    cells = data.down * 6 + data.right * 2 + data.mirrored
    counts = torch.bincount(cells.flatten(), minlength=18).double()
    expected = cells.numel() / 18
    assert ((counts - expected) ** 2 / expected).sum() < 40.8  # chi-squared with 17 degrees of freedom: 0.1 % level


@pytest.mark.parametrize("shift", [-1, 1.5])
def test_a_bad_shift_is_named(shift: object) -> None:
    with pytest.raises(ValueError, match=rf"^Augmentation\.shift is {shift}; allowed: integers from 0 on$"):
        Augmentation(shift=shift)  # type: ignore[arg-type]


def test_validation_sees_images_as_they_are() -> None:
    def load() -> Data:
        return load_digits()

    TASKS.register("digits_shifted", replace(TASK, load=load, augmentation=Augmentation(shift=3)))
    env = EsperVectorEnv(2, task="digits_shifted", horizon=2, dtype="float64")  # no answer hangs on rounding
    env.reset(seed=0)
    val = load_digits().val
    for row in range(2):
        answers = env.export_host(row)(val.inputs.double()).argmax(dim=1)
        accuracy = (answers == val.labels).double().mean().item()
        assert env.simulation.state.metric[row].item() == pytest.approx(accuracy, abs=1e-6)
