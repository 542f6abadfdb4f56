"""Seeds for convolution blocks, from a pointwise map to a wide convolution."""

from functools import partial

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


def pointwise(slot: Slot) -> nn.Module:
    """A 1x1 convolution: mixes channels, sees no neighbours."""
    return _conv(slot.inputs[0], slot.outputs[0], 1)


def fused_pointwise(params: Params, x: Tensor) -> Tensor:
    """The one convolution."""
    return convolution(x, params["weight"], params["bias"])


def depthwise_separable(slot: Slot) -> nn.Module:
    """A depthwise 3x3 convolution, ReLU, and a pointwise one."""
    inputs = slot.inputs[0]
    return nn.Sequential(_conv(inputs, inputs, groups=inputs), nn.ReLU(), _conv(inputs, slot.outputs[0], 1))


def fused_depthwise_separable(params: Params, x: Tensor) -> Tensor:
    """Depthwise, ReLU, pointwise."""
    spread = F.relu(convolution(x, params["0.weight"], params["0.bias"], groups=x.shape[-1]))
    return convolution(spread, params["2.weight"], params["2.bias"])


def bottleneck(slot: Slot, hidden: int) -> nn.Module:
    """A 1x1 convolution down, a 3x3 in the middle, a 1x1 up."""
    down, up = _conv(slot.inputs[0], hidden, 1), _conv(hidden, slot.outputs[0], 1)
    return nn.Sequential(down, nn.ReLU(), _conv(hidden, hidden), nn.ReLU(), up)


def fused_bottleneck(params: Params, x: Tensor) -> Tensor:
    """Down, ReLU, 3x3, ReLU, up."""
    return convolution(fused_wide(params, x).relu(), params["4.weight"], params["4.bias"])


def same(slot: Slot) -> nn.Module:
    """One 3x3 convolution and ReLU: what a block of the host does."""
    return nn.Sequential(_conv(slot.inputs[0], slot.outputs[0]), nn.ReLU())


def fused_same(params: Params, x: Tensor) -> Tensor:
    """3x3, ReLU."""
    return F.relu(convolution(x, params["0.weight"], params["0.bias"]))


def wide(slot: Slot, hidden: int) -> nn.Module:
    """A 3x3 convolution to many channels, ReLU, and a pointwise one back."""
    return nn.Sequential(_conv(slot.inputs[0], hidden), nn.ReLU(), _conv(hidden, slot.outputs[0], 1))


def fused_wide(params: Params, x: Tensor) -> Tensor:
    """3x3, ReLU, pointwise."""
    return convolution(fused_same(params, x), params["2.weight"], params["2.bias"])


BLUEPRINTS.register("pointwise", Blueprint("image", pointwise, GAIN, fused_pointwise))
BLUEPRINTS.register("depthwise", Blueprint("image", depthwise_separable, GAIN, fused_depthwise_separable))
BLUEPRINTS.register("bottleneck", Blueprint("image", partial(bottleneck, hidden=4), GAIN, fused_bottleneck))
BLUEPRINTS.register("convolution", Blueprint("image", same, GAIN, fused_same))
BLUEPRINTS.register("wide_convolution", Blueprint("image", partial(wide, hidden=16), GAIN, fused_wide))
