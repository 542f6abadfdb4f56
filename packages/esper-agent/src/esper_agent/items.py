"""The network's view of items: all are read with the same weights, so what is learnt of one holds for the others."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from esper_agent.envs import Items


class ItemEncoder(nn.Module):
    """Describes every item with the same weights, and the whole by what its items say on average and at most.

    Args:
        items: where they lie.
        hidden: the layer that reads an item together with the shared numbers.
        describe: from there to the description.
        encoder: from the shared numbers and the pooled descriptions to the encoding.
    """

    def __init__(self, items: Items, hidden: nn.Linear, describe: nn.Linear, encoder: nn.Sequential) -> None:
        super().__init__()
        self.items, self.hidden, self.describe, self.encoder = items, hidden, describe, encoder

    def forward(self, observations: Tensor) -> Tensor:
        """[batch, time, size] to the encoding, followed by the descriptions: [batch, time, size + count x width]."""
        shared, each = observations.split([self.items.shared, self.items.count * self.items.width], -1)
        of_shared, of_each = self.hidden.weight.split([self.items.shared, self.items.width], 1)
        # The shared numbers are multiplied once, not once per item.
        common = functional.linear(shared, of_shared, self.hidden.bias)[..., None, :]
        own = functional.linear(each.unflatten(-1, (self.items.count, self.items.width)), of_each)
        described = torch.tanh(self.describe(torch.tanh(common + own)))
        encoded = self.encoder(torch.cat([shared, described.mean(-2), described.amax(-2)], -1))
        return torch.cat([encoded, described.flatten(-2)], -1)
