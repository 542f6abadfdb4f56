"""A slot in a user's own module: it stands in the place of one submodule and holds that and at most one seed."""

from typing import Any

import torch
from torch import Tensor, nn

from esper_env.blueprints.base import BLUEPRINTS, SeedTemplate
from esper_env.blueprints.blends import Blend, joined
from esper_env.fused.vmapped import undrawn
from esper_env.hosts.base import Slot


class GrowingSlot(nn.Module):
    """A block with a slot beside it.

    Args:
        block: The submodule that stood here.
        place: The shapes of what it reads and gives.
    """

    alpha: Tensor
    seed: SeedTemplate | None

    def __init__(self, block: nn.Module, place: Slot) -> None:
        super().__init__()
        like = next(block.parameters(), torch.empty(0))
        self.block, self.place = block, place
        self.register_module("seed", None)
        self.register_buffer("alpha", torch.zeros((), dtype=like.dtype, device=like.device))
        self.blueprint, self.blend = "", Blend.ADD
        self.live = self.committed = False
        self.switch: bool | None = None  # on or off while something is measured; None: as its life says
        self.watched = False  # whether gradients and samples are noted
        self.gradients: list[Tensor] = []  # norms at the block's output, one per backward pass
        self.samples = 0  # of the last batch; of texts every position counts

    def plant(self, blueprint: str, blend: Blend) -> SeedTemplate:
        """Put a seed here, which does not act before it is live; its weights are still to be set."""
        self.blueprint, self.blend = blueprint, blend
        seed = undrawn(lambda: SeedTemplate(BLUEPRINTS[blueprint], self.place)).to(self.alpha)
        self.seed = seed
        self.live = self.committed = False
        self.alpha.zero_()
        return seed

    def clear(self) -> list[nn.Parameter]:
        """Take the seed away; its parameters."""
        gone = [] if self.seed is None else list(self.seed.parameters())
        self.seed, self.blueprint, self.live, self.committed = None, "", False, False
        self.alpha.zero_()
        return gone

    @property
    def acts(self) -> bool:
        """Whether the seed changes what the block gives."""
        return self.seed is not None and (self.live if self.switch is None else self.switch)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output, with the seed's part in it."""
        h: Tensor = self.block(x)
        if self.watched and h.requires_grad:
            self.samples = x.shape[:-1].numel() if x.dim() < 4 else len(x)
            h.register_hook(self._note)
        if self.seed is None or not self.acts:
            return h
        alpha = self.alpha if self.live else torch.ones_like(self.alpha)  # an incubating seed acts fully, if it does
        return joined(self.seed, x, h, self.blend, alpha)

    def _note(self, grad: Tensor) -> None:
        self.gradients.append(torch.linalg.vector_norm(grad.detach()))

    def get_extra_state(self) -> dict[str, Any]:
        """What a state dict must say for a seed to be built again."""
        return {
            "blueprint": self.blueprint,
            "blend": int(self.blend),
            "live": self.live,
            "committed": self.committed,
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Build the seed that a state dict tells of; torch then loads its parameters."""
        alpha = self.alpha.clone()  # torch has loaded it already
        self.clear()
        if state["blueprint"]:
            self.plant(state["blueprint"], Blend(state["blend"]))
        self.live, self.committed = state["live"], state["committed"]
        self.alpha.copy_(alpha)
