"""The network's view of entities: all are read with the same weights, so what is learnt of one holds for the others."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Entities:
    """Where an observation holds parts of one kind, among which a head chooses.

    An environment declares them as `observation_entities`, for example ("slot", 27, 25): the head, how many numbers
    describe the whole, and how many each entity.
    """

    head: str  # the head that chooses one
    shared: int  # numbers that describe the whole; they come first
    count: int
    width: int  # numbers of each entity


class EntityEncoder(nn.Module):
    """Embeds every entity with the same weights, and the whole by what its entities say on average and at most.

    Entities stand in a row, and each may be read together with its neighbours: what a block lacks shows in how
    gradients change from block to block.

    Args:
        entities: where they lie.
        hidden: the layer that reads the shared numbers and the entity; or, by its width, the shared numbers, the entity
            before, the entity, and the entity after.
        embed: from there to the embedding.
        encoder: from the shared numbers and the pooled embeddings to the encoding.
    """

    def __init__(self, entities: Entities, hidden: nn.Linear, embed: nn.Linear, encoder: nn.Sequential) -> None:
        super().__init__()
        self.entities, self.hidden, self.embed, self.encoder = entities, hidden, embed, encoder

    def forward(self, observations: Tensor) -> Tensor:
        """[batch, time, size] to the encoding, followed by the embeddings: [batch, time, size + count x width]."""
        shared, each = observations.split([self.entities.shared, self.entities.count * self.entities.width], -1)
        of_shared, of_each = self.hidden.weight.tensor_split([self.entities.shared], 1)
        # The shared numbers are multiplied once, not once per entity.
        common = functional.linear(shared, of_shared, self.hidden.bias)[..., None, :]
        described = each.unflatten(-1, (self.entities.count, self.entities.width))
        if of_each.shape[1] > self.entities.width:
            described = with_neighbours(described)
        embedded = torch.tanh(self.embed(torch.tanh(common + functional.linear(described, of_each))))
        encoded = self.encoder(torch.cat([shared, embedded.mean(-2), embedded.amax(-2)], -1))
        return torch.cat([encoded, embedded.flatten(-2)], -1)


def with_neighbours(entities: Tensor) -> Tensor:
    """Each entity between the one before and the one after, zeros past the ends: [..., n, w] to [..., n, 3 w]."""
    padded = functional.pad(entities, (0, 0, 1, 1))
    return torch.cat([padded[..., :-2, :], entities, padded[..., 2:, :]], -1)
