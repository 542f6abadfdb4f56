"""The stream: classes come and go in phases, at times that are drawn and that no observation tells."""

import torch
from torch import Tensor

from esper_env.config import EsperConfig
from esper_env.fused.layers import accuracy, mean_over
from esper_env.fused.randomness import Purpose, integers, random_bits
from esper_env.mdp.state import State
from esper_env.tasks.base import Data, Task


def check_stream(task: Task, data: Data, config: EsperConfig) -> None:
    """One clear error unless the data are classified sample by sample, and there are as many classes as are drawn."""
    if not config.streams:
        return
    if task.metric is not accuracy or data.train.labels.dim() != 1:
        raise ValueError(f"phases is {config.phases}; allowed: more than one only where samples are classified")
    if config.phase_classes[1] > data.classes:
        raise ValueError(f"phase_classes is {config.phase_classes}; allowed: at most the data's {data.classes}")


def phase_starts(key: Tensor, config: EsperConfig) -> Tensor:
    """The step with which each phase begins, [n, phases]; after the horizon for those that an episode does not have."""
    low, high = config.phases
    count = low + integers(key, Purpose.PHASES, 0, torch.zeros_like(key), high - low + 1)[:, None]
    index = torch.arange(high, device=key.device)
    shortest = min(config.phase_steps, config.horizon // high)
    spare = config.horizon - count * shortest  # steps beyond the shortest phases, spread at random
    pauses = integers(key[:, None], Purpose.PHASE_START, 0, index, spare + 1)
    pauses = torch.where(index == 0, 0, torch.where(index < count, pauses, config.horizon + 1))
    return pauses.sort(dim=1).values + index * shortest


def phase_members(key: Tensor, classes: int, config: EsperConfig) -> Tensor:
    """Which classes each phase has, [n, phases, classes]: all if the data never change."""
    low, high = config.phase_classes
    if not config.streams:
        return torch.ones(len(key), 1, classes, dtype=torch.bool, device=key.device)
    index, each = (torch.arange(size, device=key.device) for size in (config.phases[1], classes))
    count = low + integers(key[:, None], Purpose.PHASE_SIZE, 0, index, high - low + 1)
    rank = random_bits(key[:, None, None], Purpose.PHASE_CLASS, index[:, None], each).argsort(dim=2).argsort(dim=2)
    return rank < count[..., None]


def present_phase(starts: Tensor, step: Tensor) -> Tensor:
    """The phase of each row in a step, [n]."""
    return (starts <= step[:, None]).sum(dim=1) - 1


def counted_samples(members: Tensor, phase: Tensor, labels: Tensor) -> Tensor:
    """Which samples are of the phase's classes, [n, samples], of labels [samples] or [n, samples]."""
    present = members[torch.arange(len(phase), device=phase.device), phase]
    return present[:, labels] if labels.dim() == 1 else present.gather(1, labels)


def places_in_phase(counted: Tensor, size: Tensor, bits: Tensor) -> Tensor:
    """Places of samples, [n, m], uniform over those of the first `size` that are counted; over all, if none is.

    Args:
        counted: [n, pool].
        size: [n].
        bits: Random integers, [n, m].
    """
    among = torch.arange(counted.shape[1], device=size.device) < size[:, None]
    fitting = counted & among
    fitting = torch.where(fitting.any(dim=1, keepdim=True), fitting, among)
    seen = fitting.cumsum(dim=1)
    return torch.searchsorted(seen, bits % seen[:, -1:] + 1)


def record_phase(state: State, phase: Tensor, members: Tensor, right: Tensor, labels: Tensor) -> None:
    """Remember what a measurement says of this phase and of those before; tensors are replaced, none is written to.

    Args:
        state: Just measured.
        phase: That of the measurement, [n].
        members: As `phase_members` gives them.
        right: Which samples are answered right, [n, samples].
        labels: Of the samples, [samples].
    """
    index = torch.arange(members.shape[1], device=phase.device)
    metrics = torch.stack([mean_over(right.double(), of_phase[:, labels]) for of_phase in members.unbind(1)], dim=1)
    now, before = index == phase[:, None], index < phase[:, None]
    state.phase_first = torch.where(phase == state.phase, state.phase_first, state.metric)
    state.phase_best = torch.where(now, torch.maximum(state.phase_best, metrics), state.phase_best)
    fallen = torch.where(before, state.phase_best - metrics, 0.0).sum(dim=1)
    state.forgetting, state.phase = fallen / phase.clamp(min=1), phase
