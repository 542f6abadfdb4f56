"""The population: N hosts with their seeds, and the row operations that change them between steps."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper_env.blueprints.base import Blueprint, Fused, SeedTemplate
from esper_env.blueprints.blends import Blend
from esper_env.fused.layers import Metric, accuracy
from esper_env.fused.layout import Layout, weight_draws
from esper_env.fused.optimizers import Optimizer
from esper_env.fused.randomness import Purpose
from esper_env.fused.vmapped import undrawn
from esper_env.hosts.base import Host
from esper_env.hosts.mlp import MLPHost
from esper_env.population.cohort import Cohort, Rows
from esper_env.population.memory import retain_freed_memory
from esper_env.population.stacks import Kind

EMPTY = -1
# Activations of a tile of rows on a CPU: small enough for its cache, large enough to share the cost of each call.
TILE_BYTES = 16 << 20
# On a GPU, the part of its free memory that they may take: a pass holds several times what its host's layers give.
TILE_SHARE = 1 / 16


@dataclass(frozen=True)
class Engine:
    """What all rows share: the host, the blueprints on offer, and how parameters are updated."""

    host: Host
    blueprints: tuple[Blueprint, ...]
    optimizer: Optimizer
    max_grad_norm: float | None = None
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    metric: Metric = accuracy

    def __post_init__(self) -> None:
        families = [blueprint.family for blueprint in self.blueprints]
        if set(families) - {self.host.family}:
            raise ValueError(f"blueprints of the families {families} do not fit a host of family {self.host.family!r}")
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise ValueError(f"max_grad_norm is {self.max_grad_norm}; allowed: None or a positive number")
        retain_freed_memory()

    @property
    def tile_bytes(self) -> int:
        """How many bytes of activations are computed at once: what suits the cache, or the memory of a GPU."""
        return self._gpu_tile if self.device.startswith("cuda") else TILE_BYTES

    @cached_property
    def _gpu_tile(self) -> int:
        free, _ = torch.cuda.mem_get_info(self.device)
        return int(free * TILE_SHARE)

    @cached_property
    def body_layout(self) -> Layout:
        """Layout of a host's row."""
        return Layout(undrawn(self.host.template))

    @cached_property
    def seed_layouts(self) -> list[list[Layout]]:
        """Layouts of the seeds' rows, by slot and blueprint."""
        slots = self.host.slots
        return [[Layout(undrawn(partial(SeedTemplate, b, slot))) for b in self.blueprints] for slot in slots]

    @cached_property
    def seed_bodies(self) -> list[list[Fused]]:
        """The fused insides of the seeds, by slot and blueprint."""
        return [[b.body(slot) for b in self.blueprints] for slot in self.host.slots]

    @cached_property
    def dense_kinds(self) -> list[list[Kind]]:
        """By slot and blueprint, if the host is an MLP and every seed two products; else nothing."""
        if not isinstance(self.host, MLPHost) or any(b.products is None for b in self.blueprints):
            return []
        pairs = [zip(layouts, self.blueprints, strict=True) for layouts in self.seed_layouts]
        return [[Kind(layout, b.products, b.gain) for layout, b in slot if b.products] for slot in pairs]

    def order(self, key: "SeedKey") -> tuple[int, int]:
        """What the seeds of one slot are sorted by in a pass: those that share products come together."""
        slot, kind = key
        return (self.dense_kinds[slot][kind].band if self.dense_kinds else 0), kind


@dataclass(frozen=True)
class Census:
    """Who sits where, [n, slots] each; kept on the host, since it changes only between steps."""

    blueprint: NDArray[np.int64]  # index of the blueprint, or EMPTY
    live: NDArray[np.bool_]  # acts on the host, as opposed to incubating behind it
    committed: NDArray[np.bool_]  # fossilised
    blend: NDArray[np.int64]

    @classmethod
    def empty(cls, rows: int, slots: int) -> "Census":
        """Nobody anywhere."""
        shape = (rows, slots)
        no = np.zeros(shape, dtype=np.bool_)
        return cls(np.full(shape, EMPTY), no, no.copy(), np.zeros(shape, dtype=np.int64))

    def copy_rows(self, source: "Census", rows: Rows, origin: Rows | None = None) -> None:
        """Overwrite rows with those of another census: the same rows there unless `origin` says which."""
        for name, table in vars(self).items():
            table[rows] = getattr(source, name)[rows if origin is None else origin]

    def clear(self, rows: Rows, slots: Rows) -> None:
        """Nobody at these places any more."""
        self.blueprint[rows, slots] = EMPTY
        self.live[rows, slots] = False
        self.committed[rows, slots] = False
        self.blend[rows, slots] = Blend.ADD


SeedKey = tuple[int, int]  # slot, blueprint


@dataclass
class Population:
    """N hosts and their seeds; the seeds of one blueprint in one slot form a cohort, whether they live or incubate."""

    engine: Engine
    body: Cohort
    seeds: dict[SeedKey, Cohort]
    census: Census
    alpha: Tensor  # [n, slots], how much of a live seed acts
    lr: Tensor  # [n]
    lesions: list[Tensor]  # per slot [n, units], 1 where the block's unit is alive
    lesioned: NDArray[np.bool_]  # [n, slots]

    @classmethod
    def unborn(cls, engine: Engine, rows: int) -> "Population":
        """A population whose rows are zero until `rebirth`."""
        slots = engine.host.slots

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, device=engine.device, dtype=engine.dtype)

        values = zeros(rows, engine.body_layout.size)
        body = Cohort(engine.body_layout, np.arange(rows), values, engine.optimizer.initial(values))
        lesions = [zeros(rows, slot.outputs[0]) + 1.0 for slot in slots]
        none = np.zeros((rows, len(slots)), dtype=np.bool_)
        census = Census.empty(rows, len(slots))
        return cls(engine, body, {}, census, zeros(rows, len(slots)), zeros(rows), lesions, none)

    def __len__(self) -> int:
        return len(self.body)

    def rebirth(self, rows: Rows, keys: Tensor, lr: Tensor, live_units: NDArray[np.int64]) -> None:
        """Give rows fresh hosts without seeds.

        Args:
            rows: Which rows.
            keys: Their episode keys, on the device.
            lr: Their learning rates, on the device.
            live_units: How many units of each block stay alive, [len(rows), slots].
        """
        index = self._index(rows)
        values = self.engine.body_layout.initial(keys, Purpose.HOST_WEIGHTS, 0, 0, self.engine.dtype)
        fresh = (values, *self.engine.optimizer.initial(values))
        for target, source in zip(self.body.tensors(), fresh, strict=True):
            target.index_copy_(0, index, source)
        self.lr.index_copy_(0, index, lr.to(self.lr.dtype))
        self._lesion(rows, live_units)
        self.uproot(rows)

    def _lesion(self, rows: Rows, live_units: NDArray[np.int64]) -> None:
        index = self._index(rows)
        for slot, mask in enumerate(self.lesions):
            alive = np.arange(mask.shape[1]) < live_units[:, slot, None]
            mask.index_copy_(0, index, torch.from_numpy(alive).to(mask))
            self.lesioned[rows, slot] = ~alive.all(axis=1)

    def germinate(self, rows: Rows, slots: Rows, kinds: Rows, blends: Rows, keys: Tensor, steps: Tensor) -> None:
        """Plant silent seeds, one per (row, slot); `keys` and `steps` of the rows make their weights."""
        self._require("germinate", "an empty slot", rows, slots, self.census.blueprint == EMPTY)
        self.census.blueprint[rows, slots] = kinds
        self.census.blend[rows, slots] = blends
        if not len(rows):
            return
        # Drawn for all at once, since the cost of a draw hardly depends on its size.
        largest = max(self.engine.seed_layouts[slot][kind].size for slot, kind in _pairs(slots, kinds))
        draws = weight_draws(keys, Purpose.SEED_WEIGHTS, steps, self._index(slots), largest)
        for slot, kind in _pairs(slots, kinds):
            chosen = np.flatnonzero((slots == slot) & (kinds == kind))
            chosen = chosen[np.argsort(rows[chosen])]
            layout = self.engine.seed_layouts[slot][kind]
            values = layout.from_draws(draws[self._index(chosen)], self.engine.dtype)
            newborn = Cohort(layout, rows[chosen], values, self.engine.optimizer.initial(values))
            self._join((slot, kind), newborn)

    def advance(self, rows: Rows, slots: Rows) -> None:
        """Let incubating seeds act on their hosts."""
        incubating = (self.census.blueprint != EMPTY) & ~self.census.live
        self._require("advance", "an incubating seed", rows, slots, incubating)
        self.census.live[rows, slots] = True

    def commit(self, rows: Rows, slots: Rows) -> None:
        """Fossilise live seeds: they stay for good."""
        self._require("commit", "a live seed", rows, slots, self.census.live)
        self.census.committed[rows, slots] = True

    def remove(self, rows: Rows, slots: Rows) -> None:
        """Take seeds out; nothing of them stays."""
        self._require("remove", "a seed", rows, slots, self.census.blueprint != EMPTY)
        kinds = self.census.blueprint[rows, slots]
        for slot, kind in _pairs(slots, kinds):
            self._leave((slot, kind), rows[(slots == slot) & (kinds == kind)])
        self.census.clear(rows, slots)
        self.alpha[self._index(rows), self._index(slots)] = 0.0

    def uproot(self, rows: Rows) -> None:
        """Remove every seed of some rows."""
        place, slots = np.nonzero(self.census.blueprint[rows] != EMPTY)
        self.remove(rows[place], slots)

    def replant(self, rows: Rows, census: Census, stored: tuple[Tensor, ...]) -> None:
        """Replace the seeds of some rows by those of a census, whose rows lie in `stored`, [n, slots, size] each."""
        self.uproot(rows)
        self.census.copy_rows(census, rows)
        place, slots = np.nonzero(census.blueprint[rows] != EMPTY)
        kinds = census.blueprint[rows[place], slots]
        for slot, kind in _pairs(slots, kinds):
            members = np.sort(rows[place[(slots == slot) & (kinds == kind)]])
            layout, index = self.engine.seed_layouts[slot][kind], self._index(members)
            values, *state = (t[index, slot, : layout.size] for t in stored)
            self._join((slot, kind), Cohort(layout, members, values, tuple(state)))

    def branch(self, source: "Population", origin: Rows, rows: Rows) -> None:
        """Overwrite rows with copies of rows of a population of the same engine, which may be this one."""
        seeds = {key: cohort.branched(origin, rows) for key, cohort in source.seeds.items()}
        there, tables = self._index(origin), [table[origin] for table in source._row_tables()]
        tensors = [tensor.index_select(0, there) for tensor in source._row_tensors()]
        self.uproot(rows)  # only now: the source may be this population
        for table, copied in zip(self._row_tables(), tables, strict=True):
            table[rows] = copied
        for tensor, chosen in zip(self._row_tensors(), tensors, strict=True):
            tensor.index_copy_(0, self._index(rows), chosen)
        for key, cohort in seeds.items():
            if len(cohort):
                self._join(key, cohort)

    def _row_tables(self) -> tuple[NDArray[Any], ...]:
        """What is kept on the host and has a row for each network."""
        return (*vars(self.census).values(), self.lesioned)

    def _row_tensors(self) -> tuple[Tensor, ...]:
        """The same on the device, but for the seeds."""
        return (*self.body.tensors(), self.alpha, self.lr, *self.lesions)

    def _require(self, operation: str, needed: str, rows: Rows, slots: Rows, fit: NDArray[np.bool_]) -> None:
        unfit = np.flatnonzero(~fit[rows, slots])
        if len(unfit):
            row, slot = int(rows[unfit[0]]), int(slots[unfit[0]])
            raise ValueError(f"{operation} at row {row}, slot {slot}; allowed: where there is {needed}")

    def _join(self, key: SeedKey, cohort: Cohort) -> None:
        self.seeds[key] = self.seeds[key].joined(cohort) if key in self.seeds else cohort

    def _leave(self, key: SeedKey, rows: Rows) -> None:
        self.seeds[key] = self.seeds[key].without(rows)
        if not len(self.seeds[key]):
            del self.seeds[key]

    def seed_sizes(self) -> NDArray[np.int64]:
        """Parameters of each seed, [n, slots]; the gate counts only where the blend uses it."""
        sizes = np.zeros(self.census.blueprint.shape, dtype=np.int64)
        for slot, layouts in enumerate(self.engine.seed_layouts):
            gate = self.engine.host.slots[slot].inputs[0] + 1
            for kind, layout in enumerate(layouts):
                here = self.census.blueprint[:, slot] == kind
                sizes[here, slot] = layout.size - gate
            gated = (self.census.blueprint[:, slot] != EMPTY) & (self.census.blend[:, slot] == Blend.GATE)
            sizes[gated, slot] += gate
        return sizes

    def window(self, start: int, stop: int) -> "Population":
        """Rows start to stop as a population of their own that shares storage with this one."""
        seeds = {key: cohort.window(start, stop) for key, cohort in self.seeds.items()}
        return self._part(self.body.window(start, stop), seeds, slice(start, stop), slice(start, stop))

    def gathered(self, rows: Rows) -> "Population":
        """A copy of some rows, given in ascending order, as a population of their own."""
        if len(rows) == len(self):
            return self
        seeds = {key: cohort.take(np.intersect1d(cohort.rows, rows)) for key, cohort in self.seeds.items()}
        seeds = {key: replace(cohort, rows=np.searchsorted(rows, cohort.rows)) for key, cohort in seeds.items()}
        body = replace(self.body.take(rows), rows=np.arange(len(rows)))
        return self._part(body, seeds, rows, self._index(rows))

    def concealing(self, places: NDArray[np.bool_]) -> "Population":
        """The same without the seeds at some places, [n, slots], as a population of its own; here they stay."""
        if not places.any():
            return self
        census = Census(*(table.copy() for table in vars(self.census).values()))
        census.clear(*np.nonzero(places))
        shown = {key: cohort.take(cohort.rows[~places[cohort.rows, key[0]]]) for key, cohort in self.seeds.items()}
        return replace(self, seeds={key: cohort for key, cohort in shown.items() if len(cohort)}, census=census)

    def _part(
        self, body: Cohort, seeds: dict[SeedKey, Cohort], rows: slice | Rows, index: slice | Tensor
    ) -> "Population":
        """The population of some rows, given for the host and for the device."""
        return Population(
            self.engine,
            body,
            {key: cohort for key, cohort in seeds.items() if len(cohort)},
            Census(*(table[rows] for table in vars(self.census).values())),
            self.alpha[index],
            self.lr[index],
            [mask[index] for mask in self.lesions],
            self.lesioned[rows],
        )

    def tiles(self, samples: int) -> Iterator[tuple[int, int]]:
        """Bounds of tiles of rows whose activations on so many samples are computed at once."""
        row_bytes = samples * self.engine.host.activation_size * self.body.values.element_size()
        rows = max(1, self.engine.tile_bytes // row_bytes)
        return ((start, min(start + rows, len(self))) for start in range(0, len(self), rows))

    def _index(self, rows: Rows) -> Tensor:
        return torch.from_numpy(np.asarray(rows, dtype=np.int64)).to(self.engine.device)


def _pairs(slots: Rows, kinds: Rows) -> list[tuple[int, int]]:
    return sorted(set(zip(slots.tolist(), kinds.tolist(), strict=True)))


Report = TypeVar("Report")


def joined(tiles: list[Report]) -> Report:
    """Dataclasses of tensors with leading rows, one per tile, as one."""
    if len(tiles) == 1:
        return tiles[0]
    fields = zip(*(vars(tile).values() for tile in tiles), strict=True)
    return type(tiles[0])(*map(torch.cat, fields))
