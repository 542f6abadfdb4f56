"""A cohort: rows of parameters that share a layout, with their optimiser state and the environments they belong to."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper_env.fused.layout import Layout
from esper_env.fused.optimizers import State

Rows = NDArray[np.int64]


@dataclass
class Cohort:
    """Stacked parameters of some environments, in ascending order of the environments.

    Membership lives on the host as `rows`: it changes only between steps, so no pass ever asks the device for it.
    """

    layout: Layout
    rows: Rows
    values: Tensor
    state: State

    def __len__(self) -> int:
        return len(self.rows)

    def tensors(self) -> tuple[Tensor, ...]:
        """Everything that follows a row."""
        return (self.values, *self.state)

    def take(self, rows: Rows) -> "Cohort":
        """A copy of the given rows, which must be members."""
        rows = np.sort(rows)
        return self._copied(rows, rows)

    def branched(self, origin: Rows, rows: Rows) -> "Cohort":
        """Copies of the members among `origin`, which may repeat, as members in the places of `rows`."""
        there = np.isin(origin, self.rows)
        order = np.argsort(rows[there])
        return self._copied(origin[there][order], rows[there][order])

    def without(self, rows: Rows) -> "Cohort":
        """The cohort less the given rows."""
        return self.take(np.setdiff1d(self.rows, rows))

    def joined(self, other: "Cohort") -> "Cohort":
        """The union of two disjoint cohorts."""
        rows = np.concatenate([self.rows, other.rows])
        order = np.argsort(rows)
        index = torch.from_numpy(order).to(self.values.device)
        pairs = zip(self.tensors(), other.tensors(), strict=True)
        values, *state = (torch.cat(pair).index_select(0, index) for pair in pairs)
        return Cohort(self.layout, rows[order], values, tuple(state))

    def window(self, start: int, stop: int) -> "Cohort":
        """The members with start <= row < stop, renumbered from start, sharing storage with this cohort."""
        low, high = np.searchsorted(self.rows, (start, stop))
        values, *state = (t[low:high] for t in self.tensors())
        return Cohort(self.layout, self.rows[low:high] - start, values, tuple(state))

    def _copied(self, members: Rows, rows: Rows) -> "Cohort":
        index = torch.from_numpy(np.searchsorted(self.rows, members)).to(self.values.device)
        values, *state = (t.index_select(0, index) for t in self.tensors())
        return Cohort(self.layout, rows, values, tuple(state))
