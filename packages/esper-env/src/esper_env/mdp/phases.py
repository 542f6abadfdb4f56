"""Named phases of a step, for whoever wants to know where the time goes; unmeasured they cost nothing."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

Phase = Callable[[str], AbstractContextManager[Any]]
"""Makes the context in which a phase of this name runs."""

_NOTHING = nullcontext()


def unmeasured(_name: str) -> AbstractContextManager[Any]:
    """The phase of a loop that nobody measures."""
    return _NOTHING
