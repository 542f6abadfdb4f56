"""Seeds for transformer blocks, from an affine layer norm to a wide MLP, and one that looks at earlier positions."""

from functools import partial

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from esper_env.blueprints import dense as positionwise
from esper_env.blueprints.base import BLUEPRINTS, Blueprint, Fused
from esper_env.fused.layers import causal_attention, dense, layer_norm, normed_dense
from esper_env.fused.layout import Params
from esper_env.hosts.base import Slot
from esper_env.hosts.transformer import NORM_EPSILON

# Adam's steps do not grow with the gradient, so a silent seed needs help to catch up: with gains of 0.5, 1 and 3 an
# attention head beside a block lesioned to one unit saved 7, 9 and 11 % of the bits.
GAIN = 3.0


def affine_norm(slot: Slot) -> nn.Module:
    """A layer norm with its affine part: the smallest seed, which carries the block's input past it."""
    return nn.LayerNorm(slot.inputs[0], NORM_EPSILON)


def fused_affine_norm(params: Params, x: Tensor) -> Tensor:
    """The norm."""
    return layer_norm(x, params["weight"], params["bias"], NORM_EPSILON)


class AttentionHead(nn.Module):
    """One causal attention head: the only seed that looks at earlier positions."""

    def __init__(self, slot: Slot, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(slot.inputs[0], NORM_EPSILON)
        self.project = nn.Linear(slot.inputs[0], 3 * width, bias=False)
        self.out = nn.Linear(width, slot.outputs[0])

    def forward(self, x: Tensor) -> Tensor:
        """What the head finds."""
        query, key, value = self.project(self.norm(x)).chunk(3, dim=-1)
        out: Tensor = self.out(scaled_dot_product_attention(query, key, value, is_causal=True))
        return out


def fused_attention_head(params: Params, x: Tensor) -> Tensor:
    """Norm, attention, linear."""
    norm = (params["norm.weight"], params["norm.bias"])
    projected = normed_dense(x.flatten(1, 2), *norm, params["project.weight"], None, NORM_EPSILON)
    mixed = causal_attention(projected.view(*x.shape[:3], -1), heads=1).flatten(1, 2)
    return dense(mixed, params["out.weight"], params["out.bias"]).view(*x.shape[:3], -1)


def by_position(fused: Fused) -> Fused:
    """A dense seed that acts on each position by itself: positions are its samples."""
    return lambda params, x: fused(params, x.flatten(1, 2)).view(*x.shape[:3], -1)


low_rank = partial(positionwise.low_rank, rank=4)
gated_unit = partial(positionwise.GatedUnit, hidden=12)
wide_mlp = partial(positionwise.two_layer, hidden=48)
BLUEPRINTS.register("affine_norm", Blueprint("sequence", affine_norm, GAIN, fused_affine_norm))
BLUEPRINTS.register("low_rank_adapter", Blueprint("sequence", low_rank, GAIN, by_position(positionwise.fused_low_rank)))
BLUEPRINTS.register("gated_mlp", Blueprint("sequence", gated_unit, GAIN, by_position(positionwise.fused_gated_unit)))
BLUEPRINTS.register(
    "attention_head", Blueprint("sequence", partial(AttentionHead, width=8), GAIN, fused_attention_head)
)
BLUEPRINTS.register("wide_token_mlp", Blueprint("sequence", wide_mlp, GAIN, by_position(positionwise.fused_two_layer)))
