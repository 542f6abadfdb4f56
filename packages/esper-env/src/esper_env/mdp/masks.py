"""Legality as tables: exact masks per operation, and the marginal masks that follow from them."""

import numpy as np
import torch
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
    tables = {}
    for head in HEADS:
        free = _values(head, slots, legal, sizes[head])
        used = torch.tensor([head == "op" or head in RELEVANT_HEADS[op] for op in Op], device=legal.device)
        active = used & (legal | (head == "op"))
        tables[head] = torch.where(active[..., None], free, _canonical(sizes[head], legal.device)).to(torch.int8)
    return tables


def _values(head: str, slots: Tensor, legal: Tensor, size: int) -> Tensor:
    if head == "op":
        return legal[:, None, :].expand(-1, len(Op), -1)
    return slots if head == "slot" else torch.ones(*legal.shape, size, dtype=torch.bool, device=legal.device)


def _canonical(size: int, device: torch.device) -> Tensor:
    return torch.arange(size, device=device) == 0


def marginal_masks(by_op: Masks) -> Masks:
    """Per head the values that some legal operation allows, int8 [n, size]."""
    legal = by_op["op"][:, 0]
    marginals = {head: (table * legal[..., None]).amax(dim=1) for head, table in by_op.items() if head != "op"}
    return {head: legal.clone() if head == "op" else marginals[head] for head in HEADS}


def sample_mask(marginal: dict[str, NDArray[np.int8]]) -> dict[str, tuple[NDArray[np.int8], ...]]:
    """Marginal masks of a vector environment in the form that its batched `action_space.sample(mask)` takes.

    Gymnasium's own vectors of single environments put `_head` beside each head; those are left out.
    """
    return {head: tuple(np.ascontiguousarray(marginal[head])) for head in HEADS}
