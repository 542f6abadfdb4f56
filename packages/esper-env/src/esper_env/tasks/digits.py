"""Handwritten digits, 8x8, real, shipped with scikit-learn: the data of the default tasks."""

import torch

from esper_env.fused.optimizers import SGD
from esper_env.hosts.base import Host
from esper_env.hosts.cnn import CNNHost
from esper_env.hosts.mlp import MLPHost
from esper_env.tasks.base import TASKS, Data, Split, Task, kept

CLASSES = 10
TRAIN, VAL = 1000, 240  # of 1,797; the rest is the test split
SPLIT_KEY = 0
# Of a dense host a minibatch costs much the same whatever its size, so few and larger ones make fast steps.
DENSE_BATCHES = (128, 2)  # samples of a minibatch, and minibatches of a step
DEEP_BATCHES = (128, 4)  # six blocks learn slowly: what a seed brings must show within a few steps
IMAGE_BATCHES = (24, 6)
# Unlimited, seeds overshoot at high learning rates: switching on the worst of 45 cost 69 points of accuracy, limited 3.
MAX_GRAD_NORM = 1.0
DENSE_SEEDS = ("low_rank", "narrow_mlp", "medium_mlp", "wide_mlp", "gated_unit")
IMAGE_SEEDS = ("pointwise", "depthwise", "bottleneck", "convolution", "wide_convolution")


@kept
def load_digits() -> Data:
    """The three splits, always the same, standardised by the training split."""
    from sklearn.datasets import load_digits as load  # noqa: PLC0415 (slow to import, and needed only here)

    raw = load()
    order = torch.randperm(len(raw.target), generator=torch.Generator().manual_seed(SPLIT_KEY))
    images = torch.from_numpy(raw.images).unsqueeze(1)[order]
    labels = torch.from_numpy(raw.target).long()[order]
    images = ((images - images[:TRAIN].mean()) / images[:TRAIN].std()).float()
    cuts = (slice(0, TRAIN), slice(TRAIN, TRAIN + VAL), slice(TRAIN + VAL, None))
    train, val, test = (Split(images[cut].contiguous(), labels[cut].contiguous()) for cut in cuts)
    return Data(train, val, test, CLASSES)


def _digits_task(host: Host, blueprints: tuple[str, ...], batches: tuple[int, int]) -> Task:
    return Task(host, blueprints, load_digits, SGD(momentum=0.9), *batches, MAX_GRAD_NORM)


TASKS.register("digits_mlp", _digits_task(MLPHost(64, (24, 24, 24), CLASSES), DENSE_SEEDS, DENSE_BATCHES))
TASKS.register("digits_deep", _digits_task(MLPHost(64, (20,) * 6, CLASSES), DENSE_SEEDS, DEEP_BATCHES))
TASKS.register("digits_cnn", _digits_task(CNNHost((1, 8, 8), (6, 8, 8), CLASSES), IMAGE_SEEDS, IMAGE_BATCHES))
