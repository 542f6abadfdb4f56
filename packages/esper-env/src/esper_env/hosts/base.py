"""What a host is: blocks in a row, and beside each block a slot where a seed may be grafted."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from esper_env.fused.layout import Params
from esper_env.registry import Registry


@dataclass(frozen=True)
class Slot:
    """The place beside one block: per-sample shapes, channels first, of what a seed reads and of what it adds to."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class Host(ABC):
    """A network of blocks, described once for one model (`template`) and once fused for n models.

    The network is: enter, then for each block h = block(x), the seed beside it adds to h, and a bridge without
    parameters leads to the next block; the head maps the last block's output to logits.
    """

    family: ClassVar[str]  # which blueprints fit: those of the same family
    row_axis: ClassVar[int]  # the axis of activations that counts the models

    @property
    @abstractmethod
    def slots(self) -> tuple[Slot, ...]:
        """The slots, one per block."""

    @abstractmethod
    def template(self) -> nn.Module:
        """One plain network: `enter(x)`, `blocks` (a ModuleList), `bridge(index, y)` and `head`."""

    @abstractmethod
    def enter(self, params: Params, inputs: Tensor) -> Tensor:
        """Samples [n, batch, *shape] as the first block's activations; `params` are those of the template's `enter`."""

    @abstractmethod
    def block(self, index: int, params: Params, x: Tensor) -> Tensor:
        """The fused block; `params` under the names local to the template's block."""

    def lesioned_block(self, index: int, params: Params, x: Tensor, alive: Tensor) -> Tensor:
        """The fused block with dead units; `alive` is [n, units]. A host may know a cheaper way to the same result."""
        return self.block(index, params, x) * self.per_unit(alive)

    @abstractmethod
    def bridge(self, index: int, y: Tensor) -> Tensor:
        """From the output beside block `index` to the input of the next."""

    @abstractmethod
    def head(self, params: Params, y: Tensor) -> Tensor:
        """Logits [n, batch, ..., classes]."""

    @abstractmethod
    def per_row(self, values: Tensor) -> Tensor:
        """Values [n] in a shape that broadcasts against activations."""

    @abstractmethod
    def per_unit(self, values: Tensor) -> Tensor:
        """Values [n, units] in a shape that broadcasts against activations."""

    @abstractmethod
    def per_sample(self, values: Tensor) -> Tensor:
        """Values [n, samples, 1], as many as `summary` has, in a shape that broadcasts against activations."""

    @abstractmethod
    def summary(self, x: Tensor) -> Tensor:
        """What a gate reads, [n, samples, channels]: images averaged over space, texts position by position."""

    @abstractmethod
    def activation_size(self) -> int:
        """Numbers of activation per sample, for sizing tiles."""


HOSTS: Registry[type[Host]] = Registry("host")


def require_positive(owner: str, **fields: int | tuple[int, ...]) -> None:
    """Raise unless each field is a positive integer, or a non-empty tuple of them."""
    for field, value in fields.items():
        numbers = value if isinstance(value, tuple) else (value,)
        if not numbers or any(not isinstance(number, int) or number < 1 for number in numbers):
            raise ValueError(f"{owner}.{field} is {value}; allowed: integers from 1 on")
