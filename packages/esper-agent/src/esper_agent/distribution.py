"""The joint distribution of an action: the leading head, then the others given its value.

pi(a) = pi(lead) * product over the other heads of pi(head | lead). A head that the leading value does not use has one
legal value, so its log-probability, entropy and KL are exactly 0.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from esper_agent.actions import ActionSpec

MASKED_LOGIT = -1e4


@dataclass(frozen=True)
class HeadEntropy:
    """Normalised entropies (1 is uniform over the legal values) of each head, and where it had a choice."""

    value: Tensor  # [..., heads]; 0 where there was no choice
    available: Tensor  # bool [..., heads]


class FactoredDistribution:
    """A batch of joint distributions over any leading dimensions.

    Args:
        spec: the heads and the layout of cells.
        logits: unnormalised log-probabilities, [..., cells, width], any float type.
        mask: legal entries, bool, broadcastable to the logits. Padding counts as illegal.
    """

    def __init__(self, spec: ActionSpec, logits: Tensor, mask: Tensor) -> None:
        self.spec = spec
        self.mask = mask
        self.masked_logits = torch.where(mask, logits.float(), MASKED_LOGIT)
        self.log_p = torch.log_softmax(self.masked_logits, dim=-1)

    def sample(self, generator: torch.Generator | None) -> Tensor:
        """Draw actions [..., heads], or take the most likely ones when there is no generator."""
        scores = self.masked_logits
        if generator is not None:
            noise = torch.empty_like(scores).exponential_(generator=generator)
            scores = scores - noise.log_()  # the Gumbel trick: the largest is a draw from the softmax
        best = scores.argmax(-1)
        return self._select(best, best[..., :1])

    def _select(self, cells: Tensor, lead: Tensor) -> Tensor:
        """Keep the followers' row of the leading value, [..., cells] -> [..., heads]."""
        followers = split_rows(self.spec, cells)
        if self.spec.rows == 1:
            return torch.cat([cells[..., :1], followers[..., 0, :]], -1)
        row = lead[..., None].expand(*lead.shape, self.spec.followers)
        return torch.cat([cells[..., :1], followers.gather(-2, row).squeeze(-2)], -1)

    def head_log_prob(self, actions: Tensor) -> Tensor:
        """Log-probability of each head's value given the leading one, [..., heads]."""
        lead, rest = actions[..., :1], actions[..., 1:]
        chosen = torch.cat([lead, rest.repeat(*[1] * (rest.dim() - 1), self.spec.rows)], -1)
        cells = self.log_p.gather(-1, chosen[..., None]).squeeze(-1)
        return self._select(cells, lead)

    def log_prob(self, actions: Tensor) -> Tensor:
        """Log-probability of the joint action, [...]."""
        return self.head_log_prob(actions).sum(-1)

    def entropy(self) -> Tensor:
        """Entropy of the joint distribution in nats, [...]."""
        return joint_mean(self.spec, self.log_p, self._cell_entropy())

    def _cell_entropy(self) -> Tensor:
        return -(self.log_p.exp() * self.log_p).sum(-1)

    def head_entropy(self) -> HeadEntropy:
        """Entropy of each head given that it is used, as a share of the largest possible.

        A follower's entropy averages over the leading values that leave it a choice, by their probability; the
        gradient does not reach that probability, so a coefficient weighs nothing but its own head's entropy.
        """
        legal = self.mask.expand_as(self.log_p).sum(-1)
        choice = legal > 1
        largest = torch.where(choice, legal, 2).log()
        share = torch.where(choice, self._cell_entropy() / largest, 0.0)
        lead, lead_choice = share[..., :1], choice[..., :1]
        if not self.spec.followers:
            return HeadEntropy(lead, lead_choice)
        reachable = self.mask[..., 0, : self.spec.sizes[0]] if self.spec.rows > 1 else lead_choice.new_ones(1)
        usable = split_rows(self.spec, choice) & reachable[..., None]
        # A row whose probability underflows is still available: it must not vanish from the average.
        probability = row_weights(self.spec, self.log_p).detach().clamp(min=torch.finfo(torch.float32).tiny)
        weights = torch.where(usable, probability[..., None], 0.0)
        total = weights.sum(-2, keepdim=True)
        weights = weights / torch.where(total > 0, total, 1.0)
        rest = (weights * split_rows(self.spec, share)).sum(-2)
        return HeadEntropy(torch.cat([lead, rest], -1), torch.cat([lead_choice, usable.any(-2)], -1))


def split_rows(spec: ActionSpec, cells: Tensor) -> Tensor:
    """The followers' cells by row, [..., cells] -> [..., rows, followers]."""
    rows: Tensor = cells[..., 1:].unflatten(-1, (spec.rows, spec.followers))
    return rows


def row_weights(spec: ActionSpec, log_p: Tensor) -> Tensor:
    """The probability that each row of the followers applies, [..., cells, width] -> [..., rows]."""
    lead = log_p[..., 0, : spec.sizes[0]].exp()
    return lead if spec.rows > 1 else torch.ones_like(lead[..., :1])


def joint_mean(spec: ActionSpec, log_p: Tensor, cells: Tensor) -> Tensor:
    """A quantity of each cell, summed over the heads in the mean over the leading value, [..., cells] -> [...]."""
    if not spec.followers:
        return cells[..., 0]
    return cells[..., 0] + (row_weights(spec, log_p) * split_rows(spec, cells).sum(-1)).sum(-1)


def divergence(spec: ActionSpec, log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p || q) of joint distributions with the same masks, [..., cells, width] -> [...]."""
    return joint_mean(spec, log_p, (log_p.exp() * (log_p - log_q)).sum(-1))
