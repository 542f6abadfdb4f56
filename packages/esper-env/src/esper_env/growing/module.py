"""A user's own module with slots: the life of seeds as methods, and a loss that incubating seeds learn from, too."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from esper_env.blueprints.base import BLUEPRINTS, SeedTemplate
from esper_env.blueprints.blends import Blend
from esper_env.fused.layout import Layout
from esper_env.fused.randomness import Purpose
from esper_env.fused.vmapped import undrawn
from esper_env.growing.slot import GrowingSlot
from esper_env.hosts.slots import Places, find_places, undisturbed

FAMILY_BLUEPRINTS = {
    "dense": ("low_rank", "narrow_mlp", "medium_mlp", "wide_mlp", "gated_unit"),
    "image": ("pointwise", "depthwise", "bottleneck", "convolution", "wide_convolution"),
    "sequence": ("affine_norm", "low_rank_adapter", "gated_mlp", "attention_head", "wide_token_mlp"),
}


class GrowingModule(nn.Module):
    """Gives slots to a module, in place: each named submodule is replaced by a `GrowingSlot` that holds it.

    The module answers as before until a seed is live. If anything is wrong, one error says what, and the module is as
    it was.

    Args:
        model: Your module.
        slots: Names of submodules, as in `named_modules()`, in the order of their calls. Each is called once in a
            forward, with one tensor that it gives back with other units or channels at most.
        example_input: A batch of samples, to learn shapes from.
        blueprints: Names of what may be grafted; those of the environments with such activations unless given.
        seed: Of the initial weights of everything that is grafted; torch's generators are not read.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        slots: Sequence[str],
        example_input: Tensor,
        blueprints: Sequence[str] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        _check_slotless(model)
        places = find_places(model, slots, example_input)
        self.blueprints = _checked(FAMILY_BLUEPRINTS[places.family] if blueprints is None else blueprints, places)
        self.model, self.names, self.seed, self.births = model, tuple(slots), seed, 0
        self.classes = places.classes
        self.host_size = sum(parameter.numel() for parameter in model.parameters())
        self.slots = [GrowingSlot(model.get_submodule(n), p) for n, p in zip(slots, places.slots, strict=True)]
        _install(model, dict(zip(slots, self.slots, strict=True)), example_input)
        self.losses: list[Tensor] = []  # of the minibatches since they were last taken

    def forward(self, *inputs: Tensor) -> Tensor:
        """What the module answers."""
        out: Tensor = self.model(*inputs)
        return out

    def get_extra_state(self) -> int:
        """How many seeds were planted, so that the next one has weights of its own."""
        return self.births

    def set_extra_state(self, state: int) -> None:
        """Go on counting."""
        self.births = state

    # The life of a seed

    def germinate(self, slot: int, blueprint: str, blend: Blend = Blend.ADD) -> list[nn.Parameter]:
        """Plant a seed, which learns behind the block through `loss`; its parameters, for your optimiser."""
        self._require(slot, self.slots[slot].seed is None, "is occupied")
        if blueprint not in self.blueprints:
            raise ValueError(f"blueprint is {blueprint!r}; allowed: {', '.join(self.blueprints)}")
        planted = self.slots[slot].plant(blueprint, blend)
        self.births += 1
        layout, alpha = Layout(planted), self.slots[slot].alpha
        rows = layout.initial(torch.tensor([self.seed]), Purpose.SEED_WEIGHTS, self.births, slot, alpha.dtype)
        planted.load_state_dict(layout.state_dict(rows[0]))
        return list(planted.parameters())

    def advance(self, slot: int, alpha: float = 1.0) -> None:
        """Let a seed act, with this share of it."""
        self._require(slot, self.slots[slot].seed is not None, "is empty")
        self.slots[slot].live = True
        self.slots[slot].alpha.fill_(alpha)

    def fossilize(self, slot: int) -> None:
        """Commit a seed for good."""
        self._require(slot, self.slots[slot].live, "has no seed that acts")
        self.slots[slot].committed = True

    def prune(self, slot: int) -> list[nn.Parameter]:
        """Remove a seed that is not committed; its parameters, for your optimiser."""
        self._require(slot, self.slots[slot].seed is not None, "is empty")
        self._require(slot, not self.slots[slot].committed, "has a committed seed")
        return self.slots[slot].clear()

    def _require(self, slot: int, condition: bool, otherwise: str) -> None:
        if not condition:
            raise ValueError(f"slot {self.names[slot]!r} {otherwise}")

    # Training and measuring

    def loss(self, compute: Callable[[], Tensor]) -> Tensor:
        """The loss of a minibatch: what `compute` gives, and gradient for incubating seeds.

        For each of them `compute` runs once more with the seed acting, and with gradient for its parameters alone, so
        the module trains exactly as it would without it.

        Args:
            compute: From nothing to the minibatch's loss, by way of the module.
        """
        with self._watched():
            loss = compute()
        self.losses.append(loss.detach())
        for slot in self.slots:
            if slot.seed is not None and not slot.live:
                with self._rehearsal(slot):
                    other = compute()
                loss = loss + (other - other.detach())
        return loss

    @contextmanager
    def _watched(self) -> Iterator[None]:
        for slot in self.slots:
            slot.watched = True
        try:
            yield
        finally:
            for slot in self.slots:
                slot.watched = False

    @contextmanager
    def _rehearsal(self, slot: GrowingSlot) -> Iterator[None]:
        """One seed acts and learns; nothing else learns, no statistics change and no generator moves on."""
        assert slot.seed is not None
        own = set(slot.seed.parameters())
        learning = [p for p in self.parameters() if p.requires_grad and p not in own]
        tracking = [m for m in self.modules() if isinstance(m, _NormBase) and m.track_running_stats]
        devices = {p.device for p in self.parameters() if p.device.type == "cuda"}
        with torch.random.fork_rng(devices=sorted(devices, key=str)), self.switched(slot, on=True):
            try:
                for parameter in learning:
                    parameter.requires_grad = False
                for module in tracking:
                    module.track_running_stats = not module.training
                yield
            finally:
                for parameter in learning:
                    parameter.requires_grad = True
                for module in tracking:
                    module.track_running_stats = True

    @contextmanager
    def switched(self, slot: GrowingSlot, *, on: bool) -> Iterator[None]:
        """With one seed acting, or not, whatever its stage."""
        slot.switch = on
        try:
            yield
        finally:
            slot.switch = None

    def seed_sizes(self) -> Tensor:
        """Parameters of each seed as a share of the module's, [slots]; the gate counts only where the blend uses it."""
        sizes = [0 if slot.seed is None else _size(slot.seed, slot.blend) for slot in self.slots]
        return torch.tensor(sizes, dtype=torch.float64) / self.host_size

    def largest_seeds(self) -> Tensor:
        """Parameters of the largest blueprint of each slot, with its gate, as a share of the module's, [slots]."""

        def size(slot: GrowingSlot, name: str) -> int:
            return _size(undrawn(lambda: SeedTemplate(BLUEPRINTS[name], slot.place)), Blend.GATE)

        sizes = [max(size(slot, name) for name in self.blueprints) for slot in self.slots]
        return torch.tensor(sizes, dtype=torch.float64) / self.host_size

    def plain(self) -> nn.Module:
        """A copy of the module with its committed seeds, and without what could still grow: slots without one are gone.

        What stays of a slot is a `GrowingSlot` whose seed acts for good.
        """
        copy = deepcopy(self.model)
        for name in self.names:
            slot = copy.get_submodule(name)
            assert isinstance(slot, GrowingSlot)
            if not slot.committed:
                copy.set_submodule(name, slot.block)
        return copy


def _check_slotless(model: nn.Module) -> None:
    if isinstance(model, nn.Module) and any(isinstance(part, GrowingModule | GrowingSlot) for part in model.modules()):
        raise ValueError("the model has slots already; allowed: one GrowingModule, with all slots")


def _checked(blueprints: Sequence[str], places: Places) -> tuple[str, ...]:
    if isinstance(blueprints, str) or not blueprints:
        raise ValueError(f"blueprints is {blueprints!r}; allowed: a list of one or more names")
    for name in blueprints:
        if BLUEPRINTS[name].family != places.family:
            raise ValueError(
                f"blueprint {name!r} is for the family {BLUEPRINTS[name].family!r}; "
                f"allowed here: those of {places.family!r}"
            )
    return tuple(blueprints)


def _install(model: nn.Module, slots: dict[str, GrowingSlot], example: Tensor) -> None:
    """Put the slots into the module, unless it calls a block by another way than its name: then all is as before.

    Raises:
        ValueError: when it does.
    """
    called: set[GrowingSlot] = set()
    handles = [slot.register_forward_hook(lambda self, *_: called.add(self)) for slot in slots.values()]
    for name, slot in slots.items():
        slot.training = slot.block.training
        model.set_submodule(name, slot)
    try:
        with torch.no_grad(), undisturbed(model):
            model(example)
        for name, slot in slots.items():
            if slot not in called:
                raise ValueError(f"slot {name!r} is called by another name or reference; allowed: by that name alone")
    except BaseException:
        for name, slot in slots.items():
            model.set_submodule(name, slot.block)
        raise
    finally:
        for handle in handles:
            handle.remove()


def _size(seed: SeedTemplate, blend: Blend) -> int:
    unused = 0 if blend is Blend.GATE else sum(parameter.numel() for parameter in seed.gate.parameters())
    return sum(parameter.numel() for parameter in seed.parameters()) - unused
