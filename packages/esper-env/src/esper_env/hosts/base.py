"""What a host is: blocks in a row, and beside each block a slot where a seed may be grafted."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, make_dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from esper_env.fused.families import FAMILIES, Family
from esper_env.fused.layout import Params
from esper_env.fused.vmapped import Vmapped, undrawn
from esper_env.registry import Registry


class Network(nn.Module):
    """One plain network: it enters, runs block after block with a bridge behind each, and ends in a head.

    Args:
        blocks: The blocks, which slots stand beside.
        head: From the last block's output to logits.
        enter: From samples to the first block's input.
        bridges: Behind each block and what is grafted beside it; identities unless given.
    """

    def __init__(
        self,
        blocks: Iterable[nn.Module],
        head: nn.Module,
        enter: nn.Module | None = None,
        bridges: Iterable[nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.enter = enter or nn.Identity()
        self.blocks = nn.ModuleList(blocks)
        self.bridges = nn.ModuleList(bridges or [nn.Identity() for _ in self.blocks])
        self.head = head
        if len(self.bridges) != len(self.blocks):
            raise ValueError(f"there are {len(self.bridges)} bridges; allowed: one per block, {len(self.blocks)}")

    def forward(self, x: Tensor, beside: Callable[[int, Tensor, Tensor], Tensor] | None = None) -> Tensor:
        """Logits; `beside(slot, x, h)` makes of a block's input and output what goes on, h itself unless given."""
        x = self.enter(x)
        for slot, (block, bridge) in enumerate(zip(self.blocks, self.bridges, strict=True)):
            h = block(x)
            x = bridge(h if beside is None else beside(slot, x, h))
        logits: Tensor = self.head(x)
        return logits


@dataclass(frozen=True)
class Slot:
    """The place beside one block: per-sample shapes, channels first, of what a seed reads and of what it adds to."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class Host(ABC):
    """A kind of network, described once for one model (`template`), and run for n models at a time.

    The fused form of each part is `torch.func.vmap` over the plain one. A host may override `enter`, `block`,
    `lesioned_block` and `head` by faster ones that give the same.
    """

    family: ClassVar[str]  # which blueprints fit: those of the same family

    @abstractmethod
    def template(self) -> Network:
        """One plain network; only its names, shapes and layers count, as initial weights are drawn by key."""

    @abstractmethod
    def sample(self) -> Tensor:
        """A batch of one sample of zeros, to learn shapes from."""

    @cached_property
    def activations(self) -> Family:
        """How activations lie in memory."""
        return FAMILIES[self.family]

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The slots, one per block."""
        return self._shapes[0]

    @property
    def activation_size(self) -> int:
        """Numbers of activation per sample, for sizing tiles: the sample, and what layers with parameters give."""
        return self._shapes[1]

    @cached_property
    def _shapes(self) -> tuple[tuple[Slot, ...], int]:
        network, sample, slots = undrawn(self.template), self.sample(), []
        sizes = [sample.numel()]

        def note(slot: int, x: Tensor, h: Tensor) -> Tensor:  # noqa: ARG001 (slots come in order)
            slots.append(Slot(*(self.activations.units_first(tuple(t.shape[1:])) for t in (x, h))))
            return h

        for module in network.modules():
            if any(True for _ in module.parameters(recurse=False)):
                module.register_forward_hook(lambda _module, _inputs, out: sizes.append(_size(out)))
        with torch.no_grad():
            network(sample, note)
        return tuple(slots), sum(sizes)

    @cached_property
    def _parts(self) -> dict[str, Vmapped]:
        """The fused parts of the plain network by name."""
        network = undrawn(self.template)
        names = ["enter", "head", *(f"{kind}.{i}" for kind in ("blocks", "bridges") for i in range(len(self.slots)))]
        return {name: Vmapped(network.get_submodule(name)) for name in names}

    def enter(self, params: Params, inputs: Tensor) -> Tensor:
        """Samples [n, batch, ...] as the first block's activations; `params` under the names local to the part."""
        return self.activations.arranged(self._parts["enter"](params, inputs))

    def block(self, index: int, params: Params, x: Tensor) -> Tensor:
        """The outputs of a block."""
        return self._run(f"blocks.{index}", params, x)

    def lesioned_block(self, index: int, params: Params, x: Tensor, alive: Tensor) -> Tensor:
        """The outputs of a block with dead units; `alive` is [n, units]."""
        return self.block(index, params, x) * self.activations.per_unit(alive)

    def bridge(self, index: int, params: Params, y: Tensor) -> Tensor:
        """From the output beside block `index` to the input of the next."""
        part = self._parts[f"bridges.{index}"]
        return y if isinstance(part.module, nn.Identity) else self._run(f"bridges.{index}", params, y)

    def head(self, params: Params, y: Tensor) -> Tensor:
        """Logits [n, batch, ..., classes]."""
        return self._parts["head"](params, self.activations.models_first(y))

    def _run(self, part: str, params: Params, x: Tensor) -> Tensor:
        return self.activations.arranged(self._parts[part](params, self.activations.models_first(x)))


def _size(out: Any) -> int:
    """Numbers in what a layer gives, which may be several tensors."""
    if isinstance(out, tuple):
        return sum(_size(one) for one in out)
    return out.numel() if isinstance(out, Tensor) else 0


HOSTS: Registry[type[Host]] = Registry("host")


def host_of(network: Callable[..., Network], family: str, dtype: torch.dtype = torch.float32) -> type[Any]:
    """The host class of a plain network, fused by `torch.func.vmap`.

    Args:
        network: Builds the plain network.
        family: Whether activations are dense, of an image or of a sequence.
        dtype: Of samples; tokens are `torch.int64`.

    Returns:
        A dataclass whose fields are the `shape` of a sample and the arguments of `network`, by keyword.
    """
    if family not in FAMILIES:
        raise ValueError(f"family is {family!r}; allowed: {', '.join(FAMILIES)}")
    arguments = inspect.signature(network).parameters.values()
    missing = inspect.Parameter.empty
    fields = [(a.name, Any, field() if a.default is missing else field(default=a.default)) for a in arguments]

    def template(self: Any) -> Network:
        return network(**{argument.name: getattr(self, argument.name) for argument in arguments})

    def sample(self: Any) -> Tensor:
        return torch.zeros(1, *self.shape, dtype=dtype)

    namespace = {"family": family, "template": template, "sample": sample}
    return make_dataclass(
        network.__name__, [("shape", Any), *fields], bases=(Host,), namespace=namespace, frozen=True, kw_only=True
    )
