"""Minibatches: which samples each row sees in one epoch."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Minibatches:
    """The samples of one epoch, by index into resident data."""

    inputs: Tensor  # [pool, ...]
    index: Tensor  # [n, minibatches, batch]
    labels: Tensor  # [n, minibatches, batch, ...]

    def batch(self, number: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Samples and labels of one minibatch for rows start to stop."""
        return self.inputs[self.index[start:stop, number]], self.labels[start:stop, number]
