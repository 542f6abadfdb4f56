"""The oracle: it knows each instance's lesion, which no observation tells, and has a schedule for each kind."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from esper_agent.baselines.schedules import Planting, Scheduled
from esper_agent.evaluation.episodes import Env, Flags, Ints


def lesion_kinds(slots: int) -> tuple[str, ...]:
    """No lesion, one lesioned block at each slot, two lesioned blocks."""
    return ("none", *(f"slot {slot}" for slot in range(slots)), "two")


def lesions(env: Env) -> Flags:
    """Which blocks of each row's host are lesioned, [n, slots]."""
    lesioned: Flags = env.unwrapped.lesioned  # type: ignore[attr-defined]
    return lesioned


def lesion_kind(lesioned: Flags) -> Ints:
    """The place of each row's lesion in `lesion_kinds`, [n]."""
    slots, count = lesioned.shape[1], lesioned.sum(axis=1)
    return np.where(count == 1, 1 + lesioned.argmax(axis=1), np.where(count == 0, 0, slots + 1))


def lesioned_first(lesioned: Flags) -> NDArray[np.int64]:
    """The slots of each row in order, those of lesioned blocks before the others, [n, slots]."""
    order: NDArray[np.int64] = np.argsort(~lesioned, axis=1, kind="stable")
    return order


class Oracle(Scheduled):
    """Plays the schedule for each row's kind of lesion: the upper reference, no participant could play it.

    Args:
        env: The environment that is played, whose instances are read.
        table: A schedule for each of `lesion_kinds`. Slot 0 in it means the first lesioned block, slot 1 the second.
    """

    def __init__(self, env: Env, table: Mapping[str, Sequence[Planting]]) -> None:
        self.env = env
        kinds = lesion_kinds(env.unwrapped.schema.slots)  # type: ignore[attr-defined]
        if set(table) != set(kinds):
            raise ValueError(f"the oracle's table has the keys {sorted(table)}; allowed: exactly {sorted(kinds)}")
        super().__init__(env, [table[kind] for kind in kinds])

    def which(self, rows: int) -> Ints:
        """By the kind of lesion."""
        return lesion_kind(self._lesions(rows))

    def places(self, rows: int) -> Ints:
        """Lesioned blocks first."""
        return lesioned_first(self._lesions(rows))

    def _lesions(self, rows: int) -> Flags:
        lesioned = lesions(self.env)
        if len(lesioned) != rows:
            raise ValueError(f"the oracle got {rows} observations; its environment has {len(lesioned)} rows")
        return lesioned
