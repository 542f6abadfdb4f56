"""A task from arrays of one's own: samples, labels, and optionally the host that learns them."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from esper_env.blueprints import BLUEPRINTS
from esper_env.config import check_choice, check_range
from esper_env.fused.optimizers import SGD
from esper_env.hosts.base import Host
from esper_env.hosts.mlp import MLPHost
from esper_env.tasks.base import Data, Split, Task, check_fits, kept

DEFAULT_WIDTHS = (24, 24, 24)
LEAST_SAMPLES = 3  # one in every split
MAX_GRAD_NORM = 1.0


def task_from_arrays(
    inputs: Any,
    labels: Any,
    host: Host | None = None,
    blueprints: Sequence[str] | None = None,
    *,
    val: float = 0.15,
    test: float = 0.15,
    batch_size: int = 128,
    minibatches_per_step: int = 2,
    split_seed: int = 0,
) -> Task:
    """A classification task from arrays: shuffled, split in three and standardised by the training part.

    Args:
        inputs: Samples [n, ...], a NumPy array or tensor of numbers.
        labels: Classes [n] as integers from 0 on.
        host: What learns them; unless given, an MLP with three blocks of 24 units.
        blueprints: The seeds on offer; unless given, all that fit the host.
        val: Share of the samples for reward and observation.
        test: Share of the samples for `evaluate_test` only.
        batch_size: Samples of a minibatch.
        minibatches_per_step: Minibatches of one environment step.
        split_seed: Draws which samples go where.

    Raises:
        ValueError: in one line, for arrays that are not data or do not fit the host.
    """
    samples, classes = _samples(inputs), _labels(labels)
    if len(samples) != len(classes):
        raise ValueError(f"labels has {len(classes)} entries; allowed: one per sample, {len(samples)}")
    if len(samples) < LEAST_SAMPLES:
        raise ValueError(f"inputs has {len(samples)} samples; allowed: at least {LEAST_SAMPLES}, one for each split")
    check_range("val", val, 1e-6, 0.9)
    check_range("test", test, 1e-6, 0.9)
    data = _split(samples, classes, val, test, split_seed)
    chosen = host or MLPHost(prod(samples.shape[1:]), DEFAULT_WIDTHS, data.classes)
    check_fits(data, chosen)
    batches = (min(batch_size, len(data.train)), minibatches_per_step)
    return Task(chosen, _blueprints(chosen, blueprints), kept(lambda: data), SGD(momentum=0.9), *batches, MAX_GRAD_NORM)


def _samples(inputs: Any) -> Tensor:
    array = inputs.detach().cpu().numpy() if isinstance(inputs, Tensor) else np.asarray(inputs)
    if array.ndim < 2 or array.dtype.kind not in "fiub":
        raise ValueError(f"inputs is {array.dtype} of shape {array.shape}; allowed: numbers of shape (samples, ...)")
    if not np.isfinite(array).all():
        raise ValueError("inputs has values that are not finite; allowed: finite numbers")
    return torch.from_numpy(array.astype(np.float32))


def _labels(labels: Any) -> Tensor:
    array = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if array.ndim != 1 or array.dtype.kind not in "iub":
        raise ValueError(f"labels is {array.dtype} of shape {array.shape}; allowed: integers of shape (samples,)")
    present = np.unique(array)
    if len(present) < 2 or present[0] != 0 or present[-1] != len(present) - 1:
        raise ValueError(
            f"labels has the classes {present[:12].tolist()}; allowed: 0, 1, ... without a gap, at least two"
        )
    return torch.from_numpy(array.astype(np.int64))


def _split(samples: Tensor, labels: Tensor, val: float, test: float, seed: int) -> Data:
    count = len(samples)
    held_out = [max(1, round(share * count)) for share in (val, test)]
    if sum(held_out) >= count:
        raise ValueError(f"val + test is {val + test}; allowed: shares that leave samples to train with")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    parts = order.split([count - sum(held_out), *held_out])
    mean, std = samples[parts[0]].mean(0), samples[parts[0]].std(0, correction=0)
    scaled = (samples - mean) / torch.where(std > 0, std, 1.0)
    train, validation, tested = (Split(scaled[part].contiguous(), labels[part].contiguous()) for part in parts)
    return Data(train, validation, tested, int(labels.max()) + 1)


def _blueprints(host: Host, names: Sequence[str] | None) -> tuple[str, ...]:
    fitting = [name for name in BLUEPRINTS if BLUEPRINTS[name].family == host.family]
    for name in names or ():
        check_choice("blueprints", name, fitting)
    return tuple(names or fitting)
