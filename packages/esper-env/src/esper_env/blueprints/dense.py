"""Seeds for dense blocks, from a rank-two linear map to a wide two-layer MLP."""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from esper_env.blueprints.base import BLUEPRINTS, Blueprint
from esper_env.fused.layers import dense
from esper_env.fused.layout import Params
from esper_env.hosts.base import Slot

# Seeds that step as far as their host overshoot while they incubate. Measured beside lesioned blocks: at a gain of one,
# switching on the worst of 45 incubated seeds cost 33 points of accuracy; at this gain, 2.
GAIN = 0.5


class PlainGatedUnit(nn.Module):
    """A gated linear unit in plain torch."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.value = nn.Linear(inputs, hidden)
        self.key = nn.Linear(inputs, hidden)
        self.out = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """The unit's output."""
        out: Tensor = self.out(self.value(x) * self.key(x).sigmoid())
        return out


@dataclass(frozen=True)
class LowRank(Blueprint):
    """A linear map of low rank: the smallest seed, and the only one without an activation."""

    rank: int
    family: ClassVar[str] = "dense"
    gain = GAIN

    def template(self, slot: Slot) -> nn.Module:
        """Two linear layers without bias."""
        down = nn.Linear(slot.inputs[0], self.rank, bias=False)
        up = nn.Linear(self.rank, slot.outputs[0], bias=False)
        return nn.Sequential(down, up)

    def apply(self, params: Params, x: Tensor) -> Tensor:
        """Down, up."""
        return dense(dense(x, params["0.weight"]), params["1.weight"])


@dataclass(frozen=True)
class TwoLayer(Blueprint):
    """A two-layer MLP; its hidden width sets its price."""

    hidden: int
    family: ClassVar[str] = "dense"
    gain = GAIN

    def template(self, slot: Slot) -> nn.Module:
        """Linear, ReLU, linear."""
        first, second = nn.Linear(slot.inputs[0], self.hidden), nn.Linear(self.hidden, slot.outputs[0])
        return nn.Sequential(first, nn.ReLU(), second)

    def apply(self, params: Params, x: Tensor) -> Tensor:
        """Linear, ReLU, linear."""
        hidden = F.relu(dense(x, params["0.weight"], params["0.bias"]), inplace=True)
        return dense(hidden, params["2.weight"], params["2.bias"])


@dataclass(frozen=True)
class GatedUnit(Blueprint):
    """A gated linear unit: multiplicative features."""

    hidden: int
    family: ClassVar[str] = "dense"
    gain = GAIN

    def template(self, slot: Slot) -> nn.Module:
        """Value times the sigmoid of a key, then linear."""
        return PlainGatedUnit(slot.inputs[0], self.hidden, slot.outputs[0])

    def apply(self, params: Params, x: Tensor) -> Tensor:
        """The fused unit."""
        value = dense(x, params["value.weight"], params["value.bias"])
        key = dense(x, params["key.weight"], params["key.bias"])
        return dense(value * key.sigmoid(), params["out.weight"], params["out.bias"])


BLUEPRINTS.register("low_rank", LowRank(rank=2))
BLUEPRINTS.register("narrow_mlp", TwoLayer(hidden=6))
BLUEPRINTS.register("medium_mlp", TwoLayer(hidden=16))
BLUEPRINTS.register("wide_mlp", TwoLayer(hidden=32))
BLUEPRINTS.register("gated_unit", GatedUnit(hidden=12))
