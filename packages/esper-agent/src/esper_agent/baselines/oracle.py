"""The oracle: it knows each instance's lesion, which no observation tells, and has a schedule for each kind."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from esper_agent.baselines.controllers import Env, Flags, Ints
from esper_agent.baselines.scripted import Planting, Scripted


def kinds_of_lesion(slots: int) -> tuple[str, ...]:
    """No lesion, one narrowed block at each slot, two narrowed blocks."""
    return ("none", *(f"slot {slot}" for slot in range(slots)), "two")


def lesions(env: Env) -> Flags:
    """Which blocks of each row's host are narrowed, [n, slots]."""
    lesioned: Flags = env.unwrapped.lesioned  # type: ignore[attr-defined]
    return lesioned


def lesion_kind(narrowed: Flags) -> Ints:
    """The place of each row's lesion in `kinds_of_lesion`, [n]."""
    slots, count = narrowed.shape[1], narrowed.sum(axis=1)
    return np.where(count == 1, 1 + narrowed.argmax(axis=1), np.where(count == 0, 0, slots + 1))


def narrowed_first(narrowed: Flags) -> NDArray[np.int64]:
    """The slots of each row in order, those of narrowed blocks before the others, [n, slots]."""
    order: NDArray[np.int64] = np.argsort(~narrowed, axis=1, kind="stable")
    return order


class Oracle(Scripted):
    """Plays the schedule for each row's kind of lesion: the upper reference, not a competitor.

    Args:
        env: The environment that is played, whose instances are read.
        table: A schedule for each of `kinds_of_lesion`. Slot 0 in it means the first narrowed block, slot 1 the second.
    """

    def __init__(self, env: Env, table: Mapping[str, Sequence[Planting]]) -> None:
        self.env = env
        kinds = kinds_of_lesion(env.unwrapped.schema.slots)  # type: ignore[attr-defined]
        if set(table) != set(kinds):
            raise ValueError(f"the oracle's table has the keys {sorted(table)}; allowed: exactly {sorted(kinds)}")
        super().__init__(env, [table[kind] for kind in kinds])

    def which(self, rows: int) -> Ints:
        """By the kind of lesion."""
        return lesion_kind(self._lesions(rows))

    def places(self, rows: int) -> Ints:
        """Narrowed blocks first."""
        return narrowed_first(self._lesions(rows))

    def _lesions(self, rows: int) -> Flags:
        narrowed = lesions(self.env)
        if len(narrowed) != rows:
            raise ValueError(f"the oracle got {rows} observations; its environment has {len(narrowed)} rows")
        return narrowed
