"""Handwritten digits, 8x8, real, shipped with scikit-learn: the data of the default tasks."""

from functools import cache

import torch

from esper_env.hosts.cnn import CNNHost
from esper_env.hosts.mlp import MLPHost
from esper_env.population.optimizers import SGD
from esper_env.tasks.base import TASKS, Data, Split, Task

CLASSES = 10
TRAIN, VAL = 1000, 240  # of 1,797; the rest is the test split
SPLIT_SEED = 0
# A minibatch costs much the same whatever its size, so few and larger ones make fast steps.
MINIBATCHES, BATCH = 3, 80
# Unlimited, seeds overshoot at high learning rates: switching on the worst of 45 cost 69 points of accuracy, limited 3.
MAX_GRAD_NORM = 1.0
DENSE_SEEDS = ("low_rank", "narrow_mlp", "medium_mlp", "wide_mlp", "gated_unit")
IMAGE_SEEDS = ("pointwise", "depthwise", "bottleneck", "convolution", "wide_convolution")


@cache
def load_digits() -> Data:
    """The three splits, always the same, standardised by the training split."""
    from sklearn.datasets import load_digits as load  # noqa: PLC0415 (slow to import, and needed only here)

    raw = load()
    order = torch.randperm(len(raw.target), generator=torch.Generator().manual_seed(SPLIT_SEED))
    images = torch.from_numpy(raw.images).unsqueeze(1)[order]
    labels = torch.from_numpy(raw.target).long()[order]
    images = ((images - images[:TRAIN].mean()) / images[:TRAIN].std()).float()
    cuts = (slice(0, TRAIN), slice(TRAIN, TRAIN + VAL), slice(TRAIN + VAL, None))
    train, val, test = (Split(images[cut].contiguous(), labels[cut].contiguous()) for cut in cuts)
    return Data(train, val, test, CLASSES)


TASKS.register(
    "digits_mlp",
    Task(
        host=MLPHost(inputs=64, widths=(24, 24, 24), classes=CLASSES),
        blueprints=DENSE_SEEDS,
        load=load_digits,
        optimizer=SGD(momentum=0.9),
        batch_size=BATCH,
        minibatches_per_step=MINIBATCHES,
        max_grad_norm=MAX_GRAD_NORM,
    ),
)
TASKS.register(
    "digits_deep",
    Task(
        host=MLPHost(inputs=64, widths=(20, 20, 20, 20, 20, 20), classes=CLASSES),
        blueprints=DENSE_SEEDS,
        load=load_digits,
        optimizer=SGD(momentum=0.9),
        batch_size=BATCH,
        minibatches_per_step=MINIBATCHES,
        max_grad_norm=MAX_GRAD_NORM,
    ),
)
TASKS.register(
    "digits_cnn",
    Task(
        host=CNNHost(image=(1, 8, 8), channels=(6, 8, 8), classes=CLASSES),
        blueprints=IMAGE_SEEDS,
        load=load_digits,
        optimizer=SGD(momentum=0.9),
        batch_size=BATCH,
        minibatches_per_step=MINIBATCHES,
        max_grad_norm=MAX_GRAD_NORM,
    ),
)
