"""Numbers that change during training, and how they are written down."""

from collections.abc import Mapping
from typing import Any

from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule, LinearSchedule

from esper_agent.config import Schedule


class EntropySchedule:
    """The final entropy coefficient of every head; the loss multiplies normalised entropies by nothing else.

    Args:
        heads: names of the heads.
        coefficient: one number or schedule for all heads, or one for each.

    Raises:
        ValueError: when a mapping does not name exactly the heads.
    """

    def __init__(self, heads: tuple[str, ...], coefficient: float | Schedule | Mapping[str, float | Schedule]) -> None:
        by_head = coefficient if isinstance(coefficient, Mapping) else dict.fromkeys(heads, coefficient)
        if set(by_head) != set(heads):
            raise ValueError(f"ent_coef names the heads {sorted(by_head)}; allowed: exactly {sorted(heads)}")
        self._schedules = {head: FloatSchedule(by_head[head]) for head in heads}

    def coefs(self, progress_remaining: float) -> dict[str, float]:
        """The coefficients when this share of the environment steps remains."""
        return {head: schedule(progress_remaining) for head, schedule in self._schedules.items()}


def describe(value: Any) -> Any:
    """A setting as plain data. SB3's linear and constant schedules are kept; other functions only by name."""
    if isinstance(value, FloatSchedule):
        return describe(value.value_schedule)
    if isinstance(value, ConstantSchedule):
        return float(value.val)
    if isinstance(value, LinearSchedule):
        return {"schedule": "linear", "start": value.start, "end": value.end, "end_fraction": value.end_fraction}
    if isinstance(value, Mapping):
        return {key: describe(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return list(value)
    return {"schedule": "custom"} if callable(value) else value


def restore(name: str, value: Any) -> Any:
    """The setting that `describe` wrote down.

    Raises:
        ValueError: for a function of the user's own, which only the user can give again.
    """
    if not isinstance(value, Mapping):
        return value
    if value.get("schedule") == "custom":
        raise ValueError(f"{name} was saved as a function; pass {name}=... to load()")
    if value.get("schedule") == "linear":
        return LinearSchedule(value["start"], value["end"], value["end_fraction"])
    return {key: restore(name, part) for key, part in value.items()}
