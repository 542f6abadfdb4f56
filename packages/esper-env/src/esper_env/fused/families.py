"""Families: how the activations of n models lie in memory, and how values per row, unit and sample meet them."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from esper_env.fused.layers import global_average


@dataclass(frozen=True)
class Family:
    """Activations [n, batch, ..., units]: the models lead, the units come last.

    Args:
        axes: Of the plain activations of one model, the batch's included.
    """

    axes: int
    row_axis: ClassVar[int] = 0  # the axis of activations that counts the models

    def models_first(self, x: Tensor) -> Tensor:
        """Activations as [n, batch, ...], each model's as its plain module knows them."""
        return x

    def arranged(self, x: Tensor) -> Tensor:
        """The way back from `models_first`."""
        return x

    def per_row(self, values: Tensor) -> Tensor:
        """Values [n] in a shape that broadcasts against activations."""
        return values.view(-1, *[1] * self.axes)

    def per_unit(self, values: Tensor) -> Tensor:
        """Values [n, units] in a shape that broadcasts against activations."""
        return values.view(len(values), *[1] * (self.axes - 1), -1)

    def per_sample(self, values: Tensor, x: Tensor) -> Tensor:
        """Values [n, samples, 1], as many as `summary` makes of `x`, in a shape that broadcasts against `x`."""
        return values.view(*x.shape[:-1], 1)

    def summary(self, x: Tensor) -> Tensor:
        """What a gate reads, [n, samples, units]; of texts every position, as an average would show it its future."""
        return x.flatten(1, -2)

    def units_first(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one sample's plain activations, with the units leading."""
        return shape[::-1]


class _Images(Family):
    """Activations [batch, height, width, n, channels], which grouped convolutions read where they lie."""

    row_axis: ClassVar[int] = 3

    def models_first(self, x: Tensor) -> Tensor:
        """[n, batch, channels, height, width]."""
        return x.permute(3, 0, 4, 1, 2).contiguous()

    def arranged(self, x: Tensor) -> Tensor:
        """[batch, height, width, n, channels]."""
        return x.permute(1, 3, 4, 0, 2).contiguous()

    def per_row(self, values: Tensor) -> Tensor:
        """[n, 1]."""
        return values.unsqueeze(1)

    def per_unit(self, values: Tensor) -> Tensor:
        """[n, channels], as it is."""
        return values

    def per_sample(self, values: Tensor, x: Tensor) -> Tensor:  # noqa: ARG002 (one value per image)
        """[batch, 1, 1, n, 1]."""
        return values.transpose(0, 1).unsqueeze(1).unsqueeze(1)

    def summary(self, x: Tensor) -> Tensor:
        """Average over space."""
        return global_average(x)

    def units_first(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Channels lead anyway."""
        return shape


FAMILIES = {"dense": Family(axes=2), "image": _Images(axes=4), "sequence": Family(axes=3)}
