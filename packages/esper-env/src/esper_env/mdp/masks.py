"""Legality as tables: exact masks per operation, and the marginal masks that follow from them."""

from functools import cache
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from esper_env.mdp.actions import HEADS, RELEVANT_HEADS, Op
from esper_env.mdp.lifecycle import Gates

Masks = dict[str, Tensor]


def masks_by_op(allowed: Gates, sizes: dict[str, int]) -> Masks:
    """Per head an int8 table [n, ops, size].

    A row of an operation that does not use the head, or that is illegal now, has exactly one 1, at the canonical
    value 0. The table of `op` repeats the mask of legal operations.
    """
    slots = allowed.by_op()
    legal = slots.any(dim=2)
    legal[:, Op.WAIT] = True
    tables = {"op": legal[:, None, :].expand(-1, len(Op), -1).contiguous()}
    for head in HEADS[1:]:
        used, canonical = _constants(head, sizes[head], legal.device)
        active = (used & legal).unsqueeze(2)
        tables[head] = torch.where(active, slots, canonical) if head == "slot" else active | canonical
    return {head: table.view(torch.int8) for head, table in tables.items()}


@cache
def _constants(head: str, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Which operations use a head, [ops], and which of its values is the canonical one, [size]."""
    used = torch.tensor([head in RELEVANT_HEADS[op] for op in Op], device=device)
    return used, torch.arange(size, device=device) == 0


def marginal_masks(by_op: Masks) -> Masks:
    """Per head the values that some legal operation allows, int8 [n, size]."""
    legal, rest = by_op["op"][:, 0], HEADS[1:]
    allowed = (torch.cat([by_op[head] for head in rest], dim=2) & legal.unsqueeze(2)).amax(dim=1)
    parts = allowed.split([by_op[head].shape[2] for head in rest], dim=1)
    return {"op": legal.clone(), **dict(zip(rest, parts, strict=True))}


def sample_action(space: spaces.Dict, info: dict[str, Any]) -> dict[str, Any]:
    """A random legal action of a single environment: the operation first, then its arguments by their exact masks."""
    op = space["op"].sample(info["action_mask"]["op"])
    return {"op": op} | {head: space[head].sample(info["action_mask_by_op"][head][op]) for head in HEADS[1:]}


def sample_mask(marginal: dict[str, NDArray[np.int8]]) -> dict[str, tuple[NDArray[np.int8], ...]]:
    """Marginal masks of a vector environment in the form that its batched `action_space.sample(mask)` takes.

    Gymnasium's own vectors of single environments put `_head` beside each head; those are left out.
    """
    return {head: tuple(np.ascontiguousarray(marginal[head])) for head in HEADS}
