"""Seeded search: random draws, then neighbours of the best; every candidate meets the same instances."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from esper_env.config import TEMPI, EsperConfig
from numpy.typing import NDArray

from esper_agent.baselines.scripted import Planting

Candidate = TypeVar("Candidate")
Schedule = tuple[Planting, ...]
Scores = NDArray[np.float64]
LONGEST_EXTRA_INCUBATION = 3
ATTEMPTS = 1000  # to find a schedule within a limit that may allow none but the empty one


class Space(Protocol[Candidate]):
    """What is searched."""

    def draw(self, rng: np.random.Generator) -> Candidate:
        """Any candidate."""

    def neighbour(self, candidate: Candidate, rng: np.random.Generator) -> Candidate:
        """One that differs in one decision."""


@dataclass(frozen=True)
class Constants:
    """The constants of a rule, each from a list."""

    choices: dict[str, tuple[float, ...]]

    def draw(self, rng: np.random.Generator) -> dict[str, Any]:
        """Each constant by itself."""
        return {name: values[rng.integers(len(values))] for name, values in self.choices.items()}

    def neighbour(self, candidate: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        """Another value of one constant."""
        names = [name for name, values in self.choices.items() if len(values) > 1]
        name = names[rng.integers(len(names))]
        others = [value for value in self.choices[name] if value != candidate[name]]
        return candidate | {name: others[rng.integers(len(others))]}


@dataclass(frozen=True)
class Schedules:
    """Schedules that plant in some of the first `places` slots, within a predicate."""

    places: int
    sizes: dict[str, int]
    config: EsperConfig
    allowed: Callable[[Schedule], bool] = lambda _: True

    def draw(self, rng: np.random.Generator) -> Schedule:
        """Any number of plantings in any slots."""
        return self._first_allowed(lambda: self._any(rng), ())

    def neighbour(self, candidate: Schedule, rng: np.random.Generator) -> Schedule:
        """One planting more, one less, or one that differs in one field; the candidate itself where none is found."""
        return self._first_allowed(lambda: self._changed(candidate, rng), candidate)

    def _first_allowed(self, propose: Callable[[], Schedule], otherwise: Schedule) -> Schedule:
        proposed = (propose() for _ in range(ATTEMPTS))
        return next((schedule for schedule in proposed if self.allowed(schedule)), otherwise)

    def _any(self, rng: np.random.Generator) -> Schedule:
        slots = rng.permutation(self.places)[: rng.integers(self.places + 1)]
        return tuple(self._planting(int(slot), rng) for slot in sorted(slots))

    def _changed(self, candidate: Schedule, rng: np.random.Generator) -> Schedule:
        slot = int(rng.integers(self.places))
        rest = tuple(planting for planting in candidate if planting.slot != slot)
        here = [planting for planting in candidate if planting.slot == slot]
        if not here:
            changed = self._planting(slot, rng)
        elif rng.random() < 0.2:
            return rest
        else:
            changed = self._other(here[0], rng)
        return tuple(sorted((*rest, changed), key=lambda planting: planting.slot))

    def _other(self, planting: Planting, rng: np.random.Generator) -> Planting:
        """The planting with one field drawn until it differs."""
        names = [field.name for field in fields(Planting) if field.name != "slot"]
        name, other = names[rng.integers(len(names))], planting
        while other == planting:
            other = replace(planting, **{name: getattr(self._planting(planting.slot, rng), name)})
        return other

    def _planting(self, slot: int, rng: np.random.Generator) -> Planting:
        config = self.config
        latest = config.horizon - 1 - config.training_steps - TEMPI[0] - config.holding_steps
        return Planting(
            step=int(rng.integers(config.warmup_steps, latest + 1)),
            slot=slot,
            **{head: int(rng.integers(self.sizes[head])) for head in ("blueprint", "blend", "tempo")},
            incubation=config.training_steps + int(rng.integers(LONGEST_EXTRA_INCUBATION + 1)),
        )


@dataclass(frozen=True)
class Found(Generic[Candidate]):
    """The best candidate, and its mean score over the instances of its group."""

    best: Candidate
    score: float


def search(
    spaces: Sequence[Space[Candidate]],
    play: Callable[[Sequence[Candidate]], Scores],
    group: NDArray[np.int64],
    trials: int,
    seed: int,
    first: Sequence[Sequence[Candidate]] = (),
) -> list[Found[Candidate]]:
    """Search one candidate for each group of rows, all groups at once.

    Args:
        spaces: What to search, one for each group.
        play: Scores of all rows when each plays the candidate of its group.
        group: The group of each row, [n].
        trials: How many candidates each group tries; half of the rest at random.
        seed: Of the draws.
        first: Candidates to begin with, one for each group at a time.
    """
    rng = np.random.default_rng(seed)
    found: list[Found[Candidate]] = []
    for trial in range(trials):
        if trial < len(first):
            candidates = list(first[trial])
        elif trial < max((len(first) + trials) // 2, 1):
            candidates = [space.draw(rng) for space in spaces]
        else:
            candidates = [space.neighbour(one.best, rng) for space, one in zip(spaces, found, strict=True)]
        scores = play(candidates)
        tried = [Found(one, _mean(scores[group == number])) for number, one in enumerate(candidates)]
        found = [max(pair, key=lambda one: one.score) for pair in zip(found or tried, tried, strict=True)]
    return found


def _mean(scores: Scores) -> float:
    return float(scores.mean()) if len(scores) else -np.inf
