"""Optimisers of rows: each row of parameters has its own learning rate and gradient norm.

The arithmetic is that of `torch.optim.SGD` and `torch.optim.AdamW`; `torch.nn.utils.clip_grad_norm_` per row.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from esper_env.config import check_range

State = tuple[Tensor, ...]
_CLIP_EPSILON = 1e-6  # as in torch.nn.utils.clip_grad_norm_
_BELOW_ONE = 1.0 - 1e-6  # at one, Adam's bias correction would divide by zero


class Optimizer(Protocol):
    """Updates rows of parameters in place."""

    def initial(self, values: Tensor) -> State:
        """State of new rows, each tensor with the rows leading."""

    def step(self, values: Tensor, grad: Tensor, state: State, lr: Tensor) -> None:
        """Update `values` [n, p] and `state` in place from `grad` [n, p] and learning rates [n, 1]."""


def clip_factors(norm: Tensor, max_norm: float) -> Tensor:
    """What to multiply gradients of the given norms with, so that none exceeds `max_norm`."""
    return (max_norm / (norm + _CLIP_EPSILON)).clamp_(max=1.0)


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with momentum and weight decay."""

    momentum: float = 0.9
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_range("SGD.momentum", self.momentum, 0.0, 1.0)
        check_range("SGD.weight_decay", self.weight_decay, 0.0, 1.0)

    def initial(self, values: Tensor) -> State:
        """The momentum of new rows is zero."""
        return (torch.zeros_like(values),)

    def step(self, values: Tensor, grad: Tensor, state: State, lr: Tensor) -> None:
        """One step in place."""
        (velocity,) = state
        if self.weight_decay:
            grad = grad.add(values, alpha=self.weight_decay)
        torch.add(grad, velocity, alpha=self.momentum, out=velocity)
        values.addcmul_(velocity, lr, value=-1.0)


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay; each row counts its own steps, since rows are born at different times."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        check_range("AdamW.beta1", self.beta1, 0.0, _BELOW_ONE)
        check_range("AdamW.beta2", self.beta2, 0.0, _BELOW_ONE)
        check_range("AdamW.epsilon", self.epsilon, 1e-16, 1.0)
        check_range("AdamW.weight_decay", self.weight_decay, 0.0, 1.0)

    def initial(self, values: Tensor) -> State:
        """First and second moments and the step count of new rows are zero."""
        return torch.zeros_like(values), torch.zeros_like(values), values.new_zeros(len(values), 1)

    def step(self, values: Tensor, grad: Tensor, state: State, lr: Tensor) -> None:
        """One step in place."""
        first, second, count = state
        count += 1
        values.mul_(1.0 - lr * self.weight_decay)
        first.lerp_(grad, 1.0 - self.beta1)
        second.mul_(self.beta2).addcmul_(grad, grad, value=1.0 - self.beta2)
        scale = (1.0 - self.beta2**count).sqrt()
        denominator = second.sqrt() / scale + self.epsilon
        values.sub_(lr / (1.0 - self.beta1**count) * first / denominator)
