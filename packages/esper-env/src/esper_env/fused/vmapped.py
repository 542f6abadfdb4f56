"""The fused form of any plain module: `torch.func.vmap` over its functional call."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from esper_env.fused.layout import Layout, Params

Module = TypeVar("Module", bound=nn.Module)


def undrawn(build: Callable[[], Module]) -> Module:
    """A new module without a draw from the global generator, which modules initialise themselves from."""
    with torch.random.fork_rng(devices=[]):
        return build()


class Vmapped:
    """N models of one plain module as one call.

    Args:
        module: The plain module; its own parameters are not read, its buffers are constants of all models.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module, self.entries = module, Layout(module).entries
        self.buffers = dict(module.named_buffers())

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        """What model i makes of x[i], [n, batch, ...]; `params` as fused layers want them, under the module's names."""
        plain = {entry.name: entry.plain_rows(params[entry.name]) for entry in self.entries}
        constants = {name: buffer.to(x.device) for name, buffer in self.buffers.items()}

        def one(own: Params, samples: Tensor) -> Tensor:
            out: Tensor = functional_call(self.module, own | constants, (samples,))
            return out

        with sdpa_kernel(SDPBackend.MATH):  # the one kind of attention that vmap batches
            out: Tensor = vmap(one)(plain, x)
        return out
