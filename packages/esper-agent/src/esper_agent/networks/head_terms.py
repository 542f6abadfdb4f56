"""What the loss asks of every head, as one operation whose gradient is known in closed form."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class HeadTerms(torch.autograd.Function):
    """The log-probabilities of some entries, and the weighed entropies -sum p log p, as a function of all log p.

    What autograd would record as a dozen operations on the largest tensors of the loss, each with a backward pass of
    its own, is one. The weights pass no gradient on.
    """

    @staticmethod
    def forward(
        ctx: Any, log_p: Tensor, p: Tensor, entries: Tensor, weights: Tensor, rows: int
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies, both [heads, ...].

        Args:
            ctx: of autograd.
            log_p: [cells, width, ...].
            p: its exponential, without gradient.
            entries: of `flat_index`.
            weights: what the entropy of each cell counts for in its head's, [cells, ...].
            rows: how many times the followers appear among the cells.
        """
        ctx.save_for_backward(log_p, p, entries, weights)
        ctx.rows = rows
        return log_p.flatten(0, 1).gather(0, entries), sum_by_head((p * log_p).sum(1) * -weights, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_log_probs: Tensor, of_entropies: Tensor) -> tuple[Tensor, None, None, None, None]:
        """1 at the entries, and -(log p + 1) p of the entropies."""
        log_p, p, entries, weights = ctx.saved_tensors
        by_cell = torch.cat([of_entropies[:1], *[of_entropies[1:]] * ctx.rows]) * -weights
        slope = (log_p + 1).mul_(p).mul_(by_cell[:, None])
        slope.view(-1, *entries.shape[1:]).scatter_add_(0, entries, of_log_probs)
        return slope, None, None, None, None


def sum_by_head(cells: Tensor, rows: int) -> Tensor:
    """Followers summed over their rows, [cells, ...] -> [heads, ...]."""
    return torch.cat([cells[:1], cells[1:].view(rows, -1, *cells.shape[1:]).sum(0)]) if len(cells) > 1 else cells
