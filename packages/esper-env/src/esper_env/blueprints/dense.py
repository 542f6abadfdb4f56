"""Seeds for dense blocks, from a rank-two linear map to a wide two-layer MLP."""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from esper_env.blueprints.base import BLUEPRINTS, Blueprint
from esper_env.hosts.base import Slot
from esper_env.population.layers import dense
from esper_env.population.layout import LayerScale, Params

# Seeds that step as far as their host overshoot while they incubate. Measured beside narrowed blocks: at a gain of one,
# switching on the worst of 45 incubated seeds cost 33 points of accuracy; at this gain, 2.
GAIN = 0.5


class PlainGatedUnit(nn.Module):
    """A gated linear unit in plain torch."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.value = nn.Linear(inputs, hidden)
        self.key = nn.Linear(inputs, hidden)
        self.out = nn.Linear(hidden, outputs)
        self.last = LayerScale(outputs, GAIN)

    def forward(self, x: Tensor) -> Tensor:
        """The unit's delta."""
        out: Tensor = self.last(self.out(self.value(x) * self.key(x).sigmoid()))
        return out


@dataclass(frozen=True)
class LowRank(Blueprint):
    """A linear map of low rank: the smallest seed, and the only one without an activation."""

    rank: int
    family: ClassVar[str] = "dense"

    def template(self, slot: Slot) -> nn.Module:
        """Two linear layers without bias, scaled."""
        down = nn.Linear(slot.inputs[0], self.rank, bias=False)
        up = nn.Linear(self.rank, slot.outputs[0], bias=False)
        return nn.Sequential(down, up, LayerScale(slot.outputs[0], GAIN))

    def apply(self, params: Params, x: Tensor) -> Tensor:
        """Down, up, scale."""
        return dense(dense(x, params["0.weight"]), params["1.weight"]) * (GAIN * params["2.scale"])


@dataclass(frozen=True)
class TwoLayer(Blueprint):
    """A two-layer MLP; its hidden width sets its price."""

    hidden: int
    family: ClassVar[str] = "dense"

    def template(self, slot: Slot) -> nn.Module:
        """Linear, ReLU, linear, scaled."""
        first, second = nn.Linear(slot.inputs[0], self.hidden), nn.Linear(self.hidden, slot.outputs[0])
        return nn.Sequential(first, nn.ReLU(), second, LayerScale(slot.outputs[0], GAIN))

    def apply(self, params: Params, x: Tensor) -> Tensor:
        """Linear, ReLU, linear, scale."""
        hidden = F.relu(dense(x, params["0.weight"], params["0.bias"]), inplace=True)
        return dense(hidden, params["2.weight"], params["2.bias"]) * (GAIN * params["3.scale"])


@dataclass(frozen=True)
class GatedUnit(Blueprint):
    """A gated linear unit: multiplicative features."""

    hidden: int
    family: ClassVar[str] = "dense"

    def template(self, slot: Slot) -> nn.Module:
        """Value times the sigmoid of a key, then linear, scaled."""
        return PlainGatedUnit(slot.inputs[0], self.hidden, slot.outputs[0])

    def apply(self, params: Params, x: Tensor) -> Tensor:
        """The fused unit."""
        value = dense(x, params["value.weight"], params["value.bias"])
        key = dense(x, params["key.weight"], params["key.bias"])
        out = dense(value * key.sigmoid(), params["out.weight"], params["out.bias"])
        return out * (GAIN * params["last.scale"])


BLUEPRINTS.register("low_rank", LowRank(rank=2))
BLUEPRINTS.register("narrow_mlp", TwoLayer(hidden=6))
BLUEPRINTS.register("medium_mlp", TwoLayer(hidden=16))
BLUEPRINTS.register("wide_mlp", TwoLayer(hidden=32))
BLUEPRINTS.register("gated_unit", GatedUnit(hidden=12))
