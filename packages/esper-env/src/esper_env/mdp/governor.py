"""The governor: one preallocated snapshot per row, and the way back to it when a host collapses."""

import numpy as np
import torch
from torch import Tensor

from esper_env.config import EsperConfig
from esper_env.mdp.state import State
from esper_env.population.cohort import Cohort, Rows
from esper_env.population.population import Census, Population

_KEPT = ("step", "rollbacks", "episode_return")  # time and its accounts do not roll back


def collapsed(state: State, population: Population, config: EsperConfig, baseline_loss: float) -> Tensor:
    """Rows with a loss that is no number or far beyond a uniform guess's or the last one, or a non-finite seed, [n]."""
    measured = torch.stack([state.loss, torch.where(state.trained, state.train_loss, 0.0)])
    sound = (measured <= config.collapse_loss * baseline_loss).all(dim=0)
    sound &= state.loss <= config.spike_loss * state.previous_loss.clamp(min=config.small_loss * baseline_loss)
    return ~(sound & torch.isfinite(state.seed_grad).all(dim=1) & _finite_seeds(population))


def _finite_seeds(population: Population) -> Tensor:
    """Rows whose seeds hold finite numbers only, [n]; an incubating seed may run away without touching any loss."""
    sums = torch.zeros(len(population), dtype=population.lr.dtype, device=population.lr.device)
    for cohort in population.seeds.values():
        index = torch.from_numpy(cohort.rows).to(sums.device)
        sums.index_add_(0, index, cohort.values.sum(dim=1))
    return torch.isfinite(sums)


class Snapshot:
    """The last good state of every row: parameters, optimiser state, seeds, lifecycle and measurements.

    Memory is allocated once; taking and restoring copy in place.
    """

    def __init__(self, population: Population, state: State) -> None:
        n, slots = state.stage.shape
        largest = max(layout.size for layouts in population.engine.seed_layouts for layout in layouts)
        body = population.body.tensors()
        self.body = tuple(torch.zeros_like(tensor) for tensor in body)
        self.seeds = tuple(t.new_zeros(n, slots, 1 if t.shape[1] == 1 else largest) for t in body)
        self.census = Census.empty(n, slots)
        self.state = state.clone()

    def take(self, population: Population, state: State, rows: Rows) -> None:
        """Remember rows as they are now."""
        index = torch.from_numpy(rows).to(population.lr.device)
        everyone = len(rows) == len(population)
        for mine, theirs in zip(self.body, population.body.tensors(), strict=True):
            mine.copy_(theirs) if everyone else mine.index_copy_(0, index, theirs.index_select(0, index))
        for (slot, _), cohort in population.seeds.items():
            self._take_seeds(slot, cohort, rows)
        self.census.copy_rows(population.census, rows)
        self.state.copy_from(state) if everyone else self.state.copy_rows(state, index)

    def _take_seeds(self, slot: int, cohort: Cohort, rows: Rows) -> None:
        members = np.intersect1d(cohort.rows, rows)
        taken = cohort if len(members) == len(cohort) else cohort.take(members)
        index = torch.from_numpy(members).to(cohort.values.device)
        for mine, theirs in zip(self.seeds, taken.tensors(), strict=True):
            mine[:, slot, : theirs.shape[1]].index_copy_(0, index, theirs)

    def restore(self, population: Population, state: State, rows: Rows) -> None:
        """Bring rows back to what was remembered."""
        index = torch.from_numpy(rows).to(population.lr.device)
        for mine, theirs in zip(self.body, population.body.tensors(), strict=True):
            theirs.index_copy_(0, index, mine.index_select(0, index))
        population.replant(rows, self.census, self.seeds)
        kept = {name: getattr(state, name).clone() for name in _KEPT}
        state.copy_rows(self.state, index)
        for name, tensor in kept.items():
            setattr(state, name, tensor)
