"""What a task is: resident data in three splits, the host that learns it, and the seeds on offer."""

from collections.abc import Callable
from dataclasses import dataclass
from math import log

from torch import Tensor

from esper_env.fused.layers import Metric, accuracy
from esper_env.fused.optimizers import Optimizer
from esper_env.hosts.base import Host
from esper_env.registry import Registry
from esper_env.tasks.augmentation import Augmentation


@dataclass(frozen=True)
class Split:
    """Samples and labels, resident on one device."""

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.inputs)

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


@dataclass(frozen=True)
class Task:
    """Everything that an environment id fixes about learning."""

    host: Host
    blueprints: tuple[str, ...]
    load: Callable[[], Data]
    optimizer: Optimizer
    batch_size: int
    minibatches_per_step: int
    max_grad_norm: float | None = None  # of each host and of each seed; None for no limit
    augmentation: Augmentation | None = None  # of training images
    metric: Metric = accuracy  # what growth is to raise: reward, observation and report read it


TASKS: Registry[Task] = Registry("task")
