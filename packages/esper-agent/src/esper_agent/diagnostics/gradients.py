"""Gradient norms by parameter group, and clipping that reports what it did."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Groups = Mapping[str, Sequence[nn.Parameter]]


@dataclass(frozen=True)
class ClipReport:
    """What clipping found and did, as tensors on the learner's device."""

    pre: Tensor  # total norm before clipping
    post: Tensor  # total norm after it
    clipped: Tensor  # bool: whether any limit was exceeded
    per_group: dict[str, Tensor]  # norm of each group before clipping


def group_norms(groups: Groups) -> dict[str, Tensor]:
    """The gradient norm of each parameter group; 0 for a group without gradients.

    Raises:
        ValueError: when gradients live on more than one device.
    """
    gradients = _gradients(groups)
    device = _only_device(gradients)
    return {name: _norm(tensors, device) for name, tensors in gradients.items()}


def clip_gradients(groups: Groups, max_group_norm: float | None, max_norm: float) -> ClipReport:
    """Limit each group's norm, then the total norm, in place.

    A non-finite gradient makes `pre` non-finite and stays: do not step then.

    Args:
        groups: parameters by group name; a parameter belongs to one group.
        max_group_norm: limit of each group, or None for no limit by group.
        max_norm: limit of the total norm after the groups were limited.
    """
    norms = group_norms(groups)
    before = torch.stack(list(norms.values()))
    scale = _scales(before, max_group_norm, max_norm)
    for factor, tensors in zip(scale.unbind(), _gradients(groups).values(), strict=True):
        for tensor in tensors:
            tensor.mul_(factor)
    return ClipReport(
        pre=torch.linalg.vector_norm(before),
        post=torch.linalg.vector_norm(before * scale),
        clipped=(scale < 1).any(),
        per_group=norms,
    )


def _gradients(groups: Groups) -> dict[str, list[Tensor]]:
    return {name: [p.grad for p in group if p.grad is not None] for name, group in groups.items()}


def _scales(norms: Tensor, max_group_norm: float | None, max_norm: float) -> Tensor:
    """The factor of each group; exactly 1 where nothing has to shrink."""
    by_group = torch.ones_like(norms) if max_group_norm is None else _shrink(norms, max_group_norm)
    total: Tensor = torch.linalg.vector_norm(norms * by_group)
    return by_group * _shrink(total, max_norm)


def _shrink(norm: Tensor, limit: float) -> Tensor:
    return torch.where(norm > limit, limit / norm, 1.0)


def _norm(tensors: list[Tensor], device: torch.device) -> Tensor:
    if not tensors:
        return torch.zeros((), device=device)
    norms: list[Tensor] = [torch.linalg.vector_norm(tensor) for tensor in tensors]
    total: Tensor = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
    return total


def _only_device(gradients: Mapping[str, list[Tensor]]) -> torch.device:
    devices = {tensor.device for tensors in gradients.values() for tensor in tensors}
    if len(devices) > 1:
        found = ", ".join(sorted(map(str, devices)))
        raise ValueError(f"gradients must live on one device, but were found on {found}")
    return devices.pop() if devices else torch.device("cpu")
