"""The joint distribution of an action: the op head, then the others given its value.

pi(a) = pi(op) * product over the other heads of pi(head | op). A head that the op does not use has one
legal value, so its log-probability, entropy and KL are exactly 0.

Cells come first and the batch last, [cells, width, ...]: all heads then go through one log-softmax that runs along the
batch, many times faster on a CPU than one along the few values of a head.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from esper_agent.distributed import ALONE, Ranks
from esper_agent.networks.action_spec import ActionSpec

MASKED_LOGIT = -1e4


@dataclass(frozen=True)
class Legality:
    """What masks mean for the distribution; computed once, used in every epoch."""

    penalty: Tensor  # [cells, width, ...]: added to the logits, 0 where legal
    inverse_capacity: Tensor  # [cells, ...]: 1 / log(number of legal values); 0 where there is no choice
    available: Tensor  # bool [heads, ...]: where a head has a choice under some op

    @classmethod
    def of(cls, spec: ActionSpec, mask: Tensor) -> "Legality":
        """From bool masks [cells, width, ...] in which padding is illegal.

        A head has no choice, too, in the row of an op that is itself illegal.
        """
        legal = mask.sum(1)
        if spec.rows > 1:
            arguments = split_rows(spec, legal) * mask[0, : spec.sizes[0], None]
            legal = torch.cat([legal[:1], arguments.flatten(0, 1)])
        capacity = legal.clamp(min=1).float().log()
        choice = capacity > 0
        available = torch.cat([choice[:1], split_rows(spec, choice).any(0)])
        return cls(torch.where(mask, 0.0, MASKED_LOGIT), torch.where(choice, 1 / capacity, 0.0), available)

    def select(self, rows: Tensor) -> "Legality":
        """Some entries of the first batch dimension."""
        return Legality(
            self.penalty.index_select(2, rows),
            self.inverse_capacity.index_select(1, rows),
            self.available.index_select(1, rows),
        )


class FactoredDistribution:
    """A batch of joint distributions.

    Args:
        spec: the heads and the layout of cells.
        logits: unnormalised log-probabilities, [cells, width, ...], any float type.
        penalty: what illegality and padding subtract, broadcastable to the logits.
    """

    def __init__(self, spec: ActionSpec, logits: Tensor, penalty: Tensor) -> None:
        self.spec = spec
        self.scores = logits.float() + penalty

    @cached_property
    def log_p(self) -> Tensor:
        """Log-probabilities of all cells."""
        return torch.log_softmax(self.scores, dim=1)

    @cached_property
    def p(self) -> Tensor:
        """Probabilities of all cells; exactly 0 where illegal."""
        return torch.softmax(self.scores, dim=1)

    def sample(self, generator: torch.Generator | None, ranks: Ranks = ALONE) -> Tensor:
        """Draw actions [heads, ...], or take the most likely ones when there is no generator."""
        values = self.scores.argmax(1) if generator is None else self._draw(generator, ranks)
        if self.spec.rows == 1:
            return values
        rows = split_rows(self.spec, values)
        return torch.cat([values[:1], rows.gather(0, values[:1, None].expand(1, *rows.shape[1:]))[0]])

    def _draw(self, generator: torch.Generator, ranks: Ranks) -> Tensor:
        """A value for every cell, by inversion: where the cumulative probability passes a uniform number."""
        cumulative = self.p.cumsum(1)
        total = cumulative[:, -1:]
        uniform = ranks.uniform(total.shape, generator, total.device)
        # Below the total by more than rounding can undo, so that the last legal value is never passed.
        return (cumulative <= uniform * total * (1 - 1e-6)).sum(1)

    def head_log_prob(self, actions: Tensor) -> Tensor:
        """Log-probability of each head's value given the op, [heads, ...] -> [heads, ...]."""
        return self.entry_log_prob(flat_index(self.spec, actions))

    def entry_log_prob(self, entries: Tensor) -> Tensor:
        """The same for actions that `flat_index` has already found among the entries."""
        return self.log_p.flatten(0, 1).gather(0, entries)

    def log_prob(self, actions: Tensor) -> Tensor:
        """Log-probability of the joint action, [heads, ...] -> [...]."""
        return self.head_log_prob(actions).sum(0)

    def entropy(self) -> Tensor:
        """Entropy of the joint distribution in nats, [...]."""
        return cross_entropy(joint(self.spec, self.p), self.log_p)

    def head_entropy(self, inverse_capacity: Tensor) -> Tensor:
        """Entropy of each head given that it is used, as a share of the largest possible, [heads, ...].

        An argument head's entropy averages over the ops that leave it a choice, by their probability; the
        gradient does not reach that probability, so a coefficient weighs nothing but its own head's entropy.
        It is 0 where there is no choice.

        Args:
            inverse_capacity: of `Legality`.
        """
        weights = entropy_weights(self.spec, self.p.detach(), inverse_capacity)
        return sum_by_head(self.spec, (self.p * self.log_p).sum(1) * -weights)


def entropy_weights(spec: ActionSpec, p: Tensor, inverse_capacity: Tensor) -> Tensor:
    """What the entropy of each cell, in nats, counts for in the share of its head, [cells, ...]."""
    if not spec.arguments:
        return inverse_capacity
    rows = split_rows(spec, inverse_capacity)
    # A row whose probability underflows is still available: it must not vanish from the average.
    tiny = torch.finfo(torch.float32).tiny
    weights = (row_weights(spec, p)[:, None] + tiny) * (rows > 0)
    weights = weights / weights.sum(0).clamp_(min=tiny) * rows
    return torch.cat([inverse_capacity[:1].expand_as(weights[0, :1]), weights.flatten(0, 1)])


def split_rows(spec: ActionSpec, cells: Tensor) -> Tensor:
    """The arguments' cells by row, [cells, ...] -> [rows, arguments, ...]."""
    return cells[1:].view(spec.rows, spec.arguments, *cells.shape[1:])


def sum_by_head(spec: ActionSpec, cells: Tensor) -> Tensor:
    """Argument heads summed over their rows, [cells, ...] -> [heads, ...]."""
    return torch.cat([cells[:1], split_rows(spec, cells).sum(0)]) if spec.arguments else cells


def row_weights(spec: ActionSpec, p: Tensor) -> Tensor:
    """The probability that each row of the argument heads applies, [cells, width, ...] -> [rows, ...]."""
    op = p[0, : spec.sizes[0]]
    return op if spec.rows > 1 else torch.ones_like(op[:1])


def joint(spec: ActionSpec, p: Tensor) -> Tensor:
    """Probabilities times that of their row: how often each entry is part of an action, [cells, width, ...]."""
    if not spec.arguments:
        return p
    rows = row_weights(spec, p)[:, None, None] * split_rows(spec, p)
    return torch.cat([p[:1], rows.flatten(0, 1)])


def cross_entropy(joint_p: Tensor, log_q: Tensor) -> Tensor:
    """-E_p[log q] of joint distributions with the same masks, [cells, width, ...] -> [...]."""
    return -(joint_p * log_q).flatten(0, 1).sum(0)


def flat_index(spec: ActionSpec, actions: Tensor) -> Tensor:
    """Where each head's value stands among all entries of all cells, [heads, ...] -> [heads, ...]."""
    if not spec.arguments:
        return actions
    arguments = torch.arange(1, 1 + spec.arguments, device=actions.device)
    cell = arguments.view(-1, *[1] * (actions.dim() - 1))
    if spec.rows > 1:
        cell = cell + actions[:1] * spec.arguments
    return torch.cat([actions[:1], actions[1:] + cell * spec.width])
