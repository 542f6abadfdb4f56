"""Counter-based randomness: every draw is a pure function of (key, purpose, step, index).

No generator state exists: row i of a population of any size draws what a single environment with its key draws.
Only integer operations and exact float operations are used, so the bits do not depend on vector width or device.
"""

from enum import IntEnum

import torch
from torch import Tensor

# SplitMix64's increment and multipliers (Steele, Lea, Flood 2014), as signed 64-bit integers.
_INCREMENT = 0x9E3779B97F4A7C15 - (1 << 64)
_MULTIPLIERS = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))
_SHIFTS = (30, 27, 31)
_MANTISSA_BITS = 53


class Purpose(IntEnum):
    """What a draw is for; draws of different purposes are independent."""

    EPISODE = 1
    HOST_WEIGHTS = 2
    SEED_WEIGHTS = 3
    MINIBATCH = 4
    SUBSET = 5
    SUBSET_SIZE = 6
    LABEL_NOISE = 7
    NOISE_LEVEL = 8
    NOISY_LABEL = 9
    LESION_COUNT = 10
    LESION_PLACE = 11
    LIVE_UNITS = 12
    LEARNING_RATE = 13
    SHIFT_DOWN = 14
    SHIFT_RIGHT = 15
    MIRROR = 16
    RENT = 17
    SLOT_RENT = 18
    BUDGET = 19
    VALIDATION = 20
    PHASES = 21
    PHASE_START = 22
    PHASE_SIZE = 23
    PHASE_CLASS = 24


def _logical_shift(value: Tensor, bits: int) -> Tensor:
    # Right shift of a signed tensor repeats the sign bit; the mask removes the copies.
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _scramble(value: Tensor) -> Tensor:
    for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS, strict=False):
        value = (value ^ _logical_shift(value, shift)) * multiplier
    return value ^ _logical_shift(value, _SHIFTS[-1])


def random_bits(keys: Tensor, purpose: Purpose, step: Tensor | int, index: Tensor) -> Tensor:
    """64 random bits per element of the broadcast of the arguments.

    Args:
        keys: Episode keys, int64.
        purpose: What the draw is for.
        step: When the draw happens.
        index: Which of the draws of that step it is, int64.
    """
    bits = _scramble(keys + _INCREMENT)
    for word in (int(purpose), step, index):
        bits = _scramble((bits ^ word) + _INCREMENT)
    return bits


def uniform(keys: Tensor, purpose: Purpose, step: Tensor | int, index: Tensor) -> Tensor:
    """Uniform float64 draws in [0, 1)."""
    bits = _logical_shift(random_bits(keys, purpose, step, index), 64 - _MANTISSA_BITS)
    return bits.to(torch.float64) * 2.0**-_MANTISSA_BITS


def integers(keys: Tensor, purpose: Purpose, step: Tensor | int, index: Tensor, high: Tensor | int) -> Tensor:
    """Uniform int64 draws in [0, high)."""
    return _logical_shift(random_bits(keys, purpose, step, index), 1) % high


def permutation(keys: Tensor, purpose: Purpose, size: int) -> Tensor:
    """One permutation of `range(size)` per key, of shape (len(keys), size)."""
    index = torch.arange(size, device=keys.device)
    return random_bits(keys[:, None], purpose, 0, index).argsort(dim=1, stable=True)
