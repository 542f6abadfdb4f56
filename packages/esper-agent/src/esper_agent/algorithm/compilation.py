"""Optional compilation: one helper that tries, falls back once, and remembers what happened."""

import warnings
from collections.abc import Callable
from typing import Any

import torch


class Compilation:
    """Compiles functions at their first call; from the first failure on, all of them run uncompiled.

    The modules behind the functions are never wrapped: parameters, gradients and state always come from them.
    """

    def __init__(self) -> None:
        self.compiled = True

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that does the same, compiled for its fixed shapes if possible."""
        fast: Callable[..., Any] = torch.compile(function, dynamic=False)

        def call(*args: Any) -> Any:
            if not self.compiled:
                return function(*args)
            try:
                return fast(*args)
            except Exception as error:  # whatever the compiler's failure is, the plain function does the same
                self.compiled = False
                warnings.warn(f"torch.compile failed, running uncompiled: {error!r}", stacklevel=2)
                return function(*args)

        return call
