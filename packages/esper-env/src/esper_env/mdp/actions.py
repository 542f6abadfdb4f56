"""The action: an operation and its arguments, one head each, and the table of which head matters to which operation."""

from enum import IntEnum
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from esper_env.blueprints.blends import Blend
from esper_env.config import TEMPI

HEADS = ("op", "slot", "blueprint", "blend", "tempo")  # spaces.Dict sorts its keys, so the order is said here


class Op(IntEnum):
    """What to do in this step."""

    WAIT = 0
    GERMINATE = 1
    ADVANCE = 2
    FOSSILIZE = 3
    PRUNE = 4


# The single source for masks, policies, losses and telemetry.
RELEVANT_HEADS: dict[Op, tuple[str, ...]] = {
    Op.WAIT: (),
    Op.GERMINATE: ("slot", "blueprint", "blend", "tempo"),
    Op.ADVANCE: ("slot",),
    Op.FOSSILIZE: ("slot",),
    Op.PRUNE: ("slot",),
}


def head_sizes(slots: int, blueprints: int) -> dict[str, int]:
    """How many values each head has, in the order of HEADS."""
    return dict(zip(HEADS, (len(Op), slots, blueprints, len(Blend), len(TEMPI)), strict=True))


def action_space(slots: int, blueprints: int) -> spaces.Dict:
    """The single action space."""
    return spaces.Dict({head: spaces.Discrete(size) for head, size in head_sizes(slots, blueprints).items()})


def relevance(device: str = "cpu") -> Tensor:
    """RELEVANT_HEADS as a table [ops, heads]; `op` matters to every operation."""
    rows = [[head == "op" or head in RELEVANT_HEADS[op] for head in HEADS] for op in Op]
    return torch.tensor(rows, device=device)


def canonical(actions: Tensor) -> Tensor:
    """Actions [n, heads] with the heads that the operation does not use set to zero."""
    return actions * relevance(str(actions.device))[actions[:, 0]]


def inside(actions: Tensor, sizes: dict[str, int]) -> Tensor:
    """Which actions [n, heads] are of the space, [n]."""
    high = torch.tensor([sizes[head] for head in HEADS], device=actions.device)
    return ((actions >= 0) & (actions < high)).all(dim=1)


def refuse(actions: Tensor, sizes: dict[str, int]) -> None:
    """Say which head is outside of its space, once it is known that one is.

    Raises:
        ValueError: always.
    """
    for values, head in zip(actions.T.tolist(), HEADS, strict=True):
        if not all(0 <= value < sizes[head] for value in values):
            raise ValueError(f"action[{head!r}] is {values}; allowed: 0 to {sizes[head] - 1}")


def stack_actions(action: Any, n: int, device: str) -> Tensor:
    """A dict of n integers per head as an int64 tensor [n, heads]; whether they are of the space is not asked."""
    if not isinstance(action, dict) or set(action) != set(HEADS):
        got = f"the keys {list(action)}" if isinstance(action, dict) else type(action).__name__
        raise TypeError(f"an action is a dict with the keys {', '.join(HEADS)}; got {got}")
    return torch.stack([_head(action[head], head, n, device) for head in HEADS], dim=1)


def _head(values: Any, head: str, n: int, device: str) -> Tensor:
    array = values if isinstance(values, Tensor) else np.asarray(values)
    if not _is_integer(array) or (array.shape != (n,) and (n, array.shape) != (1, ())):
        raise TypeError(f"action[{head!r}] must hold {n} integer(s); got {values!r}")
    return torch.as_tensor(array).to(device=device, dtype=torch.int64).reshape(n)


def _is_integer(array: Tensor | NDArray[np.generic]) -> bool:
    if isinstance(array, Tensor):
        return not (array.is_floating_point() or array.is_complex() or array.dtype == torch.bool)
    return array.dtype.kind in "iu"
