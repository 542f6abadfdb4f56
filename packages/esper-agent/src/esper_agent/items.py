"""Items: parts of an observation that are of one kind, and among which a head chooses.

An environment declares them as `observation_items`, for example ("slot", 27, 25): the head that chooses, how many
numbers describe the whole, and how many each item. All items are read with the same weights, so what is learnt of one
holds for the others, and the head scores each item by its own description.
"""

from dataclasses import dataclass
from typing import Any

import torch
from gymnasium.vector import VectorEnv
from torch import Tensor, nn
from torch.nn import functional

from esper_agent.actions import ActionSpec
from esper_agent.envs import declared


@dataclass(frozen=True)
class Items:
    """Where the items lie in an observation."""

    head: str  # the head that chooses one
    shared: int  # numbers that describe the whole; they come first
    count: int
    width: int  # numbers of each item


def declared_items(env: VectorEnv[Any, Any, Any], actions: ActionSpec) -> Items | None:
    """The items that an environment declares; None if there are none, or if a wrapper changed the spaces past them."""
    head, shared, width = declared(env, "observation_items") or (None, 0, 0)
    if head not in actions.heads[1:]:
        return None
    count = actions.sizes[actions.heads.index(head)]
    fits = env.single_observation_space.shape == (shared + count * width,)
    return Items(head, shared, count, width) if fits else None


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
