"""The detectors, and the registry of all of them that every update runs."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from esper_agent.config import DetectorConfig
from esper_agent.diagnostics.alarms import Alarm, Event
from esper_agent.diagnostics.metrics import Metrics, by_label
from esper_agent.diagnostics.smoothing import MovingAverage

DETECTORS: dict[str, type["Detector"]] = {}


@dataclass(frozen=True)
class Reading:
    """A measured value beside its threshold."""

    value: float
    threshold: float
    bad: bool
    recovered: bool
    message: str
    head: str | None = None
    urgent: bool = False  # critical at first sight


class Detector(ABC):
    """Turns the readings of an update into events; a subclass says what to read."""

    name: ClassVar[str]
    patient: ClassVar[bool]  # whether the condition must last for `config.patience` updates

    def __init_subclass__(cls) -> None:
        DETECTORS[cls.name] = cls

    def __init__(self, config: DetectorConfig, max_grad_norm: float) -> None:
        self.config = config
        self.max_grad_norm = max_grad_norm
        self.alarms: dict[str, Alarm] = {}

    @abstractmethod
    def readings(self, metrics: Metrics) -> Iterator[Reading]:
        """What this update showed; a head that cannot be judged gives no reading."""

    def check(self, metrics: Metrics) -> list[Event]:
        """The events of this update."""
        return [
            event for reading in self.readings(metrics) if (event := self._judge(reading, int(metrics["env_steps"])))
        ]

    def _judge(self, reading: Reading, step: int) -> Event | None:
        alarm = self.alarms.setdefault(reading.head or "", Alarm())
        severity = alarm.update(
            bad=reading.bad,
            recovered=reading.recovered,
            patience=self.config.patience if self.patient else 1,
            escalate_after=self.config.escalate_after,
            urgent=reading.urgent,
        )
        if severity is None:
            return None
        return Event(self.name, step, reading.head, reading.value, reading.threshold, severity, reading.message)

    def _above(self, value: float, limit: float, message: str, head: str | None = None) -> Reading:
        """A reading that is bad above its limit; NaN is bad."""
        recovered = value <= limit / self.config.recovery
        return Reading(value, limit, not value <= limit, recovered, message, head)

    def _below(self, value: float, limit: float, message: str, head: str | None = None) -> Reading:
        """A reading that is bad below its limit; NaN is bad."""
        recovered = value >= limit * self.config.recovery
        return Reading(value, limit, not value >= limit, recovered, message, head)

    def state_dict(self) -> dict[str, Any]:
        """The state, for checkpoints."""
        return {"alarms": {key: asdict(alarm) for key, alarm in self.alarms.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state."""
        self.alarms = {key: Alarm(**alarm) for key, alarm in state["alarms"].items()}


class EntropyCollapse(Detector):
    """A head whose policy has become deterministic where it had a choice."""

    name = "entropy_collapse"
    patient = True

    def readings(self, metrics: Metrics) -> Iterator[Reading]:
        """One reading for each head that had a choice often enough."""
        entropies, available = by_label(metrics, "entropy"), by_label(metrics, "entropy_available")
        unknown = sorted(set(self.config.entropy_floors) - set(entropies))
        if unknown:
            raise ValueError(f"entropy_floors names {unknown}; the policy's heads are {sorted(entropies)}")
        for head, entropy in entropies.items():
            if available[head] >= self.config.min_choice_share:
                floor = self.config.entropy_floors.get(head, self.config.entropy_floor)
                message = f"entropy of head {head} is {entropy:.3g}, its floor is {floor:g}"
                yield self._below(entropy, floor, message, head)


class KlSpike(Detector):
    """A minibatch that saw the policy far from the one that collected the data."""

    name = "kl_spike"
    patient = False

    def readings(self, metrics: Metrics) -> Iterator[Reading]:
        """The worst minibatch's KL."""
        limit = self.config.kl_limit * self.config.slack(metrics["rollouts"])
        kl = metrics["exact_kl_max"]
        yield self._above(kl, limit, f"KL of a minibatch reached {kl:.3g}, the limit is {limit:g}")


class RatioExplosion(Detector):
    """A step whose probability changed beyond reason, jointly or in one head."""

    name = "ratio_explosion"
    patient = False

    def readings(self, metrics: Metrics) -> Iterator[Reading]:
        """The joint policy, then each head."""
        limit = self.config.log_ratio_limit * self.config.slack(metrics["rollouts"])
        by_head, step = by_label(metrics, "head_log_ratios"), int(metrics["ratio_worst_index"])
        worst, joint = max(by_head, key=lambda head: by_head[head]), metrics["max_abs_log_ratio"]
        where = f"worst head {worst}, step {step} of the rollout"
        yield self._above(joint, limit, f"joint |log-ratio| reached {joint:.3g}, limit {limit:g}; {where}")
        for head, value in by_head.items():
            at = f" at step {step}" if head == worst else ""
            message = f"|log-ratio| of head {head} reached {value:.3g}{at}, limit {limit:g}"
            yield self._above(value, limit, message, head)


class ValueCollapse(Detector):
    """A critic that gives the same value everywhere while returns differ."""

    name = "value_collapse"
    patient = True

    def readings(self, metrics: Metrics) -> Iterator[Reading]:
        """The values' spread beside the returns'; nothing to judge when returns do not differ."""
        values, returns = metrics["value_std"], metrics["return_std"]
        if returns == 0:
            return
        limit = self.config.value_std_share * returns / self.config.slack(metrics["rollouts"])
        yield self._below(values, limit, f"values spread by {values:.3g}, returns by {returns:.3g}")


class NonFinite(Detector):
    """NaN or infinity in losses, gradients or statistics."""

    name = "nonfinite"
    patient = False

    def readings(self, metrics: Metrics) -> Iterator[Reading]:
        """The count, and which statistics are affected."""
        # The explained variance is undefined, not wrong, when all returns are equal or no episode has ended.
        judged = metrics.keys() - {"explained_variance", "explained_variance_monte_carlo"}
        affected = sorted(name for name in judged if not math.isfinite(metrics[name]))
        count = max(int(metrics["nonfinite"]), len(affected))
        named = f" (in {', '.join(affected)})" if affected else ""
        yield Reading(count, 0.0, count > 0, count == 0, f"{count} non-finite values{named}", urgent=True)


class GradientDrift(Detector):
    """A smoothed gradient norm that has left the band around the clip norm."""

    name = "gradient_drift"
    patient = False

    def __init__(self, config: DetectorConfig, max_grad_norm: float) -> None:
        super().__init__(config, max_grad_norm)
        self.norm = MovingAverage(config.gradient_decay)

    def readings(self, metrics: Metrics) -> Iterator[Reading]:
        """The smoothed norm against its nearer bound; nothing to judge before the first finite norm."""
        self.norm.update(metrics["grad_norm_pre"])
        mean, slack = self.norm.mean, self.config.slack(metrics["rollouts"])
        if math.isnan(mean):
            return
        high = self.config.gradient_high * self.max_grad_norm * slack
        low = self.config.gradient_low * self.max_grad_norm / slack
        message = f"gradient norm averages {mean:.3g}, expected {low:.3g} to {high:.3g}"
        above, below = self._above(mean, high, message), self._below(mean, low, message)
        nearer = above if mean >= math.sqrt(low * high) else below
        yield nearer

    def state_dict(self) -> dict[str, Any]:
        """The state, for checkpoints."""
        return {**super().state_dict(), "norm": self.norm.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state."""
        super().load_state_dict(state)
        self.norm.load_state_dict(state["norm"])


class LstmSaturation(Detector):
    """A memory whose units are stuck at their limits, so that they neither learn nor remember."""

    name = "lstm_saturation"
    patient = True

    def readings(self, metrics: Metrics) -> Iterator[Reading]:
        """The share of saturated units, of a policy that has a memory."""
        if "lstm_saturation" not in metrics:
            return
        limit = min(1.0, self.config.lstm_saturation_share * self.config.slack(metrics["rollouts"]))
        share = metrics["lstm_saturation"]
        yield self._above(share, limit, f"{share:.0%} of hidden units are saturated, the limit is {limit:.0%}")


class LstmSilence(Detector):
    """A memory that carries nothing."""

    name = "lstm_silence"
    patient = True

    def readings(self, metrics: Metrics) -> Iterator[Reading]:
        """The size of the hidden state, of a policy that has a memory."""
        if "lstm_rms" not in metrics:
            return
        floor = self.config.lstm_rms_floor / self.config.slack(metrics["rollouts"])
        rms = metrics["lstm_rms"]
        yield self._below(rms, floor, f"hidden state has RMS {rms:.3g}, its floor is {floor:.3g}")
