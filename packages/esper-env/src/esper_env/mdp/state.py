"""The state of n rows: a struct of tensors, one line per field."""

from dataclasses import dataclass, fields
from enum import IntEnum
from functools import cache

import torch
from torch import Tensor

HISTORY = 4  # how many earlier metrics are remembered


class Stage(IntEnum):
    """Where a slot is in its life."""

    DORMANT = 0
    TRAINING = 1
    BLENDING = 2
    HOLDING = 3
    FOSSILIZED = 4
    EMBARGOED = 5


PRUNABLE = (Stage.TRAINING, Stage.BLENDING, Stage.HOLDING)
OCCUPIED = (*PRUNABLE, Stage.FOSSILIZED)  # a seed is there
LIVE = (Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED)  # it acts on its host


@dataclass
class State:
    """Everything about n rows but parameters and which seed is where. Floating-point fields are float64."""

    # lifecycle, [n, slots]
    stage: Tensor
    age: Tensor  # steps since germination
    stage_age: Tensor  # steps in the present stage
    ramp: Tensor  # steps that the blending takes
    # measurements, after the step
    trained: Tensor  # [n], whether a training step was measured
    train_loss: Tensor  # [n]
    block_grad: Tensor  # [n, slots]
    seed_grad: Tensor  # [n, slots]
    loss: Tensor  # [n], validation
    metric: Tensor  # [n], validation, in [0, 1]
    contribution: Tensor  # [n, slots]
    prospect: Tensor  # [n, slots]
    looked_at: Tensor  # [n, slots], whether gradients and what a seed adds were measured there
    all_off: Tensor  # [n], metric without any seed
    committed: Tensor  # [n], metric with fossilised seeds only
    added: Tensor  # [n], parameters of all seeds as a share of the host's
    seed_size: Tensor  # [n, slots], the same by slot
    # memory of the episode, [n]
    step: Tensor
    rollbacks: Tensor
    prunes: Tensor
    potential: Tensor  # Phi of this state, stored
    episode_return: Tensor
    previous_train_loss: Tensor
    previous_loss: Tensor
    previous_metric: Tensor
    best_metric: Tensor
    plateau: Tensor  # steps since the best metric rose
    history: Tensor  # [n, HISTORY], earlier metrics, newest first
    history_known: Tensor  # [n, HISTORY]
    last_op: Tensor
    last_executed: Tensor
    ended: Tensor  # the episode is over
    # of data that change
    phase: Tensor  # [n], that of the last measurement
    phase_first: Tensor  # [n], the metric when that began
    phase_best: Tensor  # [n, phases], the best metric of each while it lasted
    forgetting: Tensor  # [n], by how much the metrics on earlier phases' data fell since, on average

    def in_stage(self, stages: tuple[Stage, ...]) -> Tensor:
        """Which slots are in one of the stages, [n, slots]."""
        return _belongs(stages, self.stage.device)[self.stage]

    @property
    def alpha(self) -> Tensor:
        """Share of the seed that acts, [n, slots]: it rises from step to step while the seed blends, to 1 for good."""
        # Division of integers would give the global default type, which is not the state's float64.
        risen = (self.stage_age + 1) / self.ramp.clamp(min=1).double()
        return torch.where(self.stage == Stage.BLENDING, risen, self.in_stage(LIVE).double())

    @classmethod
    def blank(cls, n: int, slots: int, device: str, phases: int = 1) -> "State":
        """All zero, all dormant."""
        widths = dict.fromkeys(_PER_SLOT, slots) | dict.fromkeys(_PER_HISTORY, HISTORY) | {"phase_best": phases}

        def zeros(name: str) -> Tensor:
            shape = (n, widths[name]) if name in widths else (n,)
            return torch.zeros(shape, dtype=_dtype(name), device=device)

        return cls(**{field.name: zeros(field.name) for field in fields(cls)})

    def tensors(self) -> dict[str, Tensor]:
        """The fields by name."""
        return dict(vars(self))

    def shared(self) -> "State":
        """Another state of the same tensors, for as long as none of them is written to."""
        return State(**vars(self))

    def copy_rows(self, source: "State", index: Tensor, origin: Tensor | None = None) -> None:
        """Overwrite some rows with those of `source`, in place: the same rows there unless `origin` says which."""
        origin = index if origin is None else origin
        for name, target in self.tensors().items():
            target.index_copy_(0, index, getattr(source, name).index_select(0, origin))

    def copy_from(self, source: "State") -> None:
        """Overwrite every row, in place."""
        torch._foreach_copy_(list(vars(self).values()), list(vars(source).values()))

    def clone(self) -> "State":
        """An independent copy."""
        return State(**{name: tensor.clone() for name, tensor in self.tensors().items()})


@cache
def _belongs(stages: tuple[Stage, ...], device: torch.device) -> Tensor:
    """Of every stage, whether it is one of these."""
    return torch.tensor([stage in stages for stage in Stage], device=device)


_PER_SLOT = {
    *("stage", "age", "stage_age", "ramp"),
    *("block_grad", "seed_grad", "contribution", "prospect", "looked_at", "seed_size"),
}
_PER_HISTORY = {"history", "history_known"}
_FLAGS = {"trained", "looked_at", "history_known", "last_executed", "ended"}
_COUNTS = {"stage", "age", "stage_age", "ramp", "step", "rollbacks", "prunes", "plateau", "last_op", "phase"}


def _dtype(name: str) -> torch.dtype:
    if name in _FLAGS:
        return torch.bool
    return torch.int64 if name in _COUNTS else torch.float64
