"""Blends: how a seed joins its block."""

from enum import IntEnum


class Blend(IntEnum):
    """What becomes of a block's output h: h + a*d, h * (1 + a*tanh(d)), or h + a*sigmoid(gate)*d."""

    ADD = 0
    MULTIPLY = 1
    GATE = 2
