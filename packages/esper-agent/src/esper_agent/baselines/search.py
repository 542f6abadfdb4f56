"""Seeded search by Optuna: its TPE sampler proposes candidates after the first ones that are given."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from esper_agent.evaluation.episodes import Floats, Ints

try:
    import optuna
except ImportError as error:
    raise ImportError("a search for constants needs Optuna: pip install 'esper-agent[tune]'") from error

Candidate = TypeVar("Candidate")
Choices = Mapping[str, Sequence[Any]]
ATTEMPTS = 20  # to be proposed something new


@dataclass(frozen=True)
class Found(Generic[Candidate]):
    """The best candidate, and its mean score over the instances of its group."""

    best: Candidate
    score: float


class Search(Generic[Candidate]):
    """The search for one candidate, which is asked for the next one and then told how it did.

    Args:
        choices: the values to try for each parameter.
        make: makes a candidate of a value for each parameter.
        seed: of the sampler.
        first: parameters to begin with; what they leave out is drawn.
    """

    def __init__(
        self,
        choices: Choices,
        make: Callable[[dict[str, Any]], Candidate],
        seed: int,
        first: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # it would print every trial
        self.choices, self.make, self.found = choices, make, list[Found[Candidate]]()
        self.study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
        for given in first:
            self.study.enqueue_trial({name: choices[name].index(value) for name, value in given.items()})

    def ask(self) -> Candidate:
        """The next candidate, as long as there is one that was not tried yet."""
        self._propose()
        for _ in range(ATTEMPTS):
            known = [one.score for one in self.found if one.best == self.candidate]
            if not known:
                break
            self.study.tell(self.trial, known[0])
            self._propose()
        return self.candidate

    def _propose(self) -> None:
        self.trial = self.study.ask()
        # Places in the list of values, since Optuna stores numbers and words but no mappings.
        places = {name: self.trial.suggest_categorical(name, range(len(own))) for name, own in self.choices.items()}
        self.candidate = self.make({name: self.choices[name][place] for name, place in places.items()})

    def tell(self, score: float) -> None:
        """How it did."""
        self.study.tell(self.trial, score)
        self.found.append(Found(self.candidate, score))

    def run(self, play: Callable[[Candidate], Floats], trials: int) -> Found[Candidate]:
        """Try so many candidates, each by its scores in every instance."""
        for _ in range(trials):
            self.tell(float(play(self.ask()).mean()))
        return self.best

    @property
    def best(self) -> Found[Candidate]:
        """The first of those that did best."""
        return max(self.found, key=lambda one: one.score)


def search_groups(
    searches: Sequence[Search[Candidate]], play: Callable[[Sequence[Candidate]], Floats], group: Ints, trials: int
) -> list[Found[Candidate]]:
    """Search one candidate for each group of rows, all groups at once.

    Args:
        searches: one for each group.
        play: scores of all rows when each plays the candidate of its group.
        group: the group of each row, [n].
        trials: how many candidates each group tries.
    """
    for _ in range(trials):
        scores = play([search.ask() for search in searches])
        for number, search in enumerate(searches):
            own = scores[group == number]
            search.tell(float(own.mean()) if len(own) else 0.0)  # a group without rows keeps what it began with
    return [search.best for search in searches]
