"""Any `nn.Module` as a host whose slots are named submodules."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from esper_env.fused.layout import Layout
from esper_env.fused.randomness import Purpose
from esper_env.fused.vmapped import Vmapped, undrawn
from esper_env.hosts.base import HOSTS, Host, Network, host_of
from esper_env.hosts.cutting import cut
from esper_env.hosts.slots import find_places


def from_module(
    make_model: Callable[[], nn.Module], *, slots: Sequence[str], example_input: Tensor, name: str | None = None
) -> Host:
    """The host of a module of one's own, for a `Task`.

    The module is traced once and cut at its slots; n models of each part run as one by `torch.func.vmap`. A skip
    connection lies inside a slot or between two. Initial weights are drawn by the episode's key; parameters that are
    constant vectors (norms, layer scales) start as the module has them.

    Args:
        make_model: Makes the module; from one batch of samples to logits [batch, ..., classes].
        slots: Names of submodules, as in `named_modules()`, in the order of their calls. Each is called once, with one
            tensor that it gives back with other units or channels at most.
        example_input: A batch of samples, to learn shapes from.
        name: Under which the host is registered, so that exported networks can be saved and loaded.

    Raises:
        ValueError: if the module cannot be cut there, keeps running statistics, or draws random numbers.
    """
    model = undrawn(make_model)
    places = find_places(model, slots, example_input)
    _check_layers(model)
    names = tuple(slots)

    def network() -> Network:
        return cut(make_model(), names)

    network.__name__ = getattr(make_model, "__name__", type(model).__name__)
    _check_fused(undrawn(network), example_input)
    kind = host_of(network, places.family, example_input.dtype)
    if name is not None:
        HOSTS.register(name, kind)
    host: Host = kind(shape=tuple(example_input.shape[1:]))
    return host


def _check_layers(model: nn.Module) -> None:
    for path, module in model.named_modules():
        if isinstance(module, _NormBase) and module.track_running_stats:
            raise ValueError(
                f"{path!r} ({type(module).__name__}) keeps running statistics; "
                "allowed: track_running_stats=False, GroupNorm or LayerNorm"
            )
        if isinstance(module, _DropoutNd) and module.p > 0:
            raise ValueError(f"{path!r} ({type(module).__name__}) draws random numbers; allowed: p=0")


def _check_fused(network: Network, example: Tensor) -> None:
    """One clear error unless two models run as one call, from samples to logits."""
    layout = Layout(network)
    values = layout.initial(torch.arange(2), Purpose.HOST_WEIGHTS, 0, 0, torch.get_default_dtype())
    params = {entry.name: rows for entry, rows in zip(layout.entries, layout.unpack(values), strict=True)}
    try:
        with torch.no_grad():
            Vmapped(network)(params, example.expand(2, *example.shape))
    except Exception as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"torch.func.vmap cannot run the model ({reason}); allowed: what it can batch") from error
