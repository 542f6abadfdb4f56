"""Every number that the environment's dynamics and rewards depend on, in one frozen and validated place."""

from collections.abc import Collection
from dataclasses import dataclass, fields
from math import inf, isfinite
from typing import Any

TEMPI = (3, 5, 8)  # steps that a ramp may take
DTYPES = ("float32", "float64")
INSTANCE_SETS = ("train", "validation", "test")
SHAPES = ("lesions", "widths")
MEASUREMENTS = ("full", "partial")

Range = tuple[float, float]
Price = float | Range  # a number that is the same in every episode, or a range that each draws from and observes


@dataclass(frozen=True)
class EsperConfig:
    """The environment's arguments. All are plain values; the environment's page says what each means."""

    task: str
    horizon: int = 30
    gamma: float = 0.99
    device: str = "cpu"
    threads: int | None = None  # of the CPU; None for as many as the work is worth
    dtype: str = "float32"

    # What an episode draws.
    instances: str = "train"
    shapes: str = "lesions"  # of hosts: few blocks narrowed, or every block's width drawn
    lesion_weights: tuple[float, float, float] = (0.3, 0.5, 0.2)  # how often none, one, two blocks are lesioned
    live_units: tuple[int, int] = (1, 3)
    learning_rate: Range = (0.12, 0.25)
    label_noise: Range = (0.0, 0.1)
    subset: Range = (0.6, 1.0)
    budget: int | tuple[int, int] | None = None  # seeds at a time; None for one per slot
    phases: tuple[int, int] = (1, 1)  # of the data; with one, they never change
    phase_classes: tuple[int, int] = (2, 10)
    phase_steps: int = 10  # of the shortest

    # Lifecycle: dwell times in steps.
    warmup_steps: int = 2
    training_steps: int = 2
    holding_steps: int = 1
    prune_age: int = 4
    embargo_steps: int = 6

    # Governor. A loss above collapse_loss times that of a uniform guess counts as collapse, and so does one above
    # spike_loss times the last one, which counts as small_loss times that of a uniform guess if it is less.
    collapse_loss: float = 4.0
    spike_loss: float = 5.0
    small_loss: float = 0.05
    max_rollbacks: int = 2
    rollback_penalty: float = 0.5

    # Reward: which preset, and the weights of its terms.
    reward: str = "shaped"
    reward_scale: float = 1.0
    invalid_action_cost: float = 0.0
    rent: Price = 0.03
    slot_rent: Price = 0.04
    metric_weight: float = 1.0
    stage_weight: float = 0.01
    stage_potential: tuple[float, ...] = (0.0, 0.1, 0.3, 0.6, 1.0, 0.0)  # when a stage begins, in order of Stage
    contribution_weight: float = 0.2
    entanglement_weight: float = 0.05
    ratio_epsilon: float = 0.01
    legitimate_age: int = 3
    holding_slope: float = 0.002
    holding_cap: float = 0.01
    shock_weight: float = 0.01
    op_costs: tuple[float, ...] = (0.0, 0.002, 0.001, 0.001, 0.002)  # in order of Op
    loss_weight: float = 1.0
    online_weight: float = 1.0

    # Detectors of gaming, and steps from one measurement of the control to the next; 0: only if the reward needs it.
    control_interval: int = 0
    ransom_contribution: float = 0.1
    ransom_gain: float = 0.02
    churn_prunes: int = 3
    holding_limit: int = 6

    # Observation: what a step measures, and on how many samples if that is part of it; a metric must rise by
    # plateau_tolerance to end a plateau.
    measurements: str = "full"
    validation_samples: int = 16
    plateau_tolerance: float = 0.005

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            check_range(name, getattr(self, name), low, high, integer=name in _INTEGERS)
        for name, (low, high) in _PAIRS.items():
            _check_pair(name, getattr(self, name), low, high)
        if self.threads is not None:
            check_range("threads", self.threads, 1, 1024, integer=True)
        check_choice("dtype", self.dtype, DTYPES)
        check_choice("instances", self.instances, INSTANCE_SETS)
        check_choice("shapes", self.shapes, SHAPES)
        check_choice("measurements", self.measurements, MEASUREMENTS)
        for name, (low, high) in _PRICES.items():
            _check_price(name, getattr(self, name), low, high)
        for name, (length, high) in _LISTS.items():
            _check_list(name, getattr(self, name), length, high)
        if sum(self.lesion_weights) <= 0:
            raise ValueError(f"lesion_weights is {self.lesion_weights}; allowed: at least one positive weight")
        if self.streams:
            _check_stream(self)

    @property
    def streams(self) -> bool:
        """Whether the data may change while the host trains."""
        return self.phases[1] > 1


_RANGES: dict[str, tuple[float, float]] = {
    "horizon": (1, 100_000),
    "gamma": (0.0, 1.0),
    "warmup_steps": (0, 1000),
    "training_steps": (1, 1000),
    "holding_steps": (1, 1000),
    "prune_age": (1, 1000),
    "embargo_steps": (0, 1000),
    "collapse_loss": (1.0, 1e6),
    "spike_loss": (1.0, 1e6),
    "small_loss": (1e-6, 1.0),
    "max_rollbacks": (0, 1000),
    "rollback_penalty": (0.0, 100.0),
    "reward_scale": (1e-6, 1e6),
    "invalid_action_cost": (0.0, 100.0),
    "metric_weight": (0.0, 100.0),
    "stage_weight": (0.0, 100.0),
    "contribution_weight": (0.0, 100.0),
    "entanglement_weight": (0.0, 100.0),
    "ratio_epsilon": (1e-6, 1.0),
    "legitimate_age": (1, 1000),
    "holding_slope": (0.0, 100.0),
    "holding_cap": (0.0, 100.0),
    "shock_weight": (0.0, 100.0),
    "loss_weight": (0.0, 100.0),
    "online_weight": (0.0, 100.0),
    "phase_steps": (1, 100_000),
    "control_interval": (0, 100_000),
    "ransom_contribution": (0.0, 1.0),
    "ransom_gain": (0.0, 1.0),
    "churn_prunes": (1, 1000),
    "holding_limit": (1, 1000),
    "validation_samples": (1, 1_000_000),
    "plateau_tolerance": (0.0, 1.0),
}
_PAIRS: dict[str, tuple[float, float]] = {
    "live_units": (1, 1_000_000),
    "learning_rate": (0.0, 1000.0),
    "label_noise": (0.0, 1.0),
    "subset": (0.01, 1.0),
    "phases": (1, 1000),
    "phase_classes": (1, 1_000_000),
}
_PRICES: dict[str, tuple[float, float]] = {"rent": (0.0, 100.0), "slot_rent": (0.0, 100.0), "budget": (0, 1000)}
_LISTS: dict[str, tuple[int, float]] = {  # how many non-negative numbers, and the greatest
    "lesion_weights": (3, 1e6),
    "stage_potential": (6, 100.0),
    "op_costs": (5, 100.0),
}
_INTEGERS = {field.name for field in fields(EsperConfig) if field.type in (int, "int")} | {
    *("live_units", "budget", "phases", "phase_classes")
}


def ends(price: Price) -> Range:
    """The least and the greatest value of a price."""
    return price if isinstance(price, tuple) else (price, price)


def make_config(**settings: Any) -> EsperConfig:
    """Build the configuration from constructor arguments, with lists (as JSON gives them) accepted for tuples."""
    plain: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in settings.items()}
    return EsperConfig(**plain)


def check_range(name: str, value: object, low: float, high: float = inf, *, integer: bool = False) -> None:
    """One clear error unless a value is a finite number (or integer) from `low` to `high`, or a tuple of such."""
    values = value if isinstance(value, tuple) else (value,)
    if not values or not all(_is_number(one, integer) and low <= one <= high for one in values):
        raise ValueError(f"{name} is {value!r}; allowed: {_allowed(low, high, integer)}")


def check_positive(owner: str, **fields: object) -> None:
    """`check_range` of fields that hold positive integers, or tuples of them."""
    for name, value in fields.items():
        check_range(f"{owner}.{name}", value, 1, integer=True)


def _is_number(value: object, integer: bool) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, int) or (not integer and isfinite(value))


def _allowed(low: float, high: float, integer: bool) -> str:
    return f"{'integers' if integer else 'numbers'} from {low} {'on' if high == inf else f'to {high}'}"


def _check_pair(name: str, value: object, low: float, high: float) -> None:
    integer = name in _INTEGERS
    right = isinstance(value, tuple) and len(value) == 2 and all(_is_number(one, integer) for one in value)
    if not right or not low <= value[0] <= value[1] <= high:  # type: ignore[index]
        raise ValueError(f"{name} is {value!r}; allowed: two ascending {_allowed(low, high, integer)}")


def _check_price(name: str, value: object, low: float, high: float) -> None:
    """A number, or two ascending ones; of integers also None, which is no limit."""
    if isinstance(value, tuple):
        _check_pair(name, value, low, high)
    elif value is not None or name not in _INTEGERS:
        check_range(name, value, low, high, integer=name in _INTEGERS)


def _check_stream(config: EsperConfig) -> None:
    """Every phase must be measured in full."""
    if config.measurements == "partial":
        raise ValueError(f"measurements is 'partial' with phases {config.phases}; allowed: with phases, full")


def _check_list(name: str, value: object, length: int, high: float) -> None:
    right = isinstance(value, tuple) and len(value) == length
    if not right or not all(_is_number(one, False) and 0 <= one <= high for one in value):  # type: ignore[attr-defined]
        raise ValueError(f"{name} is {value!r}; allowed: {length} {_allowed(0, high, False)}")


def check_choice(name: str, value: object, allowed: Collection[str]) -> None:
    """One clear error unless a value is one of those allowed."""
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}; allowed: {', '.join(allowed)}")
