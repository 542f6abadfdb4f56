"""Each detector speaks when, and only when, its condition holds; the monitor runs all of them."""

import json
import math
from dataclasses import fields
from itertools import pairwise
from typing import Any

import pytest
from esper_agent.diagnostics import DETECTORS, Detector, DetectorConfig, Event, Monitor, Severity
from esper_agent.diagnostics.alarms import Alarm
from esper_agent.diagnostics.metrics import Metrics
from esper_agent.diagnostics.smoothing import MovingAverage
from hypothesis import given, settings
from hypothesis import strategies as st

CLIP = 0.5


def flat(tree: dict[str, Any]) -> Metrics:
    """Metrics by path, such as entropy/op."""
    parts = {key: value if isinstance(value, dict) else {"": value} for key, value in tree.items()}
    return {f"{key}/{part}".rstrip("/"): value for key, values in parts.items() for part, value in values.items()}


SPREAD = {"mean": 0.0, "std": 1.0, "min": -2.0, "max": 2.0, "positive_share": 0.5}
HEALTHY = flat(
    {
        "policy_loss": -0.01,
        "value_loss": 0.2,
        "entropy": {"op": 0.8, "slot": 0.6, "blueprint": 0.7},
        "entropy_available": {"op": 1.0, "slot": 0.5, "blueprint": 0.2},
        "approx_kl": 0.01,
        "exact_kl_max": 0.02,
        "exact_kl": 0.01,
        "clip_fraction": 0.1,
        "max_abs_log_ratio": 0.3,
        "head_log_ratios": {"op": 0.2, "slot": 0.1, "blueprint": 0.1},
        "ratio_worst_index": 3,
        "explained_variance": math.nan,
        "value_mean": 0.0,
        "value_std": 0.8,
        "return_mean": 0.0,
        "return_std": 1.0,
        "advantage": SPREAD,
        "normalized_advantage": SPREAD,
        "grad_norm_pre": 0.7,
        "grad_norm_post": 0.5,
        "grad_norms": {"trunk": 0.5, "critic": 0.5},
        "lstm_rms": 0.3,
        "lstm_saturation": 0.01,
        "nonfinite": 0,
        "learning_rate": 3e-4,
        "epochs": 4,
        "minibatches": 16,
        "stopped_early": False,
        "env_steps": 1000,
        "rollouts": 100,
        "optimizer_steps": 1600,
    }
)
SICK: dict[str, dict[str, Any]] = {
    "entropy_collapse": {"entropy": {"op": 0.8, "slot": 0.001, "blueprint": 0.7}},
    "kl_spike": {"exact_kl_max": 0.5},
    "ratio_explosion": {
        "max_abs_log_ratio": 9.0,
        "head_log_ratios": {"op": 0.2, "slot": 0.1, "blueprint": 8.5},
        "ratio_worst_index": 77,
    },
    "value_collapse": {"value_std": 1e-4},
    "nonfinite": {"nonfinite": 2},
    "gradient_drift": {"grad_norm_pre": 1e4},
    "lstm_saturation": {"lstm_saturation": 0.9},
    "lstm_silence": {"lstm_rms": 1e-6},
}


def run(monitor: Monitor, updates: int, **changes: Any) -> list[Event]:
    return [event for _ in range(updates) for event in monitor.check(HEALTHY | flat(changes))]


def events_of(config: DetectorConfig, updates: int, clip: float = CLIP, **changes: Any) -> list[Event]:
    return run(Monitor(config, clip), updates, **changes)


@pytest.mark.ledger("D2", "X7")
def test_every_detector_class_is_in_the_registry_and_has_a_case_here() -> None:
    assert {cls.name for cls in Detector.__subclasses__()} == set(DETECTORS) == set(SICK)


@pytest.mark.ledger("D1", "D2", "X7")
@pytest.mark.parametrize("name", SICK)
def test_a_sick_update_is_reported_by_its_detector_and_no_other(name: str) -> None:
    config = DetectorConfig()
    events = events_of(config, config.patience, **SICK[name])
    assert {event.name for event in events} == {name}
    assert all(event.step == HEALTHY["env_steps"] and event.message for event in events)


@pytest.mark.ledger("D2")
def test_healthy_updates_are_silent() -> None:
    assert events_of(DetectorConfig(), 50) == []


@pytest.mark.ledger("D1")
def test_a_collapsed_head_is_named_after_it_has_lasted() -> None:
    config = DetectorConfig(patience=4)
    assert events_of(config, 3, **SICK["entropy_collapse"]) == []
    (event,) = events_of(config, 4, **SICK["entropy_collapse"])
    assert (event.head, event.value, event.threshold) == ("slot", 0.001, config.entropy_floor)


@pytest.mark.ledger("D1")
def test_a_head_without_a_choice_is_not_judged() -> None:
    nothing = {"op": 0.0, "slot": 0.0, "blueprint": 0.0}
    available = {"op": 0.0, "slot": 0.0, "blueprint": 0.005}
    assert events_of(DetectorConfig(), 20, entropy=nothing, entropy_available=available) == []


@pytest.mark.ledger("D1")
def test_a_head_can_have_its_own_floor() -> None:
    config = DetectorConfig(entropy_floors={"blueprint": 0.75})
    assert [event.head for event in events_of(config, 3)] == ["blueprint"]


def test_a_floor_for_an_unknown_head_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"entropy_floors.*tempo.*blueprint"):
        events_of(DetectorConfig(entropy_floors={"tempo": 0.1}), 1)


@pytest.mark.ledger("D1")
def test_an_alarm_speaks_once_until_it_has_recovered() -> None:
    monitor = Monitor(DetectorConfig(entropy_floor=0.1, recovery=2.0, patience=1), CLIP)

    def slot(entropy: float) -> int:
        return len(run(monitor, 1, entropy={"op": 0.8, "slot": entropy, "blueprint": 0.7}))

    assert [slot(entropy) for entropy in (0.05, 0.05, 0.15, 0.05, 0.25, 0.05)] == [1, 0, 0, 0, 0, 1]


@pytest.mark.ledger("T4", "TG1")
def test_an_exploding_head_is_named_with_its_step() -> None:
    joint, head = events_of(DetectorConfig(), 1, **SICK["ratio_explosion"])
    assert joint.head is None
    assert "blueprint" in joint.message
    assert "77" in joint.message
    assert (head.head, head.value) == ("blueprint", 8.5)
    assert "77" in head.message


@pytest.mark.ledger("TG1")
def test_a_nan_never_passes_for_healthy() -> None:
    assert {event.name for event in events_of(DetectorConfig(), 1, max_abs_log_ratio=math.nan)} == {
        "ratio_explosion",
        "nonfinite",
    }


@pytest.mark.parametrize("field", ["policy_loss", "value_loss", "grad_norm_pre", "lstm_rms"])
def test_a_non_finite_statistic_is_named(field: str) -> None:
    events = events_of(DetectorConfig(), 1, **{field: math.nan})
    assert any(event.name == "nonfinite" and field in event.message for event in events)


@pytest.mark.ledger("U19")
@pytest.mark.parametrize(
    ("name", "relaxed"),
    [
        ("entropy_collapse", {"entropy_floor": 1e-6}),
        ("kl_spike", {"kl_limit": 1.0}),
        ("ratio_explosion", {"log_ratio_limit": 10.0}),
        ("value_collapse", {"value_std_share": 1e-6}),
        ("gradient_drift", {"gradient_high": 1e6}),
        ("lstm_saturation", {"lstm_saturation_share": 0.95}),
        ("lstm_silence", {"lstm_rms_floor": 1e-9}),
    ],
)
def test_a_threshold_in_the_config_flips_its_detector(name: str, relaxed: dict[str, float]) -> None:
    assert events_of(DetectorConfig(), 5, **SICK[name])
    assert not events_of(DetectorConfig(**relaxed), 5, **SICK[name])  # type: ignore[arg-type]


@pytest.mark.ledger("D4")
@given(st.floats(0.01, 100), st.floats(1.01, 50), st.booleans())
def test_gradient_limits_are_multiples_of_the_clip_norm(clip: float, factor: float, beyond: bool) -> None:
    config = DetectorConfig()
    norm = config.gradient_high * clip * (factor if beyond else 1 / factor)
    assert bool(events_of(config, 1, clip=clip, grad_norm_pre=norm)) == beyond


@pytest.mark.ledger("D4")
def test_vanishing_gradients_are_drift_too() -> None:
    (event,) = events_of(DetectorConfig(), 1, grad_norm_pre=1e-7)
    assert event.threshold == pytest.approx(DetectorConfig().gradient_low * CLIP)


@pytest.mark.ledger("P11")
@pytest.mark.parametrize(
    ("name", "mild"),
    [
        ("kl_spike", {"exact_kl_max": 0.4}),
        ("ratio_explosion", {"max_abs_log_ratio": 7.0}),
        ("value_collapse", {"value_std": 0.005}),
        ("gradient_drift", {"grad_norm_pre": 15.0}),
        ("lstm_saturation", {"lstm_saturation": 0.6}),
        ("lstm_silence", {"lstm_rms": 5e-4}),
    ],
)
def test_limits_are_wider_while_the_run_warms_up(name: str, mild: dict[str, float]) -> None:
    config = DetectorConfig()
    assert not events_of(config, 5, rollouts=config.warmup_rollouts, **mild)
    assert {event.name for event in events_of(config, 5, rollouts=config.warmup_rollouts + 1, **mild)} == {name}


@pytest.mark.ledger("P11")
def test_a_lasting_alarm_escalates_once() -> None:
    config = DetectorConfig(escalate_after=6)
    events = events_of(config, 30, **SICK["kl_spike"])
    assert [event.severity for event in events] == [Severity.WARNING, Severity.CRITICAL]
    assert len(events_of(config, 6, **SICK["kl_spike"])) == 1


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=60), st.integers(1, 4), st.integers(1, 4))
def test_an_alarm_never_repeats_itself_without_a_recovery(
    history: list[tuple[bool, bool]], patience: int, escalate_after: int
) -> None:
    alarm, spoken = Alarm(), []
    for bad, recovered in history:
        severity = alarm.update(
            bad=bad, recovered=recovered and not bad, patience=patience, escalate_after=escalate_after
        )
        spoken.append("recovery" if recovered and not bad else severity)
    said = [word for word in spoken if word]
    pairs = list(pairwise(said))
    assert (Severity.WARNING, Severity.WARNING) not in pairs
    assert (Severity.CRITICAL, Severity.WARNING) not in pairs
    assert all(before == Severity.WARNING for before, after in pairs if after == Severity.CRITICAL)


@pytest.mark.ledger("X13")
@given(st.lists(st.sampled_from([{}, *SICK.values()]), max_size=24), st.integers(0, 24))
@settings(deadline=None)
def test_a_resumed_monitor_speaks_like_one_that_never_stopped(history: list[dict[str, Any]], cut: int) -> None:
    straight, first, second = (Monitor(DetectorConfig(escalate_after=2), CLIP) for _ in range(3))
    expected = [run(straight, 1, **changes) for changes in history]
    before = [run(first, 1, **changes) for changes in history[:cut]]
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert before + [run(second, 1, **changes) for changes in history[cut:]] == expected


def test_the_memory_of_other_detectors_is_refused() -> None:
    with pytest.raises(ValueError, match="kl_spike"):
        Monitor(DetectorConfig(), CLIP).load_state_dict({"astrology": {}})


@pytest.mark.parametrize("name", [f.name for f in fields(DetectorConfig) if f.name != "entropy_floors"])
@pytest.mark.parametrize("value", [-1, math.nan, math.inf])
def test_an_impossible_threshold_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"^{name} is .*allowed"):
        DetectorConfig(**{name: value})


def test_an_impossible_floor_is_refused_by_head() -> None:
    with pytest.raises(ValueError, match=r"entropy_floors\['op'\] is 2.*allowed: between 0 and 1"):
        DetectorConfig(entropy_floors={"op": 2})


def test_limits_without_an_end_are_told_in_words() -> None:
    with pytest.raises(ValueError, match=r"^kl_limit is 0; allowed: a positive finite number$"):
        DetectorConfig(kl_limit=0)
    with pytest.raises(ValueError, match=r"^patience is 0; allowed: a finite number from 1 on$"):
        DetectorConfig(patience=0)


@pytest.mark.ledger("TG2")
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0, 0.999))
def test_the_moving_average_equals_its_closed_form(values: list[float], decay: float) -> None:
    average = MovingAverage(decay)
    for value in values:
        average.update(value)
    weights = [decay ** (len(values) - 1 - i) for i in range(len(values))]
    expected = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
    assert average.mean == pytest.approx(expected, rel=1e-6, abs=1e-9)


@pytest.mark.ledger("TG2")
@given(st.floats(1e-6, 1e6), st.floats(0, 0.9999))
def test_the_first_value_is_the_first_average(value: float, decay: float) -> None:
    average = MovingAverage(decay)
    assert math.isnan(average.mean)
    average.update(value)
    assert average.mean == pytest.approx(value, rel=1e-9)


@pytest.mark.ledger("TG2")
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_non_finite_value_leaves_the_average_alone_and_is_counted(poison: float) -> None:
    average = MovingAverage(0.9)
    average.update(2.0)
    average.update(poison)
    assert (average.mean, average.rejected) == (pytest.approx(2.0), 1)


@pytest.mark.ledger("TG2")
def test_a_drift_is_noticed_within_a_few_updates_and_a_single_outlier_is_not() -> None:
    config = DetectorConfig(gradient_high=20.0, gradient_decay=0.9)
    monitor = Monitor(config, CLIP)
    run(monitor, 50)
    assert run(monitor, 1, grad_norm_pre=60.0) == []
    run(monitor, 50)
    assert len(run(monitor, 3, grad_norm_pre=60.0)) == 1


@pytest.mark.ledger("TG2")
def test_a_saved_average_continues_exactly() -> None:
    one, other = MovingAverage(0.7), MovingAverage(0.7)
    for value in (1.0, 5.0, math.nan):
        one.update(value)
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    one.update(3.0)
    other.update(3.0)
    assert (one.mean, one.rejected) == (other.mean, other.rejected)
