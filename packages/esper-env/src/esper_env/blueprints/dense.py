"""Seeds for dense blocks, from a rank-two linear map to a wide two-layer MLP."""

from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from esper_env.blueprints.base import BLUEPRINTS, Blueprint, TwoProducts
from esper_env.fused.layers import dense
from esper_env.fused.layout import Params
from esper_env.hosts.base import Slot

# Seeds that step as far as their host overshoot while they incubate. Measured beside lesioned blocks: at a gain of one,
# switching on the worst of 45 incubated seeds cost 33 points of accuracy; at this gain, 2.
GAIN = 0.5


def low_rank(slot: Slot, rank: int) -> nn.Module:
    """A linear map of low rank: the smallest seed, and the only one without an activation."""
    down = nn.Linear(slot.inputs[0], rank, bias=False)
    return nn.Sequential(down, nn.Linear(rank, slot.outputs[0], bias=False))


def fused_low_rank(params: Params, x: Tensor) -> Tensor:
    """Down, up."""
    return dense(dense(x, params["0.weight"]), params["1.weight"])


def two_layer(slot: Slot, hidden: int) -> nn.Module:
    """A two-layer MLP; its hidden width sets its price."""
    return nn.Sequential(nn.Linear(slot.inputs[0], hidden), nn.ReLU(), nn.Linear(hidden, slot.outputs[0]))


def fused_two_layer(params: Params, x: Tensor) -> Tensor:
    """Linear, ReLU, linear."""
    hidden = F.relu(dense(x, params["0.weight"], params["0.bias"]), inplace=True)
    return dense(hidden, params["2.weight"], params["2.bias"])


class GatedUnit(nn.Module):
    """A gated linear unit: multiplicative features."""

    def __init__(self, slot: Slot, hidden: int) -> None:
        super().__init__()
        self.value, self.key = (nn.Linear(slot.inputs[0], hidden) for _ in range(2))
        self.out = nn.Linear(hidden, slot.outputs[0])

    def forward(self, x: Tensor) -> Tensor:
        """Value times the sigmoid of a key, then linear."""
        out: Tensor = self.out(self.value(x) * self.key(x).sigmoid())
        return out


def fused_gated_unit(params: Params, x: Tensor) -> Tensor:
    """Value times the sigmoid of a key, then linear."""
    value = dense(x, params["value.weight"], params["value.bias"])
    key = dense(x, params["key.weight"], params["key.bias"])
    return dense(value * key.sigmoid(), params["out.weight"], params["out.bias"])


LINEAR = TwoProducts(("0",), "1", "linear")
RELU = TwoProducts(("0",), "2", "relu")
GATED = TwoProducts(("value", "key"), "out", "gated")
BLUEPRINTS.register("low_rank", Blueprint("dense", partial(low_rank, rank=2), GAIN, fused_low_rank, LINEAR))
BLUEPRINTS.register("narrow_mlp", Blueprint("dense", partial(two_layer, hidden=6), GAIN, fused_two_layer, RELU))
BLUEPRINTS.register("medium_mlp", Blueprint("dense", partial(two_layer, hidden=16), GAIN, fused_two_layer, RELU))
BLUEPRINTS.register("wide_mlp", Blueprint("dense", partial(two_layer, hidden=32), GAIN, fused_two_layer, RELU))
BLUEPRINTS.register("gated_unit", Blueprint("dense", partial(GatedUnit, hidden=12), GAIN, fused_gated_unit, GATED))
