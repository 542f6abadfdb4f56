"""Optional compilation: one helper that tries, falls back once, and remembers what happened."""

import warnings
from collections.abc import Callable
from typing import Any

import torch


class CompiledCall:
    """A function compiled at its first call, or the plain function if that fails.

    The module behind the function is never wrapped: parameters, gradients and state always come from it.
    """

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.plain = function
        self.name = name
        self.compiled = True
        self._call: Callable[..., Any] = torch.compile(function, dynamic=False)

    def __call__(self, *args: Any) -> Any:
        """Call the compiled function, or the plain one from the first failure on."""
        if not self.compiled:
            return self.plain(*args)
        try:
            return self._call(*args)
        except Exception as error:  # whatever the compiler's failure is, the plain function does the same
            self.compiled = False
            warnings.warn(f"compiling the {self.name} failed, running it uncompiled: {error!r}", stacklevel=2)
            return self.plain(*args)
