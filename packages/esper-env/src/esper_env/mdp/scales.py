"""Scales: unbounded measurements as numbers in [0, 1), for observations and rewards alike."""

from torch import Tensor


def squash(value: Tensor) -> Tensor:
    """[0, infinity) to [0, 1)."""
    return value / (1.0 + value)


def relative_loss(loss: Tensor, uniform_guess: float) -> Tensor:
    """A loss beside that of a uniform guess: 1/2 where they are equal."""
    return squash(loss / uniform_guess)
