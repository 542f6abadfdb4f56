"""The CNN host: convolution, group norm and a leaky activation per block, pooling between blocks."""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from esper_env.config import check_positive
from esper_env.fused.layers import average_pool, convolution, dense, global_average, leaky_group_norm
from esper_env.fused.layout import Params
from esper_env.hosts.base import HOSTS, Host, Network
from esper_env.hosts.mlp import LEAK

KERNEL = 3
POOL = 2


def _plain_block(inputs: int, outputs: int, groups: int) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, KERNEL, padding=KERNEL // 2, bias=False)
    return nn.Sequential(convolution, nn.GroupNorm(groups, outputs), nn.LeakyReLU(LEAK))


@dataclass(frozen=True)
class CNNHost(Host):
    """Convolution blocks with the given channels; `pooled` names the blocks that pooling follows.

    Each square of `patch` x `patch` pixels enters as one position with as many more channels, so the first block is a
    strided convolution that loses nothing, and large images cost what small ones do.
    """

    image: tuple[int, int, int]
    channels: tuple[int, ...]
    classes: int
    norm_groups: int = 2
    pooled: tuple[int, ...] = (0, 1)
    patch: int = 1

    family: ClassVar[str] = "image"

    def __post_init__(self) -> None:
        check_positive("CNNHost", image=self.image, channels=self.channels, classes=self.classes)
        check_positive("CNNHost", norm_groups=self.norm_groups, patch=self.patch)
        self._check_image()
        self._check_pooling()
        uneven = [c for c in self.channels if c % self.norm_groups]
        if uneven:
            raise ValueError(f"CNNHost.channels has {uneven}; allowed: multiples of norm_groups={self.norm_groups}")

    def _check_pooling(self) -> None:
        blocks = range(len(self.channels))
        if not set(self.pooled) <= set(blocks):
            raise ValueError(f"CNNHost.pooled is {self.pooled}; allowed: numbers of blocks, 0 to {blocks[-1]}")

    def _check_image(self) -> None:
        smallest = POOL ** len(set(self.pooled))
        if len(self.image) != 3 or min(self.image[1:]) < smallest:
            raise ValueError(
                f"CNNHost.image is {self.image}; allowed: (channels, height, width), both from {smallest} on"
            )
        if any(side % self.patch or side // self.patch < smallest for side in self.image[1:]):
            raise ValueError(
                f"CNNHost.patch is {self.patch}; allowed: divisors of {self.image[1:]} that leave {smallest} or more"
            )

    @property
    def entered(self) -> tuple[int, int, int]:
        """Shape of what the first block reads."""
        channels, height, width = self.image
        return channels * self.patch**2, height // self.patch, width // self.patch

    def template(self) -> Network:
        """The plain network."""
        pairs = pairwise((self.entered[0], *self.channels))
        return Network(
            [_plain_block(i, o, self.norm_groups) for i, o in pairs],
            nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(self.channels[-1], self.classes)),
            nn.PixelUnshuffle(self.patch),
            [nn.AvgPool2d(POOL) if index in self.pooled else nn.Identity() for index in range(len(self.channels))],
        )

    def sample(self) -> Tensor:
        """One image."""
        return torch.zeros(1, *self.image)

    def enter(self, params: Params, inputs: Tensor) -> Tensor:
        """[n, batch, c, h, w] to [batch, h, w, n, c], squares of pixels as channels."""
        _, height, width = self.entered
        if inputs.stride(0) == 0 and len(inputs) > 1:  # the same images for all
            return self.enter(params, inputs[:1]).expand(-1, -1, -1, len(inputs), -1)
        squares = inputs.reshape(*inputs.shape[:3], height, self.patch, width, self.patch)
        return squares.permute(1, 3, 5, 0, 2, 4, 6).flatten(4).contiguous()

    def block(self, index: int, params: Params, x: Tensor) -> Tensor:  # noqa: ARG002 (all blocks are alike)
        """Convolution, group norm, activation."""
        h = convolution(x, params["0.weight"])
        return leaky_group_norm(h, self.norm_groups, params["1.weight"], params["1.bias"], LEAK)

    def lesioned_block(self, index: int, params: Params, x: Tensor, alive: Tensor) -> Tensor:
        """Without the norm's affine part a unit is zero."""
        affine = {name: values * alive for name, values in params.items() if name.startswith("1.")}
        return self.block(index, {**params, **affine}, x)

    def bridge(self, index: int, params: Params, y: Tensor) -> Tensor:  # noqa: ARG002 (nothing is learned here)
        """Pool after the blocks that say so."""
        return average_pool(y, POOL) if index in self.pooled else y

    def head(self, params: Params, y: Tensor) -> Tensor:
        """Global average and a dense layer."""
        return dense(global_average(y), params["2.weight"], params["2.bias"])


HOSTS.register("cnn", CNNHost)
