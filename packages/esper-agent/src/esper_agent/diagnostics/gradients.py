"""Gradient norms by parameter group, and clipping that reports what it did."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Groups = Mapping[str, Sequence[nn.Parameter]]
Gradients = dict[str, list[Tensor]]


@dataclass(frozen=True)
class ClipReport:
    """What clipping found and did, as tensors on the learner's device."""

    names: tuple[str, ...]
    norms: Tensor  # [groups] before clipping
    scales: Tensor  # [groups] by which the gradients were multiplied
    pre: Tensor  # total norm before clipping
    post: Tensor  # total norm after it

    @property
    def clipped(self) -> Tensor:
        """Whether any limit was exceeded."""
        return (self.scales < 1).any()

    @property
    def per_group(self) -> dict[str, Tensor]:
        """The norm of each group before clipping."""
        return dict(zip(self.names, self.norms.unbind(), strict=True))


def group_norms(groups: Groups) -> dict[str, Tensor]:
    """The gradient norm of each parameter group; 0 for a group without gradients.

    Raises:
        ValueError: when gradients live on more than one device.
    """
    gradients = _gradients(groups)
    return dict(zip(gradients, _norms(gradients), strict=True))


def clip_gradients(groups: Groups, max_group_norm: float | None, max_norm: float) -> ClipReport:
    """Limit each group's norm, then the total norm, in place.

    A non-finite gradient makes `pre` non-finite and stays: do not step then.

    Args:
        groups: parameters by group name; a parameter belongs to one group.
        max_group_norm: limit of each group, or None for no limit by group.
        max_norm: limit of the total norm after the groups were limited.
    """
    gradients = _gradients(groups)
    norms = torch.stack(_norms(gradients))
    scales = _scales(norms, max_group_norm, max_norm)
    for factor, tensors in zip(scales.unbind(), gradients.values(), strict=True):
        for tensor in tensors:
            tensor.mul_(factor)
    pre, post = torch.linalg.vector_norm(torch.stack([norms, norms * scales]), dim=1).unbind()
    return ClipReport(tuple(gradients), norms, scales, pre, post)


def _scales(norms: Tensor, max_group_norm: float | None, max_norm: float) -> Tensor:
    """The factor of each group; exactly 1 where nothing has to shrink."""
    if max_group_norm is None:
        return _shrink(torch.linalg.vector_norm(norms), max_norm).expand_as(norms)
    by_group = _shrink(norms, max_group_norm)
    return by_group * _shrink(torch.linalg.vector_norm(norms * by_group), max_norm)


def _shrink(norm: Tensor, limit: float) -> Tensor:
    return torch.where(norm > limit, limit / norm, 1.0)


def _gradients(groups: Groups) -> Gradients:
    return {name: [p.grad for p in group if p.grad is not None] for name, group in groups.items()}


def _norms(gradients: Gradients) -> list[Tensor]:
    device = _only_device(gradients)
    return [_norm(tensors, device) for tensors in gradients.values()]


def _norm(tensors: list[Tensor], device: torch.device) -> Tensor:
    if not tensors:
        return torch.zeros((), device=device)
    norms: list[Tensor] = [torch.linalg.vector_norm(tensor) for tensor in tensors]
    total: Tensor = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
    return total


def _only_device(gradients: Gradients) -> torch.device:
    devices = {tensor.device for tensors in gradients.values() for tensor in tensors}
    if len(devices) > 1:
        found = ", ".join(sorted(map(str, devices)))
        raise ValueError(f"gradients must live on one device, but were found on {found}")
    return devices.pop() if devices else torch.device("cpu")
