"""What an action is: its heads in their order, their sizes, and the layout of masks and logits.

The first head is the op, the others are its arguments: given the op they are independent of each other. All logits of a
step are laid out as `cells`, one row of `width` values each: cell 0 is the op head, then come the argument heads, once
if they do not depend on the op and once per op if they do (`rows`).

Three environments, the ops wait, grow and prune, and two slots. A slot to grow in must be empty, one to prune must not
be; waiting needs none, which leaves it the one value 0. In the first environment both slots are empty, in the second
slot 1 is taken, in the third both are:

>>> spec = ActionSpec("dict", ("op", "slot"), (3, 2), by_op=True, masked=True)
>>> op = np.array([[1, 1, 0], [1, 1, 1], [1, 0, 1]])
>>> slot = np.array([[[1, 0], [1, 1], [0, 0]], [[1, 0], [1, 0], [0, 1]], [[1, 0], [0, 0], [1, 1]]])
>>> masks = {"action_mask": {"op": op, "slot": slot.max(1)}, "action_mask_by_op": {"slot": slot}}
>>> cells = masks_to_cells(spec, masks, torch.device("cpu"))  # [cells, width, environments]
>>> for name, cell in zip(("op", "slot to wait", "slot to grow", "slot to prune"), cells.int(), strict=True):
...     print(f"{name:<14}", *cell.T.tolist())
op             [1, 1, 0] [1, 1, 1] [1, 0, 1]
slot to wait   [1, 0, 0] [1, 0, 0] [1, 0, 0]
slot to grow   [1, 1, 0] [1, 0, 0] [0, 0, 0]
slot to prune  [0, 0, 0] [0, 1, 0] [1, 1, 0]

A cell is as wide as the largest head, here the op; what is past a head's own values is never legal. Grow in slot 0 is
entry 1 of cell 0 and entry 0 of cell 2.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from esper_agent.config import Masks

Kind = Literal["discrete", "multi_discrete", "dict"]

MOST_LOGITS = 2**16  # per step; a rollout of 8,192 steps then takes 2 GB


@dataclass(frozen=True)
class ActionSpec:
    """The heads of an action space, and what depends on the op head."""

    kind: Kind
    heads: tuple[str, ...]
    sizes: tuple[int, ...]
    by_op: bool  # the environment gives masks per value of the op head
    masked: bool  # the environment gives masks
    conditioned: bool = False  # the argument heads have logits per value of the op head, with such masks or without

    @property
    def arguments(self) -> int:
        """The number of heads after the op."""
        return len(self.heads) - 1

    @property
    def rows(self) -> int:
        """How many times the argument heads appear among the cells."""
        return self.sizes[0] if self.by_op or self.conditioned else 1

    @property
    def cells(self) -> int:
        """Rows of logits per step."""
        return 1 + self.rows * self.arguments

    @property
    def width(self) -> int:
        """Length of a cell: the size of the largest head."""
        return max(self.sizes)

    def padding_mask(self) -> Tensor:
        """Which entries of the cells exist, [cells, width]."""
        sizes = torch.tensor([self.sizes[0], *(self.sizes[1:] * self.rows)])
        return torch.arange(self.width) < sizes[:, None]


def action_spec(
    space: spaces.Space[Any],
    heads: tuple[str, ...] | None,
    infos: Mapping[str, Any],
    *,
    condition_on_op: bool = False,
    masks: Masks = "exact",
) -> ActionSpec:
    """Read the heads off a single environment's action space.

    Args:
        space: the action space of a single environment.
        heads: the order that the environment declares, for a Dict space; None takes the space's own.
        infos: infos of a reset, which show whether the environment gives masks.
        condition_on_op: argument heads have logits for every value of the op head, the first one.
        masks: which of the environment's masks are used, see `PPOConfig`.

    Raises:
        ValueError: for a space that is not made of Discrete heads starting at 0, or too large to be conditioned.
    """
    kind, sizes = _sizes(space)
    names = tuple(sizes) if heads is None or kind != "dict" else heads  # a wrapper may have changed the space
    if set(names) != set(sizes):
        raise ValueError(f"the environment orders the heads {heads}, but its action space has {tuple(sizes)}")
    by_op = masks == "exact" and "action_mask_by_op" in infos
    masked = masks != "none" and (by_op or "action_mask" in infos)
    counts = tuple(sizes[name] for name in names)
    spec = ActionSpec(kind, names, counts, by_op, masked, condition_on_op and len(names) > 1)
    if not by_op and spec.cells * spec.width > MOST_LOGITS:
        raise ValueError(
            f"condition_on_op is True; allowed: False, since actions {counts} would need {spec.cells * spec.width:,} "
            f"logits per step, more than {MOST_LOGITS:,}"
        )
    return spec


def action_space(spec: ActionSpec) -> spaces.Space[Any]:
    """The action space of a single environment that a specification was read off."""
    if spec.kind == "discrete":
        return spaces.Discrete(spec.sizes[0])
    if spec.kind == "multi_discrete":
        return spaces.MultiDiscrete(list(spec.sizes))
    return spaces.Dict({name: spaces.Discrete(size) for name, size in zip(spec.heads, spec.sizes, strict=True)})


def _sizes(space: spaces.Space[Any]) -> tuple[Kind, dict[str, int]]:
    if isinstance(space, spaces.Discrete) and space.start == 0:
        return "discrete", {"action": int(space.n)}
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1 and not space.start.any():
        return "multi_discrete", {f"action_{i}": int(n) for i, n in enumerate(space.nvec)}
    if isinstance(space, spaces.Dict) and all(
        isinstance(part, spaces.Discrete) and part.start == 0 for part in space.values()
    ):
        return "dict", {name: int(part.n) for name, part in space.items()}  # type: ignore[attr-defined]
    raise ValueError(
        f"action space {space} is not supported; allowed: Discrete, MultiDiscrete of one dimension, "
        "or a Dict of Discrete, all starting at 0"
    )


def masks_to_cells(spec: ActionSpec, infos: Mapping[str, Any], device: torch.device) -> Tensor:
    """The masks of a batch of environments in the layout of cells, bool [cells, width, N].

    Args:
        spec: the heads.
        infos: vector infos with `action_mask` (per head [N, n], or flat [N, sum of n]) and, when legality depends
            on the op head, `action_mask_by_op` (per head [N, n_ops, n]).
        device: where the result lives.
    """
    marginal = _split(spec, infos["action_mask"])
    arguments = infos["action_mask_by_op"] if spec.by_op else marginal
    op = marginal[spec.heads[0]]
    shape = (spec.cells, spec.width, len(op))
    if isinstance(op, Tensor):
        cells = torch.zeros(shape, dtype=torch.bool, device=device)
        _fill(spec, cells, cells[1:].view(spec.rows, spec.arguments, *shape[1:]), op, arguments)
        return cells
    filled = np.zeros(shape, dtype=np.bool_)
    _fill(spec, filled, filled[1:].reshape(spec.rows, spec.arguments, *shape[1:]), op, arguments)
    return torch.from_numpy(filled).to(device)


def _fill(spec: ActionSpec, cells: Any, rows: Any, op: Any, arguments: Mapping[str, Any]) -> None:
    """Copy masks into their cells; `rows` is a view of the argument heads' cells by row."""
    cells[0, : spec.sizes[0]] = op.T
    for index, (name, size) in enumerate(zip(spec.heads[1:], spec.sizes[1:], strict=True)):
        # [N, rows, n] or, for all rows alike, [N, n] to [rows, n, N] or [n, N]
        mask = arguments[name]
        order = (1, 2, 0) if spec.by_op else (1, 0)
        rows[:, index, :size] = mask.permute(order) if isinstance(mask, Tensor) else mask.transpose(order)


def _split(spec: ActionSpec, mask: Any) -> Mapping[str, Any]:
    """Marginal masks by head name."""
    if isinstance(mask, Mapping):
        return mask
    bounds = np.cumsum(spec.sizes)[:-1].tolist()
    parts = torch.tensor_split(mask, bounds, dim=1) if isinstance(mask, Tensor) else np.split(mask, bounds, axis=1)
    return dict(zip(spec.heads, parts, strict=True))


def check_cells(spec: ActionSpec, cells: Tensor) -> None:
    """Verify that every mask that can apply leaves a legal value.

    Raises:
        ValueError: naming an environment and a head without one.
    """
    legal = cells.any(1)
    if spec.rows > 1:
        reachable = cells[0, : spec.sizes[0]].repeat_interleave(spec.arguments, 0)
        legal = torch.cat([legal[:1], legal[1:] | ~reachable])
    empty = torch.nonzero(~legal)
    if len(empty):
        cell, env = empty[0].tolist()
        head = spec.heads[0] if cell == 0 else spec.heads[1 + (cell - 1) % spec.arguments]
        raise ValueError(f"environment {env} gives a mask for head {head!r} that leaves no legal value")


def to_environment(spec: ActionSpec, actions: Tensor, *, tensors: bool) -> Any:
    """Actions [heads, N] in the form that a vector environment's `step` takes."""
    rows = actions if tensors else actions.cpu().numpy()
    if spec.kind == "discrete":
        return rows[0]
    if spec.kind == "multi_discrete":
        return rows.T
    return {name: rows[index] for index, name in enumerate(spec.heads)}


def user_masks(spec: ActionSpec, masks: Any, batch: int | None, device: torch.device) -> Tensor | None:
    """Masks as a user has them, in the layout of cells.

    Args:
        spec: the heads.
        masks: infos with masks, or the marginal masks alone; anything for a policy that knows no masks.
        batch: the number of observations that they belong to; None for a single one that is not batched.
        device: where the result lives.

    Raises:
        ValueError: when they are missing, belong to other observations, or are only marginal although legality depends
            on the op head.
    """
    if not spec.masked:
        return None
    if masks is None:
        raise ValueError("action_masks is None; allowed: the environment's infos or masks, since it gives masks")
    infos = masks if isinstance(masks, Mapping) and "action_mask" in masks else {"action_mask": masks}
    if spec.by_op and "action_mask_by_op" not in infos:
        raise ValueError("action_masks has no action_mask_by_op; allowed: the environment's infos")
    names = ("action_mask", "action_mask_by_op") if spec.by_op else ("action_mask",)
    given = {name: _as_arrays(infos[name]) for name in names}
    for name in names:
        _check_mask_shapes(spec, name, given[name], () if batch is None else (batch,))
    return masks_to_cells(spec, _add_batch(given) if batch is None else given, device)


def _check_mask_shapes(spec: ActionSpec, name: str, masks: Any, batch: tuple[int, ...]) -> None:
    """Refuse masks that belong to other observations, or to another action space."""
    rows = (spec.sizes[0],) if name == "action_mask_by_op" else ()
    if not isinstance(masks, Mapping):
        _require_shape(name, masks, (*batch, sum(spec.sizes)))
        return
    for head, size in list(zip(spec.heads, spec.sizes, strict=True))[len(rows) :]:
        if head not in masks:
            raise ValueError(f"{name} has masks for {sorted(masks)}; allowed: one for each of {spec.heads}")
        _require_shape(f"{name}[{head!r}]", masks[head], (*batch, *rows, size))


def _require_shape(name: str, mask: Any, shape: tuple[int, ...]) -> None:
    if tuple(mask.shape) != shape:
        whose = f"{shape[0]} observations" if len(shape) > 1 else "one observation"
        raise ValueError(f"{name} has shape {tuple(mask.shape)}; allowed: {shape} for {whose}")


def _as_arrays(masks: Any) -> Any:
    """Masks with lists of flags, as sb3-contrib's environments answer, made arrays."""
    if isinstance(masks, Mapping):
        return {name: _as_arrays(mask) for name, mask in masks.items()}
    return masks if isinstance(masks, Tensor) else np.asarray(masks)


def _add_batch(masks: Any) -> Any:
    if isinstance(masks, Mapping):
        return {name: _add_batch(mask) for name, mask in masks.items()}
    return masks[None]
