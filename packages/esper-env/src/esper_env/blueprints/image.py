"""Seeds for convolution blocks, from a pointwise map to a wide convolution."""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from esper_env.blueprints.base import BLUEPRINTS, Blueprint
from esper_env.fused.layers import convolution
from esper_env.fused.layout import Params
from esper_env.hosts.base import Slot

KERNEL = 3
# As for dense seeds: the worst of 30 cost 31 points at a gain of one, and costs 6 at this one.
GAIN = 0.7


def _conv(inputs: int, outputs: int, kernel: int = KERNEL, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, groups=groups)


@dataclass(frozen=True)
class Pointwise(Blueprint):
    """A 1x1 convolution: mixes channels, sees no neighbours."""

    family: ClassVar[str] = "image"
    gain = GAIN

    def template(self, slot: Slot) -> nn.Module:
        """One 1x1 convolution."""
        return _conv(slot.inputs[0], slot.outputs[0], 1)

    def apply(self, params: Params, x: Tensor) -> Tensor:
        """The fused map."""
        return convolution(x, params["weight"], params["bias"])


@dataclass(frozen=True)
class DepthwiseSeparable(Blueprint):
    """A depthwise 3x3 convolution, ReLU, and a pointwise one."""

    family: ClassVar[str] = "image"
    gain = GAIN

    def template(self, slot: Slot) -> nn.Module:
        """Depthwise, ReLU, pointwise."""
        inputs, outputs = slot.inputs[0], slot.outputs[0]
        depthwise = _conv(inputs, inputs, groups=inputs)
        return nn.Sequential(depthwise, nn.ReLU(), _conv(inputs, outputs, 1))

    def apply(self, params: Params, x: Tensor) -> Tensor:
        """The fused pair."""
        spread = F.relu(convolution(x, params["0.weight"], params["0.bias"], groups=x.shape[-1]))
        return convolution(spread, params["2.weight"], params["2.bias"])


@dataclass(frozen=True)
class Bottleneck(Blueprint):
    """A 1x1 convolution down, a 3x3 in the middle, a 1x1 up."""

    hidden: int
    family: ClassVar[str] = "image"
    gain = GAIN

    def template(self, slot: Slot) -> nn.Module:
        """Down, ReLU, 3x3, ReLU, up."""
        down, up = _conv(slot.inputs[0], self.hidden, 1), _conv(self.hidden, slot.outputs[0], 1)
        middle = _conv(self.hidden, self.hidden)
        return nn.Sequential(down, nn.ReLU(), middle, nn.ReLU(), up)

    def apply(self, params: Params, x: Tensor) -> Tensor:
        """The fused bottleneck."""
        hidden = F.relu(convolution(x, params["0.weight"], params["0.bias"]))
        hidden = F.relu(convolution(hidden, params["2.weight"], params["2.bias"]))
        return convolution(hidden, params["4.weight"], params["4.bias"])


@dataclass(frozen=True)
class Convolution(Blueprint):
    """One 3x3 convolution and ReLU: what a block of the host does."""

    family: ClassVar[str] = "image"
    gain = GAIN

    def template(self, slot: Slot) -> nn.Module:
        """3x3, ReLU."""
        outputs = slot.outputs[0]
        return nn.Sequential(_conv(slot.inputs[0], outputs), nn.ReLU())

    def apply(self, params: Params, x: Tensor) -> Tensor:
        """The fused convolution."""
        return F.relu(convolution(x, params["0.weight"], params["0.bias"]))


@dataclass(frozen=True)
class WideConvolution(Blueprint):
    """A 3x3 convolution to many channels, ReLU, and a pointwise one back."""

    hidden: int
    family: ClassVar[str] = "image"
    gain = GAIN

    def template(self, slot: Slot) -> nn.Module:
        """3x3, ReLU, pointwise."""
        wide, back = _conv(slot.inputs[0], self.hidden), _conv(self.hidden, slot.outputs[0], 1)
        return nn.Sequential(wide, nn.ReLU(), back)

    def apply(self, params: Params, x: Tensor) -> Tensor:
        """The fused pair."""
        hidden = F.relu(convolution(x, params["0.weight"], params["0.bias"]))
        return convolution(hidden, params["2.weight"], params["2.bias"])


BLUEPRINTS.register("pointwise", Pointwise())
BLUEPRINTS.register("depthwise", DepthwiseSeparable())
BLUEPRINTS.register("bottleneck", Bottleneck(hidden=4))
BLUEPRINTS.register("convolution", Convolution())
BLUEPRINTS.register("wide_convolution", WideConvolution(hidden=16))
