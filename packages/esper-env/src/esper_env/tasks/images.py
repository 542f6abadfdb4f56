"""What tasks on image files share: splits, standardisation, and the same choice of hosts for every data set."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from esper_env.fused.optimizers import AdamW
from esper_env.hosts.cnn import CNNHost
from esper_env.tasks.augmentation import Augmentation
from esper_env.tasks.base import TASKS, Data, Split, Task
from esper_env.tasks.digits import IMAGE_SEEDS

CLASSES = 10
# Small steps for gradients that are nothing but rounding, and no decay of weights that no seed uses.
OPTIMIZER = AdamW(epsilon=1e-5, weight_decay=0.0)
SPLIT_KEY = 0
MAX_GRAD_NORM = 1.0
PATCH = 4
BATCH = 32
# Hosts that two cores train in seconds: one that learns well unless it is lesioned, the same with a middle block that
# is blunt in every episode, and one that is everywhere too small.
CHANNELS = {"cnn": (8, 16, 24), "blunted": (8, 4, 24), "minimal": (4, 4, 4)}
# For a GPU: a host that does well by itself, at full resolution, on all data.
CAPABLE_CHANNELS = (32, 64, 128)
CAPABLE_BATCH, CAPABLE_MINIBATCHES = 128, 40

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Published:
    """A data set as published: images [number, channels, height, width] and labels, for training and for testing."""

    train: Bytes
    train_labels: Bytes
    test: Bytes
    test_labels: Bytes


@dataclass(frozen=True)
class Sizes:
    """How many images each split has; train and val share the published training set."""

    train: int
    val: int
    test: int


# A step costs as much as its minibatches and the validation split, and an episode's end as much as the test split.
SMALL = Sizes(train=10_000, val=256, test=2_000)
VAL_OF_ALL, TEST_OF_ALL = 5_000, 10_000

Load = Callable[[Sizes], Data]


def split(published: Published, sizes: Sizes) -> Data:
    """Splits of these sizes, always the same, each channel standardised by the training split."""
    val, train = np.split(_shuffled(len(published.train))[: sizes.val + sizes.train], [sizes.val])
    test = _shuffled(len(published.test))[: sizes.test]
    splits = (
        _taken(published.train, published.train_labels, train),
        _taken(published.train, published.train_labels, val),
        _taken(published.test, published.test_labels, test),
    )
    std, mean = torch.std_mean(splits[0].inputs, dim=(0, 2, 3), keepdim=True)
    for part in splits:
        part.inputs.sub_(mean).div_(std)
    return Data(*splits, CLASSES)


def _shuffled(count: int) -> NDArray[np.int64]:
    order: NDArray[np.int64] = torch.randperm(count, generator=torch.Generator().manual_seed(SPLIT_KEY)).numpy()
    return order


def _taken(images: Bytes, labels: Bytes, chosen: NDArray[np.int64]) -> Split:
    return Split(torch.from_numpy(images[chosen]).float(), torch.from_numpy(labels[chosen]).long())


def register_tasks(
    name: str, image: tuple[int, int, int], load: Load, augmentation: Augmentation, minibatches: int, published: int
) -> None:
    """Register the tasks of a data set: NAME_cnn, NAME_blunted, NAME_minimal and NAME_capable.

    Args:
        name: The data set's.
        image: Channels, height and width.
        load: Gives splits of wanted sizes.
        augmentation: Of training images.
        minibatches: How many a step of the small hosts takes.
        published: Images in the published training set.
    """
    for kind, channels in CHANNELS.items():
        host = CNNHost(image, channels, CLASSES, patch=PATCH)
        TASKS.register(f"{name}_{kind}", _task(host, partial(load, SMALL), BATCH, minibatches, augmentation))
    everything = Sizes(published - VAL_OF_ALL, VAL_OF_ALL, TEST_OF_ALL)
    host = CNNHost(image, CAPABLE_CHANNELS, CLASSES)
    task = _task(host, partial(load, everything), CAPABLE_BATCH, CAPABLE_MINIBATCHES, augmentation)
    TASKS.register(f"{name}_capable", task)


def _task(host: CNNHost, load: Callable[[], Data], batch: int, minibatches: int, augmentation: Augmentation) -> Task:
    return Task(host, IMAGE_SEEDS, load, OPTIMIZER, batch, minibatches, MAX_GRAD_NORM, augmentation)
