"""Pictures and text of a row."""

from typing import Any

from esper_env.simulation import Simulation


def check_render_mode(mode: str | None, allowed: list[str]) -> str | None:
    """The mode if it is None or allowed; one clear error otherwise."""
    if mode is not None and mode not in allowed:
        raise ValueError(f"render_mode is {mode!r}; allowed: None, {', '.join(allowed)}")
    return mode


def render_row(simulation: Simulation, row: int, mode: str) -> Any:
    """Row `row` as text or as a picture."""
    raise ValueError((simulation, row, mode))
