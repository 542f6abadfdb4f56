"""Thresholds of the detectors."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields


@dataclass(frozen=True)
class DetectorConfig:
    """When a detector speaks.

    Upper limits are multiplied by `warmup_slack`, and lower limits divided by it, during the first
    `warmup_rollouts`: what is normal while the critic and the normalisers settle is an anomaly later.

    Attributes:
        entropy_floor: normalised entropy below which a head has collapsed.
        entropy_floors: floors of single heads, in place of `entropy_floor`.
        min_choice_share: a head with a choice on a smaller share of the steps is not judged.
        kl_limit: largest KL divergence that a minibatch may show.
        log_ratio_limit: largest absolute log-ratio, joint and of each head.
        value_std_share: smallest spread of the values, as a share of the returns' spread.
        gradient_high: largest smoothed gradient norm before clipping, in multiples of the clip norm.
        gradient_low: smallest smoothed gradient norm before clipping, in multiples of the clip norm.
        gradient_decay: decay of the smoothed gradient norm, per update.
        lstm_saturation_level: a hidden unit with a larger absolute value is saturated.
        lstm_saturation_share: largest share of saturated units.
        lstm_rms_floor: smallest root mean square of the hidden state.
        patience: updates in a row that a slow condition (entropy, values, LSTM) must last.
        recovery: an alarm ends when the value is better than its threshold by this factor.
        escalate_after: further updates after which a lasting alarm becomes critical.
        warmup_rollouts: rollouts with relaxed limits.
        warmup_slack: how much they are relaxed.
    """

    entropy_floor: float = 0.02
    entropy_floors: Mapping[str, float] = field(default_factory=dict)
    min_choice_share: float = 0.01
    kl_limit: float = 0.2
    log_ratio_limit: float = 5.0
    value_std_share: float = 0.01
    gradient_high: float = 20.0
    gradient_low: float = 1e-4
    gradient_decay: float = 0.9
    lstm_saturation_level: float = 0.95
    lstm_saturation_share: float = 0.5
    lstm_rms_floor: float = 1e-3
    patience: int = 3
    recovery: float = 2.0
    escalate_after: int = 10
    warmup_rollouts: int = 5
    warmup_slack: float = 4.0

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.name == "entropy_floors":
                for head, floor in value.items():
                    _require_between(f"entropy_floors[{head!r}]", floor, *_RANGES["entropy_floor"])
            else:
                _require_between(entry.name, value, *_RANGES[entry.name])

    def slack(self, rollouts: int) -> float:
        """How much limits are relaxed after this many rollouts."""
        return self.warmup_slack if rollouts <= self.warmup_rollouts else 1.0


_SHARE = (0.0, 1.0)
_POSITIVE = (sys.float_info.min, sys.float_info.max)
_RANGES = {
    "entropy_floor": _SHARE,
    "min_choice_share": (sys.float_info.min, 1.0),
    "kl_limit": _POSITIVE,
    "log_ratio_limit": _POSITIVE,
    "value_std_share": _SHARE,
    "gradient_high": _POSITIVE,
    "gradient_low": (0.0, sys.float_info.max),
    "gradient_decay": (0.0, 0.9999),
    "lstm_saturation_level": _SHARE,
    "lstm_saturation_share": _SHARE,
    "lstm_rms_floor": (0.0, 1.0),
    "patience": (1, sys.maxsize),
    "recovery": (1.0, sys.float_info.max),
    "escalate_after": (1, sys.maxsize),
    "warmup_rollouts": (0, sys.maxsize),
    "warmup_slack": (1.0, sys.float_info.max),
}


def _require_between(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} is {value!r}; allowed: {_range_in_words(low, high)}")


def _range_in_words(low: float, high: float) -> str:
    """Ends that stand for "any" or "just above 0" are no use to a reader."""
    if high in (sys.float_info.max, sys.maxsize):
        return "a positive finite number" if low == sys.float_info.min else f"a finite number from {low:g} on"
    return f"above 0, up to {high:g}" if low == sys.float_info.min else f"from {low:g} to {high:g}"
