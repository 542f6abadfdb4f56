"""The observation: a declared schema, its encoding from the state, and a table for readers.

A missing measurement is marked by its own flag and then holds zero; unbounded quantities pass x / (1 + x).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from esper_env.blueprints.blends import Blend
from esper_env.config import TEMPI, EsperConfig
from esper_env.mdp.actions import Op
from esper_env.mdp.lifecycle import Gates, seeds_left
from esper_env.mdp.scales import relative_loss, squash
from esper_env.mdp.state import HISTORY, OCCUPIED, Stage, State


@dataclass(frozen=True)
class View:
    """What the encoders read."""

    state: State
    gates: Gates
    rent: Tensor  # [n]
    slot_rent: Tensor  # [n]
    budget: Tensor  # [n]
    blueprint: Tensor  # [n, slots], of the seed that is there; no blueprint's number where there is none
    blend: Tensor  # [n, slots]
    config: EsperConfig
    baseline_loss: float
    predictions: int  # answers that the loss of a minibatch averages over
    largest_seed: Tensor  # [slots], parameters of the largest blueprint as a share of the host's


@dataclass(frozen=True)
class Field:
    """One field of the schema: what it is called, where it lies, what it means, how it is computed."""

    name: str
    size: int  # per slot, for a slot field
    low: float
    high: float
    meaning: str
    encode: Callable[[View], Tensor]  # [n] or [n, size]; for a slot field [n, slots] or [n, slots, size]


def _one_hot(index: Tensor, size: int) -> Tensor:
    """Whether each number is 0, 1, ..., [..., size]; torch's own reads its argument's extremes on the host."""
    return index.unsqueeze(-1) == torch.arange(size, device=index.device)


def _loss(view: View, value: Tensor) -> Tensor:
    return relative_loss(value, view.baseline_loss)


def _share(name: str, meaning: str, encode: Callable[[View], Tensor], size: int = 1) -> Field:
    return Field(name, size, 0.0, 1.0, meaning, encode)


def _signed(name: str, meaning: str, encode: Callable[[View], Tensor]) -> Field:
    return Field(name, 1, -1.0, 1.0, meaning, encode)


def _train_loss_change(view: View) -> Tensor:
    change = _loss(view, view.state.train_loss) - _loss(view, view.state.previous_train_loss)
    # The second known metric tells that two training steps were measured; a step that was rolled back was not.
    return torch.where(view.state.history_known[:, 1], change, 0.0)


def _block_grad_share(view: View) -> Tensor:
    total = view.state.block_grad.sum(dim=1, keepdim=True)
    known = (total > 0) & view.state.looked_at.all(dim=1, keepdim=True)
    return torch.where(known, view.state.block_grad / total.clamp(min=torch.finfo(total.dtype).tiny), 0.0)


def _seen(view: View, value: Tensor) -> Tensor:
    return torch.where(view.state.looked_at, value, torch.zeros_like(value))


def _per_sample(view: View, norm: Tensor) -> Tensor:
    # The loss is a mean over predictions; times the root of their number the norm no longer depends on that number.
    return _seen(view, squash(norm * view.predictions**0.5))


def _history(view: View, value: Tensor) -> Tensor:
    """What earlier steps measured; with partial measurements, remembering is the agent's part."""
    return value if view.config.measurements == "full" else torch.zeros_like(value)


def _occupied(view: View) -> Tensor:
    return view.state.in_stage(OCCUPIED)


def _blueprint(view: View, blueprints: int) -> Tensor:
    return _one_hot(view.blueprint, blueprints)


def _blend(view: View) -> Tensor:
    return _one_hot(view.blend, len(Blend)) * _occupied(view).unsqueeze(2)


def _position(view: View) -> Tensor:
    n, slots = view.state.stage.shape
    return torch.linspace(0.0, 1.0, slots, device=view.state.stage.device, dtype=torch.float64).expand(n, slots)


@cache
def global_fields() -> tuple[Field, ...]:
    """The fields that describe the whole host."""
    return (
        _share("progress", "steps taken / horizon", lambda v: v.state.step / v.config.horizon),
        _share("trained", "training has been measured", lambda v: v.state.trained),
        _share(
            "train_loss",
            "training loss of the step, relative to a uniform guess",
            lambda v: _loss(v, v.state.train_loss),
        ),
        _signed("train_loss_change", "its change since the step before", _train_loss_change),
        _share("val_loss", "validation loss, relative to a uniform guess", lambda v: _loss(v, v.state.loss)),
        _signed(
            "val_loss_change",
            "its change since the step before",
            lambda v: _loss(v, v.state.loss) - _loss(v, v.state.previous_loss),
        ),
        _share("val_metric", "validation metric", lambda v: v.state.metric),
        _signed(
            "val_metric_change", "its change since the step before", lambda v: v.state.metric - v.state.previous_metric
        ),
        _share("val_metric_best", "the best so far", lambda v: v.state.best_metric),
        _share("metric_history", "earlier metrics, newest first", lambda v: _history(v, v.state.history), HISTORY),
        _share(
            "metric_history_known",
            "whether each was measured",
            lambda v: _history(v, v.state.history_known),
            HISTORY,
        ),
        _share("plateau", "steps since the best metric rose / horizon", lambda v: v.state.plateau / v.config.horizon),
        _share("added_parameters", "parameters of all seeds / of the host", lambda v: squash(v.state.added)),
        _share(
            "budget_used", "the same / of the largest seeds everywhere", lambda v: v.state.added / v.largest_seed.sum()
        ),
        _share("rollbacks", "rollbacks / those allowed", lambda v: v.state.rollbacks / (v.config.max_rollbacks + 1)),
        _share(
            "last_op", "the operation of the last step, one-hot", lambda v: _one_hot(v.state.last_op, len(Op)), len(Op)
        ),
        _share("last_executed", "it was legal and executed", lambda v: v.state.last_executed),
    )


DRAWN_FIELDS = {
    "rent": _share("rent", "the price of parameters, if it is drawn", lambda v: squash(v.rent)),
    "slot_rent": _share("slot_rent", "the price of a seed, if it is drawn", lambda v: squash(v.slot_rent)),
    "budget": _share(
        "seeds_left",
        "seeds that the budget still allows / slots, if there is one",
        lambda v: (seeds_left(v.state, v.budget) / v.state.stage.shape[1]).clamp(0.0, 1.0),
    ),
}


def drawn_fields(config: EsperConfig) -> tuple[Field, ...]:
    """The fields of prices that episodes draw, and of a budget, after the other ones of the host."""
    drawn = [name for name in ("rent", "slot_rent") if isinstance(getattr(config, name), tuple)]
    return tuple(DRAWN_FIELDS[name] for name in (*drawn, *(["budget"] if config.budget is not None else [])))


@cache
def slot_fields(blueprints: int) -> tuple[Field, ...]:
    """The fields that each slot has."""
    return (
        _share("stage", "the stage, one-hot", lambda v: _one_hot(v.state.stage, len(Stage)), len(Stage)),
        _share("alpha", "share of the seed that acts", lambda v: v.state.alpha),
        _signed("contribution", "metric with the seed minus without it", lambda v: _seen(v, v.state.contribution)),
        _share("contribution_known", "a seed is there and was measured", lambda v: _seen(v, _occupied(v))),
        _signed("prospect", "what an incubating seed would add at alpha 1", lambda v: _seen(v, v.state.prospect)),
        _share("prospect_known", "a seed incubates there", lambda v: _seen(v, v.state.stage == Stage.TRAINING)),
        _share("block_gradient", "gradient norm at the block's output", lambda v: _per_sample(v, v.state.block_grad)),
        _share("block_gradient_share", "the same / the sum over slots", _block_grad_share),
        _share("seed_gradient", "gradient norm of the seed's parameters", lambda v: _per_sample(v, v.state.seed_grad)),
        _share("age", "steps since germination / horizon", lambda v: v.state.age / v.config.horizon),
        _share("stage_age", "steps in this stage / horizon", lambda v: v.state.stage_age / v.config.horizon),
        _share("blueprint", "what was planted, one-hot", lambda v: _blueprint(v, blueprints), blueprints),
        _share("blend", "how it joins its block, one-hot", _blend, len(Blend)),
        _share("tempo", "steps of its ramp / of the longest", lambda v: v.state.ramp * _occupied(v) / max(TEMPI)),
        _share(
            "size",
            "parameters of the seed / of the largest blueprint here",
            lambda v: v.state.seed_size / v.largest_seed,
        ),
        _share("position", "place of the block in the host", _position),
        _share("may_advance", "ADVANCE is legal here", lambda v: v.gates.advance),
        _share("may_fossilize", "FOSSILIZE is legal here", lambda v: v.gates.fossilize),
    )


LOOKED_AT = _share("looked_at", "gradients and what a seed adds were measured here", lambda v: v.state.looked_at)


def partial_fields(config: EsperConfig) -> tuple[Field, ...]:
    """The fields that say of each slot whether it was measured, after its other ones."""
    return () if config.measurements == "full" else (LOOKED_AT,)


@dataclass(frozen=True)
class Schema:
    """The observation of an environment: global fields, then the slots one after the other."""

    slots: int
    blueprints: int
    drawn: tuple[Field, ...] = ()
    partial: tuple[Field, ...] = ()

    @property
    def host_fields(self) -> tuple[Field, ...]:
        """The fields of the host, with those of what its episode draws."""
        return global_fields() + self.drawn

    @property
    def slot_fields(self) -> tuple[Field, ...]:
        """The fields of each slot, with those of what was measured there."""
        return slot_fields(self.blueprints) + self.partial

    def widths(self) -> tuple[int, int]:
        """How many numbers describe the host, and how many each slot."""
        host, slot = (sum(field.size for field in part) for part in (self.host_fields, self.slot_fields))
        return host, slot

    def columns(self) -> list[tuple[str, Field]]:
        """A label and the field of each number of the vector, in order."""
        columns = [(_label(field, part), field) for field in self.host_fields for part in range(field.size)]
        for slot in range(self.slots):
            fields = self.slot_fields
            columns += [(f"slot{slot}.{_label(field, part)}", field) for field in fields for part in range(field.size)]
        return columns

    def space(self) -> spaces.Box:
        """The bounds of every number."""
        columns = self.columns()
        low, high = (
            np.array([getattr(field, end) for _, field in columns], dtype=np.float32) for end in ("low", "high")
        )
        return spaces.Box(low, high, dtype=np.float32)

    def encode(self, view: View) -> Tensor:
        """The observation of every row, float32 [n, size]."""
        n = len(view.state.step)
        parts = [field.encode(view).view(n, -1) for field in self.host_fields]
        slots = [field.encode(view).view(n, self.slots, -1) for field in self.slot_fields]
        return torch.cat([*parts, torch.cat(slots, dim=2).view(n, -1)], dim=1).to(torch.float32)

    def describe(self, vector: ArrayLike) -> str:
        """One observation as a readable table."""
        values: NDArray[np.float32] = np.asarray(vector, dtype=np.float32)
        columns = self.columns()
        if values.shape != (len(columns),):
            raise ValueError(f"an observation has shape ({len(columns)},); got {values.shape}")
        width = max(len(label) for label, _ in columns)
        rows = [
            f"{label:<{width}} {value:>8.4f}  {field.meaning}"
            for (label, field), value in zip(columns, values, strict=True)
        ]
        return "\n".join(rows)


def _label(field: Field, part: int) -> str:
    return field.name if field.size == 1 else f"{field.name}[{part}]"
