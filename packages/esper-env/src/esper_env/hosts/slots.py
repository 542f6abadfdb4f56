"""The slots of any module: named submodules, whose shapes and family one traced example tells."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from esper_env.fused.families import FAMILIES
from esper_env.hosts.base import Slot

_FAMILY_OF_AXES = {family.axes: name for name, family in FAMILIES.items()}


@dataclass(frozen=True)
class Places:
    """What one example tells about the slots of a module."""

    family: str
    slots: tuple[Slot, ...]
    classes: int  # of the model's answers: the size of their last axis


def find_places(model: nn.Module, names: Sequence[str], example: Tensor) -> Places:
    """Run one example and learn the shapes beside the named submodules; the model stays as it is.

    Raises:
        ValueError: if a slot does not exist, cannot be one, or is not called exactly once with one tensor.
    """
    check_names(model, names)
    calls, classes = _calls(model, names, example)
    for name in names:
        _check_calls(name, [shapes for called, shapes in calls if called == name])
    order = [name for name, _ in calls]
    if order != list(names):
        raise ValueError(f"slots is {list(names)}; allowed: in the order that the model calls them, {order}")
    family = _family(calls)
    layout = FAMILIES[family]
    slots = [Slot(*(layout.units_first(shape[1:]) for shape in shapes)) for _, shapes in calls]
    for name, slot in zip(names, slots, strict=True):
        _check_shape(name, slot)
    return Places(family, tuple(slots), classes)


def check_names(model: nn.Module, names: Sequence[str]) -> None:
    """One clear error unless each name is that of a submodule of its own that can be a slot."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model is a {type(model).__name__}; allowed: an nn.Module")
    if isinstance(names, str) or not names or len(set(names)) != len(names):
        raise ValueError(f"slots is {names!r}; allowed: a list of one or more different names of submodules")
    known = dict(model.named_modules())
    for name in names:
        if name not in known or name == "":
            raise ValueError(f"slot {name!r} is no submodule of the model; there are: {', '.join(list(known)[1:])}")
        outer = next((other for other in names if name.startswith(other + ".")), None)
        if outer is not None:
            raise ValueError(f"slot {name!r} is inside slot {outer!r}; allowed: slots that do not contain each other")
        _check_scripted(known, name)


def _check_scripted(known: dict[str, nn.Module], name: str) -> None:
    parents = [name.rsplit(".", cut)[0] for cut in range(name.count(".") + 1)]
    if any(isinstance(known[parent], torch.jit.ScriptModule) for parent in (*parents, "")):
        raise ValueError(f"slot {name!r} is inside a torch.jit module; allowed: modules before they are scripted")


Shapes = tuple[tuple[int, ...], tuple[int, ...]]  # of a slot's input and output


def _calls(model: nn.Module, names: Sequence[str], example: Tensor) -> tuple[list[tuple[str, Shapes]], int]:
    """Every call of a slot, in order, with the shapes of its input and output; and the size of the answers."""
    calls: list[tuple[str, Shapes]] = []
    with ExitStack() as stack, torch.no_grad():
        stack.enter_context(undisturbed(model))
        for name in names:

            def note(_: nn.Module, args: Any, kwargs: Any, out: Any, name: str = name) -> None:
                calls.append((name, _shapes(name, args, kwargs, out)))

            handle = model.get_submodule(name).register_forward_hook(note, with_kwargs=True)
            stack.callback(handle.remove)
        answers = model(example)
    if not isinstance(answers, Tensor) or answers.dim() < 2:
        what = tuple(answers.shape) if isinstance(answers, Tensor) else type(answers).__name__
        raise ValueError(f"the model gives {what}; allowed: logits [batch, ..., classes]")
    return calls, answers.shape[-1]


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """The model in evaluation, which changes no statistics and draws nothing; then in the modes that it had."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _shapes(name: str, args: Any, kwargs: Any, out: Any) -> Shapes:
    if kwargs or len(args) != 1 or not all(isinstance(tensor, Tensor) for tensor in (*args, out)):
        raise ValueError(f"slot {name!r} is called with other than one tensor, or gives other than one; allowed: one")
    return tuple(args[0].shape), tuple(out.shape)


def _check_calls(name: str, shapes: list[Shapes]) -> None:
    if len(shapes) != 1:
        raise ValueError(f"slot {name!r} is called {len(shapes)} times in a forward; allowed: once")


def _family(calls: list[tuple[str, Shapes]]) -> str:
    axes = {len(shape) for _, shapes in calls for shape in shapes}
    if len(axes) != 1 or not axes <= _FAMILY_OF_AXES.keys():
        raise ValueError(
            f"the slots' activations have {sorted(axes)} axes; allowed: all with 2 (dense), 3 (sequence) or 4 (image)"
        )
    return _FAMILY_OF_AXES[axes.pop()]


def _check_shape(name: str, slot: Slot) -> None:
    if slot.inputs[1:] != slot.outputs[1:]:
        raise ValueError(
            f"slot {name!r} changes shape, from {slot.inputs} to {slot.outputs}; allowed: other units or channels, "
            "the same length, or height and width; a submodule inside it may do"
        )
