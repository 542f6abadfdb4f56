"""The network's view of items: all are read with the same weights, so what is learnt of one holds for the others."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Items:
    """Where an observation holds parts of one kind, among which a head chooses.

    An environment declares them as `observation_items`, for example ("slot", 27, 25): the head, how many numbers
    describe the whole, and how many each item.
    """

    head: str  # the head that chooses one
    shared: int  # numbers that describe the whole; they come first
    count: int
    width: int  # numbers of each item


class ItemEncoder(nn.Module):
    """Describes every item with the same weights, and the whole by what its items say on average and at most.

    Items stand in a row, and each is read together with its neighbours: what a block lacks shows in how gradients
    change from block to block.

    Args:
        items: where they lie.
        hidden: the layer that reads the shared numbers, the item before, the item, and the item after.
        describe: from there to the description.
        encoder: from the shared numbers and the pooled descriptions to the encoding.
    """

    def __init__(self, items: Items, hidden: nn.Linear, describe: nn.Linear, encoder: nn.Sequential) -> None:
        super().__init__()
        self.items, self.hidden, self.describe, self.encoder = items, hidden, describe, encoder

    def forward(self, observations: Tensor) -> Tensor:
        """[batch, time, size] to the encoding, followed by the descriptions: [batch, time, size + count x width]."""
        shared, each = observations.split([self.items.shared, self.items.count * self.items.width], -1)
        of_shared, of_three = self.hidden.weight.split([self.items.shared, 3 * self.items.width], 1)
        # The shared numbers are multiplied once, not once per item.
        common = functional.linear(shared, of_shared, self.hidden.bias)[..., None, :]
        three = with_neighbours(each.unflatten(-1, (self.items.count, self.items.width)))
        described = torch.tanh(self.describe(torch.tanh(common + functional.linear(three, of_three))))
        encoded = self.encoder(torch.cat([shared, described.mean(-2), described.amax(-2)], -1))
        return torch.cat([encoded, described.flatten(-2)], -1)


def with_neighbours(items: Tensor) -> Tensor:
    """The item before, the item and the item after side by side, zeros past the ends: [..., n, w] to [..., n, 3 w]."""
    padded = functional.pad(items, (0, 0, 1, 1))
    return torch.cat([padded[..., :-2, :], items, padded[..., 2:, :]], -1)
