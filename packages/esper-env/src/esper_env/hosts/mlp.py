"""The MLP host: dense blocks with a leaky activation, so that a lesioned block never dies for good."""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from esper_env.fused.layers import dense
from esper_env.fused.layout import Params
from esper_env.hosts.base import HOSTS, Host, Slot, require_positive

LEAK = 0.05


class PlainMLP(nn.Module):
    """One MLP host in plain torch."""

    def __init__(self, inputs: int, widths: tuple[int, ...], classes: int) -> None:
        super().__init__()
        pairs = zip((inputs, *widths), widths, strict=False)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(i, o), nn.LeakyReLU(LEAK)) for i, o in pairs)
        self.head = nn.Linear(widths[-1], classes)

    def enter(self, x: Tensor) -> Tensor:
        """Flatten each sample."""
        return x.flatten(1)

    def bridge(self, index: int, y: Tensor) -> Tensor:  # noqa: ARG002 (every bridge of this host is the identity)
        """The identity."""
        return y


@dataclass(frozen=True)
class MLPHost(Host):
    """`inputs - widths... - classes`, one block per width."""

    inputs: int
    widths: tuple[int, ...]
    classes: int

    family: ClassVar[str] = "dense"
    row_axis: ClassVar[int] = 0

    def __post_init__(self) -> None:
        require_positive("MLPHost", inputs=self.inputs, widths=self.widths, classes=self.classes)

    @property
    def slots(self) -> tuple[Slot, ...]:
        """One slot per width."""
        pairs = zip((self.inputs, *self.widths), self.widths, strict=False)
        return tuple(Slot((i,), (o,)) for i, o in pairs)

    def template(self) -> PlainMLP:
        """The plain network."""
        return PlainMLP(self.inputs, self.widths, self.classes)

    def enter(self, params: Params, inputs: Tensor) -> Tensor:  # noqa: ARG002 (nothing is learned here)
        """Flatten each sample."""
        return inputs.flatten(2)

    def block(self, index: int, params: Params, x: Tensor) -> Tensor:  # noqa: ARG002 (all blocks are alike)
        """A dense layer and the activation."""
        return F.leaky_relu(dense(x, params["0.weight"], params["0.bias"]), LEAK, inplace=True)

    def lesioned_block(self, index: int, params: Params, x: Tensor, alive: Tensor) -> Tensor:
        """Without weights and bias a unit is zero."""
        mask = self.per_unit(alive)
        return self.block(index, {name: values * mask for name, values in params.items()}, x)

    def bridge(self, index: int, y: Tensor) -> Tensor:  # noqa: ARG002 (every bridge of this host is the identity)
        """The identity."""
        return y

    def head(self, params: Params, y: Tensor) -> Tensor:
        """A dense layer."""
        return dense(y, params["weight"], params["bias"])

    def per_row(self, values: Tensor) -> Tensor:
        """[n, 1, 1]."""
        return values.view(-1, 1, 1)

    def per_unit(self, values: Tensor) -> Tensor:
        """[n, 1, units]."""
        return values.unsqueeze(1)

    def per_sample(self, values: Tensor) -> Tensor:
        """[n, batch, 1], as it is."""
        return values

    def summary(self, x: Tensor) -> Tensor:
        """A dense activation has one position."""
        return x

    def activation_size(self) -> int:
        """Inputs and all widths."""
        return self.inputs + sum(self.widths)


HOSTS.register("mlp", MLPHost)
