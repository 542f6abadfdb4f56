"""What a task is: resident data in three splits, the host that learns it, and the seeds on offer."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, wraps
from math import log
from typing import ParamSpec

import torch
from torch import Tensor

from esper_env.fused.layers import Metric, accuracy
from esper_env.fused.optimizers import Optimizer
from esper_env.fused.vmapped import undrawn
from esper_env.hosts.base import Host
from esper_env.registry import Registry
from esper_env.tasks.augmentation import Augmentation


@dataclass(frozen=True)
class Split:
    """Samples and labels, resident on one device."""

    inputs: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        for name in ("inputs", "labels"):
            value = getattr(self, name)
            if not isinstance(value, Tensor):
                kind = f"{type(value).__module__}.{type(value).__qualname__}"
                raise ValueError(f"{name} is a {kind}; allowed: a tensor (task_from_arrays takes NumPy arrays)")
        if self.labels.dtype is not torch.int64:
            raise ValueError(f"labels has dtype {self.labels.dtype}; allowed: torch.int64")
        if len(self.inputs) != len(self.labels):
            raise ValueError(f"labels has {len(self.labels)} entries; allowed: one per sample, {len(self.inputs)}")

    def __len__(self) -> int:
        return len(self.inputs)

    def clone(self) -> "Split":
        """The same in tensors of its own."""
        return Split(self.inputs.clone(), self.labels.clone())

    def to(self, like: Tensor) -> "Split":
        """On the device of `like`, with inputs of its type if they are floating-point numbers."""
        inputs = self.inputs.to(like) if self.inputs.is_floating_point() else self.inputs.to(like.device)
        return Split(inputs, self.labels.to(like.device))


@dataclass(frozen=True)
class Data:
    """Three disjoint splits: train; val for reward and observation; test, read only by `evaluate_test`."""

    train: Split
    val: Split
    test: Split
    classes: int

    @property
    def baseline_loss(self) -> float:
        """Cross-entropy of a uniform guess: the scale of losses."""
        return log(self.classes)


Arguments = ParamSpec("Arguments")


def kept(load: Callable[Arguments, Data]) -> Callable[Arguments, Data]:
    """A loader that does its work once; every call gives tensors of their own, so writing to them harms no one else."""
    once = cache(load)

    @wraps(load)
    def copied(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Data:
        data = once(*args, **kwargs)  # type: ignore[arg-type]
        return replace(data, train=data.train.clone(), val=data.val.clone(), test=data.test.clone())

    return copied


@dataclass(frozen=True)
class Task:
    """Everything that an environment id fixes about learning."""

    host: Host
    blueprints: tuple[str, ...]
    load: Callable[[], Data]  # each call gives tensors of its own, which an environment keeps
    optimizer: Optimizer
    batch_size: int
    minibatches_per_step: int
    max_grad_norm: float | None = None  # of each host and of each seed; None for no limit
    augmentation: Augmentation | None = None  # of training images
    metric: Metric = accuracy  # what growth is to raise: reward, observation and report read it

    def fitting_data(self) -> Data:
        """The data, once it is sure that the host can learn it."""
        data = self.load()
        check_fits(data, self.host)
        return data


def check_fits(data: Data, host: Host) -> None:
    """One clear error unless a host takes the samples and tells as many classes apart as the data has."""
    sample = data.train.inputs[:1].cpu()
    network = undrawn(host.template)
    try:
        with torch.no_grad():
            logits = network(sample)
    except (RuntimeError, IndexError):
        expected, found = tuple(host.sample().shape[1:]), tuple(sample.shape[1:])
        raise ValueError(f"inputs has samples of shape {found}; allowed: what the host takes, {expected}") from None
    if logits.shape[-1] != data.classes:
        raise ValueError(f"labels has {data.classes} classes; allowed: what the host tells apart, {logits.shape[-1]}")


TASKS: Registry[Task] = Registry("task")
