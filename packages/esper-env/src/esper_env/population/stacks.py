"""Stacks: dense seeds of several blueprints at one slot as rows of one padded matrix, which share their products.

All are two products with an activation between. Hidden units that a seed does not have are zero and stay so: zero
weights lead to them and away from them, so neither side has a gradient.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from esper_env.blueprints.base import TwoProducts
from esper_env.fused.layout import Layout, Params
from esper_env.population.cohort import Cohort

BAND = 32  # hidden widths are padded to multiples of this, and seeds of one padded width make a stack


@dataclass(frozen=True)
class Piece:
    """Numbers of a kind's row that keep their order in the stack's row: lines of them, each line without a gap."""

    own: int  # first number in the kind's row
    shared: int  # and in the stack's
    lines: int
    width: int
    pitch: int  # from line to line in the stack's row; in the kind's it is the width

    def followed_by(self, other: "Piece") -> "Piece | None":
        """Both as one line, if neither row has a gap between or within them."""
        solid = all(piece.lines == 1 or piece.pitch == piece.width for piece in (self, other))
        size = self.lines * self.width
        if not solid or (other.own, other.shared) != (self.own + size, self.shared + size):
            return None
        size += other.lines * other.width
        return Piece(self.own, self.shared, 1, size, size)


class Kind:
    """A dense blueprint at a slot, and where its parameters lie in a stack.

    Args:
        layout: Of its seeds' rows.
        products: Which layers are its two products.
        gain: Of its layer scale.
    """

    def __init__(self, layout: Layout, products: TwoProducts, gain: float) -> None:
        self.gain, self.activation = gain, products.activation
        shapes = {entry.name: entry.shape for entry in layout.entries}
        inputs, self.hidden = shapes[f"body.{products.down[0]}.weight"]
        self.band = -(-self.hidden * len(products.down) // BAND) * BAND
        self.biased = f"body.{products.up}.bias" in shapes
        self.parts = _parts(inputs, self.band, outputs=shapes[f"body.{products.up}.weight"][1])
        self.pieces: list[Piece] = []
        for piece in self._pieces(layout, products):
            joint = self.pieces[-1].followed_by(piece) if self.pieces else None
            self.pieces = [*self.pieces[:-1], joint] if joint else [*self.pieces, piece]

    def _pieces(self, layout: Layout, products: TwoProducts) -> Iterator[Piece]:
        own, sizes = 0, [rows * columns for rows, columns in self.parts.values()]
        first = dict(zip(self.parts, accumulate([0, *sizes]), strict=False))
        for entry in layout.entries:
            part, column = self._place(entry.name, products)
            width = entry.shape[-1]
            yield Piece(own, first[part] + column, entry.size // width, width, self.parts[part][1])
            own += entry.size

    def _place(self, name: str, products: TwoProducts) -> tuple[str, int]:
        """The part of a stack that a parameter lies in, and its first column there."""
        layer, _, which = name.removeprefix("body.").rpartition(".")
        if layer in products.down:
            return f"down.{which}", products.down.index(layer) * self.hidden
        return ("scale" if layer == "last" else f"{'up' if layer == products.up else layer}.{which}"), 0


def _parts(inputs: int, hidden: int, outputs: int) -> dict[str, tuple[int, int]]:
    """The parts of a stack's row, each a matrix; in the order of layouts, so that most are copied as one."""
    return {
        "down.weight": (inputs, hidden),
        "down.bias": (1, hidden),
        "up.weight": (hidden, outputs),
        "up.bias": (1, outputs),
        "scale": (1, outputs),
        "gate.weight": (inputs, 1),
        "gate.bias": (1, 1),
    }


class Stack:
    """The seeds of some cohorts at one slot, one cohort after the other.

    Args:
        kinds: What each cohort holds; all of one band.
        cohorts: The cohorts.
    """

    def __init__(self, kinds: Sequence[Kind], cohorts: Sequence[Cohort]) -> None:
        self.kinds, self.cohorts, self.parts = kinds, cohorts, kinds[0].parts
        self.sizes = [rows * columns for rows, columns in self.parts.values()]
        self.size = sum(self.sizes)

    def unpack(self, values: Tensor) -> Params:
        """Rows as views [m, rows, columns], one per part."""
        pieces = zip(self.parts.items(), values.split(self.sizes, dim=1), strict=True)
        return {name: piece.view(-1, *shape) for (name, shape), piece in pieces}

    def padded(self, tensors: Sequence[Tensor]) -> Tensor:
        """One tensor of each cohort, values or of the optimiser's state, as rows of the stack."""
        if tensors[0].shape[1] == 1:  # a number per seed
            return torch.cat(list(tensors))
        rows = tensors[0].new_zeros(sum(tensor.shape[0] for tensor in tensors), self.size)
        for own, shared in self._pairs(rows, tensors):
            shared.copy_(own)
        return rows

    def give_back(self, rows: Tensor, tensors: Sequence[Tensor]) -> None:
        """The way back from `padded`, in place."""
        if tensors[0].shape[1] == 1:
            for tensor, part in zip(tensors, rows.split([len(t) for t in tensors]), strict=True):
                tensor.copy_(part)
            return
        for own, shared in self._pairs(rows, tensors):
            own.copy_(shared)

    def _pairs(self, rows: Tensor, tensors: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Views of each piece of each cohort, in the cohort and in the stack."""
        shares = rows.split([tensor.shape[0] for tensor in tensors])
        for kind, own, shared in zip(self.kinds, tensors, shares, strict=True):
            (m, _), pitch = own.shape, own.stride(0)
            start, first = own.storage_offset(), shared.storage_offset()
            for p in kind.pieces:
                size = (m, p.lines, p.width)
                mine = own.as_strided(size, (pitch, p.width, 1), start + p.own)
                yield mine, shared.as_strided(size, (self.size, p.pitch, 1), first + p.shared)
