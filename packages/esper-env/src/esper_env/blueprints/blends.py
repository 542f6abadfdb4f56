"""Blends: how a seed joins its block."""

from enum import IntEnum

import torch
from torch import Tensor, nn


class Blend(IntEnum):
    """What becomes of a block's output h: h + a*d, h * (1 + a*tanh(d)), or h + a*sigmoid(gate)*d."""

    ADD = 0
    MULTIPLY = 1
    GATE = 2


def joined(seed: nn.Module, x: Tensor, h: Tensor, blend: Blend, alpha: Tensor) -> Tensor:
    """The output of one plain block with a seed beside it, which reads the block's input x; alpha is one number."""
    delta: Tensor = alpha * (seed(x).tanh() if blend is Blend.MULTIPLY else seed(x))
    if blend is Blend.MULTIPLY:
        return torch.addcmul(h, h, delta)
    if blend is Blend.GATE:
        opening: Tensor = seed.gate(x.mean(dim=(2, 3)) if x.dim() == 4 else x).sigmoid()  # type: ignore[operator]
        delta = delta * (opening.view(-1, 1, 1, 1) if x.dim() == 4 else opening)
    return h + delta
