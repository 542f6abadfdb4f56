"""Augmentation: training images shifted and mirrored, differently each time they are seen."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from esper_env.config import check_range
from esper_env.fused.minibatches import Minibatches
from esper_env.fused.randomness import Purpose, integers


@dataclass(frozen=True)
class Augmentation:
    """By how many pixels an image may move in each direction, and whether it may be mirrored."""

    shift: int
    mirror: bool = False

    def __post_init__(self) -> None:
        check_range("Augmentation.shift", self.shift, 0, integer=True)

    def applied(self, data: Minibatches, keys: Tensor, step: Tensor) -> Minibatches:
        """The minibatches of rows with these keys at these steps, augmented when they are taken."""
        place = torch.arange(data.index[0].numel(), device=keys.device).view_as(data.index[0])
        keys, step = keys.view(-1, 1, 1), step.view(-1, 1, 1)

        def drawn(purpose: Purpose, high: int) -> Tensor:
            return integers(keys, purpose, step, place, high)

        positions = 2 * self.shift + 1
        down, right = drawn(Purpose.SHIFT_DOWN, positions), drawn(Purpose.SHIFT_RIGHT, positions)
        mirrored = drawn(Purpose.MIRROR, 1 + self.mirror).bool()
        return AugmentedMinibatches(data.inputs, data.index, data.labels, self.shift, down, right, mirrored)


@dataclass(frozen=True)
class AugmentedMinibatches(Minibatches):
    """Minibatches whose images move by `down - margin` and `right - margin` pixels, [n, minibatches, batch] each."""

    margin: int
    down: Tensor
    right: Tensor
    mirrored: Tensor

    def batch(self, number: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Augmented samples and labels of one minibatch for rows start to stop."""
        images, labels = super().batch(number, start, stop)
        down, right, mirrored = (draw[start:stop, number] for draw in (self.down, self.right, self.mirrored))
        images = torch.where(mirrored[..., None, None, None], images.flip(-1), images)
        return shifted(images.flatten(0, 1), self.margin, down.flatten(), right.flatten()).view_as(images), labels


def shifted(images: Tensor, margin: int, down: Tensor, right: Tensor) -> Tensor:
    """Each of the images [m, c, h, w] moved by `down - margin` and `right - margin`; what comes in repeats the edge."""
    height, width = images.shape[2:]
    framed = F.pad(images, [margin] * 4, mode="replicate")
    windows = framed.unfold(2, height, 1).unfold(3, width, 1)
    which = torch.arange(len(images), device=images.device)
    # Moving an image down uncovers the window above it.
    return windows.permute(0, 2, 3, 1, 4, 5)[which, 2 * margin - down, 2 * margin - right]
