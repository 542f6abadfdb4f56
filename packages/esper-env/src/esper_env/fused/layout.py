"""Parameters as rows: each model's parameters are one vector, so a population is one matrix.

Birth, removal, snapshots and optimiser steps are then row operations on one tensor, whatever the module inside.
A plain `nn.Module` (the template) gives names, shapes and initial values; fused layers read the unpacked views.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt

import torch
from torch import Tensor, nn

from esper_env.fused.randomness import Purpose, uniform

Params = dict[str, Tensor]


class LayerScale(nn.Module):
    """Multiplies the last axis (or the channels of an image) by a learned vector that starts at zero.

    Args:
        features: Length of the vector.
        gain: A constant factor; the smaller it is, the smaller are the steps that training takes with the output.
        image: Whether inputs are [batch, channels, height, width].
    """

    def __init__(self, features: int, gain: float, image: bool = False) -> None:
        super().__init__()
        self.gain = gain
        self.scale = nn.Parameter(torch.zeros(features))
        self.image = image

    def forward(self, x: Tensor) -> Tensor:
        """Scale `x`."""
        scale = self.gain * self.scale
        return x * (scale.view(-1, 1, 1) if self.image else scale)


@dataclass(frozen=True)
class Entry:
    """One parameter: its name, its shapes, and how it starts."""

    name: str
    plain: tuple[int, ...]  # the shape that the template gives it
    shape: tuple[int, ...]  # the shape that fused layers want
    size: int
    transposed: bool  # dense weights are kept input-major, which the batched matrix product prefers
    center: float  # initial values are center + bound * uniform(-1, 1)
    bound: float

    def plain_rows(self, rows: Tensor) -> Tensor:
        """Rows [n, *shape] as the template shapes them, [n, *plain]."""
        return rows.mT if self.transposed else rows.reshape(-1, *self.plain)


def _initial(module: nn.Module, name: str, parameter: Tensor) -> tuple[float, float]:
    if parameter.dim() >= 2:
        fan_in = parameter.shape[1] if isinstance(module, nn.Embedding) else parameter[0].numel()
        return 0.0, sqrt((1.0 if isinstance(module, nn.Embedding) else 6.0) / fan_in)
    # What starts constant, such as the weights of a norm or a layer scale, is meant so; biases start at zero.
    values = parameter.detach().flatten()
    constant = name != "bias" and bool((values == values[0]).all())
    return (values[0].item() if constant else 0.0), 0.0


def _entries(template: nn.Module) -> Iterator[Entry]:
    for path, module in template.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            is_dense, plain = isinstance(module, nn.Linear), tuple(parameter.shape)
            transposed = is_dense and len(plain) == 2
            # The biases of dense layers meet activations [n, batch, features], and so have an axis for the batch.
            shape = plain[::-1] if transposed else (1, *plain) if is_dense else plain
            center, bound = _initial(module, name, parameter)
            full = f"{path}.{name}" if path else name
            yield Entry(full, plain, shape, parameter.numel(), transposed, center, bound)


class Layout:
    """Where each parameter of a template module lies in a row.

    Args:
        template: A plain module; only its names, shapes and layer types are read.
    """

    def __init__(self, template: nn.Module) -> None:
        self.entries = tuple(_entries(template))
        self.size = sum(entry.size for entry in self.entries)
        self._parts: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for number, entry in enumerate(self.entries):
            pieces = entry.name.split(".")
            for cut in range(1, len(pieces)):
                self._parts[".".join(pieces[:cut])].append((".".join(pieces[cut:]), number))

    def unpack(self, values: Tensor) -> list[Tensor]:
        """Rows [n, size] as one view [n, *shape] per parameter, in the order of `entries`."""
        pieces = torch.split(values, [entry.size for entry in self.entries], dim=1)
        return [piece.view(-1, *entry.shape) for piece, entry in zip(pieces, self.entries, strict=True)]

    def leaves(self, values: Tensor) -> list[Tensor]:
        """The same as differentiable leaves that share storage with `values`."""
        return [view.detach().requires_grad_() for view in self.unpack(values)]

    def pack(self, grads: Sequence[Tensor | None], like: Tensor) -> Tensor:
        """Gradients of the leaves as rows like `like`, [n, size]; an unused parameter has gradient zero."""
        pairs = zip(grads, self.entries, strict=True)
        return torch.cat([like.new_zeros(len(like), e.size) if g is None else g.flatten(1) for g, e in pairs], dim=1)

    def part(self, prefix: str) -> list[tuple[str, int]]:
        """Local name and number of each parameter of one submodule."""
        return self._parts[prefix]

    def initial(self, keys: Tensor, purpose: Purpose, step: Tensor | int, stream: int, dtype: torch.dtype) -> Tensor:
        """Initial rows, [len(keys), size]: a pure function of the arguments."""
        return self.from_draws(weight_draws(keys, purpose, step, stream, self.size), dtype)

    def from_draws(self, draws: Tensor, dtype: torch.dtype) -> Tensor:
        """Initial rows from uniform draws [n, size or more]."""
        center, bound = (numbers.to(draws.device) for numbers in self._start)
        return (center + bound * (2.0 * draws[:, : self.size] - 1.0)).to(dtype)

    @cached_property
    def _start(self) -> tuple[Tensor, Tensor]:
        """Center and bound of every number of a row."""
        sizes = torch.tensor([e.size for e in self.entries])
        columns = ([e.center for e in self.entries], [e.bound for e in self.entries])
        center, bound = (torch.tensor(c, dtype=torch.float64).repeat_interleave(sizes) for c in columns)
        return center, bound

    def state_dict(self, row: Tensor) -> dict[str, Tensor]:
        """One row as the state dict of the template."""
        views = zip(self.entries, self.unpack(row.unsqueeze(0)), strict=True)
        return {entry.name: entry.plain_rows(view)[0].contiguous() for entry, view in views}


def weight_draws(keys: Tensor, purpose: Purpose, step: Tensor | int, stream: Tensor | int, size: int) -> Tensor:
    """Uniform draws for the initial weights of rows, [len(keys), size]; streams are independent."""
    when, which = (word[:, None] if isinstance(word, Tensor) else word for word in (step, stream))
    index = torch.arange(size, device=keys.device) + which * (1 << 32)
    return uniform(keys[:, None], purpose, when, index)
