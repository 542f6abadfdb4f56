"""Alarms: patience before one fires, hysteresis before it re-arms, escalation while it lasts."""

import sys
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How serious an event is."""

    WARNING = "warning"
    CRITICAL = "critical"


def say(severity: Severity, message: str) -> None:
    """Tell whoever sits at the console."""
    print(f"esper-agent: {severity}: {message}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Event:
    """An anomaly that a detector saw."""

    name: str
    step: int  # environment steps so far
    head: str | None  # the policy head it concerns, if it concerns one
    value: float
    threshold: float
    severity: Severity
    message: str


@dataclass
class Alarm:
    """Fires once when a condition has lasted, once more when it does not end, then waits for recovery."""

    streak: int = 0  # bad updates in a row while silent
    active: bool = False
    age: int = 0  # updates since it fired

    def update(
        self, *, bad: bool, recovered: bool, patience: int, escalate_after: int, urgent: bool = False
    ) -> Severity | None:
        """Advance by one update and say whether to speak."""
        if self.active:
            return self._last(recovered, escalate_after)
        self.streak = self.streak + 1 if bad else 0
        if self.streak < patience:
            return None
        self.active, self.age, self.streak = True, 0, 0
        return Severity.CRITICAL if urgent else Severity.WARNING

    def _last(self, recovered: bool, escalate_after: int) -> Severity | None:
        if recovered:
            self.active = False
            return None
        self.age += 1
        return Severity.CRITICAL if self.age == escalate_after else None
