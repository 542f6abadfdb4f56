"""Quarantine: what to do with transitions in which a reward or an observation is not a number.

Such a transition is no decision: it enters no moment, no advantage and no loss, and neither does the step that had to
decide on such an observation. Both are played on with 0 in place of what is missing, so that the memory stays finite.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from esper_agent.algorithm.environments import Transition
from esper_agent.diagnostics.alarms import Severity, say


class NonFiniteError(RuntimeError):
    """The environments gave more non-finite numbers than the settings allow."""


def filled(values: Tensor) -> Tensor:
    """The same with 0 in place of NaN and infinities."""
    return torch.where(values.isfinite(), values, 0.0)


def whole(observations: Tensor) -> Tensor:
    """Which observations are finite in every number, [N, size] -> bool [N]."""
    return observations.isfinite().all(1)


def disinfect(transition: Transition) -> tuple[Transition, Tensor, Tensor]:
    """A transition that the learner can take, where its reward or end is missing, and where it teaches nothing.

    Observations stay as they are: the next step looks at them. The first one of a new episode says nothing against the
    step that ended the one before.
    """
    missing, final = ~transition.rewards.isfinite(), transition.final_observations
    if final is not None:
        missing = missing | (transition.truncated & ~whole(final))
        final = filled(final)
    unseen = ~(whole(transition.observations) | transition.terminated | transition.truncated)
    clean = replace(transition, rewards=filled(transition.rewards), final_observations=final)
    return clean, missing, missing | unseen


def note_quarantine(before: int, found: Sequence[tuple[int, bool]], limit: int, *, speak: bool) -> int:
    """How many transitions were put into quarantine by now; the first ones are told on the console.

    Args:
        before: how many there were before this rollout.
        found: for each rank, how many there are in this rollout, and whether it holds others.
        limit: how many there may be.
        speak: whether this rank talks to the console.

    Raises:
        NonFiniteError: when there are more, or there is nothing left to learn from.
    """
    new = sum(count for count, _ in found)
    message = f"non-finite rewards or observations in {before + new} transitions"
    if new and (before + new > limit or not all(usable for _, usable in found)):
        raise NonFiniteError(f"{message}; allowed: {limit} (max_nonfinite), with others to learn from in every rollout")
    if new and not before and speak:
        say(Severity.WARNING, f"{message}: they are left out of learning; beyond {limit} the training stops")
    return before + new
