"""Branching: rows that go on as copies of others, bit for bit, so that several continuations of one can be played."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper_env.mdp.governor import Snapshot
from esper_env.mdp.lifecycle import gates
from esper_env.mdp.simulation import Simulation
from esper_env.population.cohort import Rows


def checked_rows(
    row: int | Sequence[int], into: int | Sequence[int], begun: NDArray[np.bool_], targets: int
) -> tuple[Rows, Rows]:
    """The rows to copy and those that they are copied to, one for one; `begun` says which of the former exist."""
    origin, rows = _rows("row", row, len(begun)), _rows("into", into, targets)
    if len(set(rows.tolist())) < len(rows):
        raise ValueError(f"into is {rows.tolist()}; allowed: each row once")
    if len(origin) not in (1, len(rows)):
        raise ValueError(f"row names {len(origin)} rows for the {len(rows)} of into; allowed: one, or as many")
    if not begun[origin].all():
        raise ValueError(f"row is {row!r}; allowed: rows that were reset")
    return np.broadcast_to(origin, rows.shape).copy(), rows


def _rows(name: str, rows: int | Sequence[int], count: int) -> Rows:
    given = np.atleast_1d(np.asarray(rows))
    if given.ndim != 1 or not len(given) or given.dtype.kind not in "iu" or not ((given >= 0) & (given < count)).all():
        raise ValueError(f"{name} is {rows!r}; allowed: one or more rows from 0 to {count - 1}")
    return given.astype(np.int64)


def branch(simulation: Simulation, source: Simulation, origin: Rows, rows: Rows) -> None:
    """Overwrite rows with copies of rows of a simulation of the same configuration, which may be this one.

    Raises:
        ValueError: for a source of another configuration.
    """
    if replace(source.config, threads=simulation.config.threads) != simulation.config:
        raise ValueError("source has other settings; allowed: an environment with the same on the same device")
    index, there = (torch.from_numpy(one).to(simulation.config.device) for one in (rows, origin))
    simulation.population.branch(source.population, origin, rows)
    if simulation.control is not None and source.control is not None:
        simulation.control.population.branch(source.control.population, origin, rows)
    for name, values in vars(source.instance).items():
        on_host = isinstance(values, np.ndarray)
        getattr(simulation.instance, name)[rows if on_host else index] = values[origin if on_host else there]
    simulation.base_key[index], simulation.episode[index] = source.base_key[there], source.episode[there]
    simulation.state.copy_rows(source.state, index, there)
    simulation.ended[rows] = source.ended[origin]
    _branch_snapshot(simulation.snapshot, source.snapshot, (index, rows), (there, origin))
    simulation.gates = gates(simulation.state, simulation.config, simulation.instance.budget)


def _branch_snapshot(
    snapshot: Snapshot, source: Snapshot, target: tuple[Tensor, Rows], origin: tuple[Tensor, Rows]
) -> None:
    """The same for the last good states; rows are given for the device and for the host."""
    pairs = zip((*snapshot.body, *snapshot.seeds), (*source.body, *source.seeds), strict=True)
    for mine, theirs in pairs:
        mine.index_copy_(0, target[0], theirs.index_select(0, origin[0]))
    snapshot.census.copy_rows(source.census, target[1], origin[1])
    snapshot.state.copy_rows(source.state, target[0], origin[0])
