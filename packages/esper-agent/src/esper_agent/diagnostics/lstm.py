"""The health of a recurrent state: its size, its saturation, and whether it is finite."""

from dataclasses import dataclass

import torch
from torch import Tensor

from esper_agent.distributed import Ranks


@dataclass(frozen=True)
class LstmHealth:
    """A recurrent state in four numbers."""

    rms: float
    max_abs: float
    saturation: float  # share of units with an absolute value above the level
    nonfinite: float  # share of units that are NaN or infinite


def lstm_summary(hidden: Tensor, saturation_level: float) -> Tensor:
    """The fields of `LstmHealth` as one tensor on the state's device.

    All are means or maxima over units, so they do not depend on how many environments there are.
    """
    size = hidden.detach().float().abs()
    return torch.stack(
        [
            size.square().mean().sqrt(),
            size.max(),
            (size > saturation_level).float().mean(),
            (~size.isfinite()).float().mean(),
        ]
    )


def pooled_summary(own: Tensor, units: int, ranks: Ranks) -> Tensor:
    """The summary of the states of all ranks from that of this rank's, over so many units."""
    if not ranks.several:
        return own
    rms, largest, saturation, nonfinite = own.double().unbind()
    weighted = torch.stack([rms.square(), saturation, nonfinite, torch.ones_like(rms)]) * units
    square, saturated, lost, total = ranks.sum(weighted)[0].unbind()
    means = [(square / total).sqrt(), ranks.largest(largest)[0], saturated / total, lost / total]
    return torch.stack(means).to(own.dtype)


def lstm_health(hidden: Tensor | None, saturation_level: float) -> LstmHealth | None:
    """Judge a state with one transfer to the host; None for no state."""
    if hidden is None or hidden.numel() == 0:
        return None
    return LstmHealth(*lstm_summary(hidden, saturation_level).tolist())
