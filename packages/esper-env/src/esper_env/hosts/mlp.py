"""The MLP host: dense blocks with a leaky activation, so that a lesioned block never dies for good."""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper_env.config import check_positive
from esper_env.fused.layers import dense
from esper_env.fused.layout import Params
from esper_env.hosts.base import HOSTS, Host, Network

LEAK = 0.05


@dataclass(frozen=True)
class MLPHost(Host):
    """`inputs - widths... - classes`, one block per width."""

    inputs: int
    widths: tuple[int, ...]
    classes: int

    family: ClassVar[str] = "dense"

    def __post_init__(self) -> None:
        check_positive("MLPHost", inputs=self.inputs, widths=self.widths, classes=self.classes)

    def template(self) -> Network:
        """The plain network."""
        pairs = pairwise((self.inputs, *self.widths))
        blocks = [nn.Sequential(nn.Linear(i, o), nn.LeakyReLU(LEAK)) for i, o in pairs]
        return Network(blocks, nn.Linear(self.widths[-1], self.classes), enter=nn.Flatten())

    def sample(self) -> Tensor:
        """One vector."""
        return torch.zeros(1, self.inputs)

    def enter(self, params: Params, inputs: Tensor) -> Tensor:  # noqa: ARG002 (nothing is learned here)
        """Flatten each sample."""
        return inputs.flatten(2)

    def block(self, index: int, params: Params, x: Tensor) -> Tensor:  # noqa: ARG002 (all blocks are alike)
        """A dense layer and the activation."""
        return F.leaky_relu(dense(x, params["0.weight"], params["0.bias"]), LEAK, inplace=True)

    def lesioned_block(self, index: int, params: Params, x: Tensor, alive: Tensor) -> Tensor:
        """Without weights and bias a unit is zero."""
        mask = self.activations.per_unit(alive)
        return self.block(index, {name: values * mask for name, values in params.items()}, x)

    def head(self, params: Params, y: Tensor) -> Tensor:
        """A dense layer."""
        return dense(y, params["weight"], params["bias"])


HOSTS.register("mlp", MLPHost)
