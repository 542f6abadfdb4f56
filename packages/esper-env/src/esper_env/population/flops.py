"""FLOPs of training: products and convolutions of hosts and seeds, forward and backward, as torch counts them."""

from collections.abc import Callable
from copy import deepcopy
from functools import cached_property, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from esper_env.blueprints.base import SeedTemplate
from esper_env.blueprints.blends import Blend
from esper_env.fused.vmapped import undrawn
from esper_env.hosts.base import Network
from esper_env.population.population import EMPTY, Census, Engine

Table = NDArray[np.int64]  # by slot, blueprint, and whether there is a gate


class TrainingFlops:
    """What one training sample costs, by what is planted where.

    A host is trained forward and backward. A seed that acts adds its own passes. A seed that incubates adds its own and
    a second way through the blocks and acting seeds behind it, forward and back, which learn nothing from it.

    Args:
        engine: The population's.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def per_sample(self, census: Census) -> NDArray[np.float64]:
        """FLOPs of one sample in each row, [n]."""
        incubating = (census.blueprint != EMPTY) & ~census.live
        acting = self._of(self._acting, census) * census.live
        passed = self._of(self._passed, census) * census.live
        behind = self._behind + passed[:, ::-1].cumsum(axis=1)[:, ::-1] - passed  # seeds behind, without their own slot
        learning = self._of(self._incubating, census) + behind
        return np.asarray(self._host + (acting + learning * incubating).sum(axis=1), dtype=np.float64)

    def _of(self, table: Table, census: Census) -> Table:
        """What a table says of each place, [n, slots]; anything where nothing is planted."""
        gated = (census.blend == Blend.GATE).astype(np.int64)
        chosen: Table = table[np.arange(census.blueprint.shape[1]), census.blueprint, gated]
        return chosen

    @cached_property
    def _host(self) -> int:
        """Of the bare host, forward and backward."""
        return _counted(partial(self._network, self.engine.host.sample()))

    @cached_property
    def _acting(self) -> Table:
        """Of seeds that act; the first slot's gives no gradient to its input where nothing before it learns."""
        learns = any(True for _ in self._network.enter.parameters())
        return self._seeds(lambda slot: slot > 0 or learns)

    @cached_property
    def _incubating(self) -> Table:
        """Of seeds that incubate, without what stands behind them."""
        return self._seeds(lambda _slot: False)

    @cached_property
    def _passed(self) -> Table:
        """Of the way through seeds that learn nothing, there and back."""
        return self._seeds(lambda _slot: True, frozen=True)

    @cached_property
    def _behind(self) -> Table:
        """Of the way through the blocks behind each slot and the head, which learn nothing, there and back; [slots]."""
        parts = [*self._network.blocks[1:], self._network.head]
        passed = [_counted(partial(_frozen(part), _leaf(x))) for part, x in zip(parts, self._inputs[1:], strict=True)]
        return np.cumsum(passed[::-1])[::-1]

    def _seeds(self, teaches_input: Callable[[int], bool], frozen: bool = False) -> Table:
        """Of one seed of each kind in each slot, there and back."""
        shape = (len(self.engine.host.slots), len(self.engine.blueprints), 2)
        table = np.zeros(shape, dtype=np.int64)
        for slot, kind, gated in np.ndindex(shape):
            seed = undrawn(partial(SeedTemplate, self.engine.blueprints[kind], self.engine.host.slots[slot]))
            x = _leaf(self._inputs[slot]) if teaches_input(slot) else self._inputs[slot]
            table[slot, kind, gated] = _counted(partial(_grafted, seed.requires_grad_(not frozen), x, bool(gated)))
        return table

    @cached_property
    def _network(self) -> Network:
        return undrawn(self.engine.host.template)

    @cached_property
    def _inputs(self) -> list[Tensor]:
        """What the blocks, with the seeds beside them, and last the head read of one sample."""
        inputs: list[Tensor] = []
        network = undrawn(self.engine.host.template)
        for part in (*network.blocks, network.head):
            part.register_forward_pre_hook(lambda _part, given: inputs.append(given[0]))
        with torch.no_grad():
            network(self.engine.host.sample())
        return inputs


def _frozen(part: nn.Module) -> nn.Module:
    return deepcopy(part).requires_grad_(False)


def _leaf(x: Tensor) -> Tensor:
    return x.clone().requires_grad_()


def _grafted(seed: SeedTemplate, x: Tensor, gated: bool) -> Tensor:
    delta: Tensor = seed(x)
    if not gated:
        return delta
    opening: Tensor = seed.gate(x.mean(dim=(2, 3)) if x.dim() == 4 else x)  # an image has one gate
    return delta.sum() + opening.sum()


def _counted(run: Callable[[], Tensor]) -> int:
    """FLOPs of a pass and of its way back."""
    counter = FlopCounterMode(display=False)
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), counter:  # whose products are counted on every device
        run().sum().backward()
    return int(counter.get_total_flops())
