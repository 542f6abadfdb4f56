"""The monitor: runs every registered detector on every update."""

from typing import Any

from esper_agent.config import DetectorConfig
from esper_agent.diagnostics.alarms import Event
from esper_agent.diagnostics.detectors import DETECTORS
from esper_agent.diagnostics.metrics import Metrics


class Monitor:
    """All detectors, with their memory.

    Args:
        config: thresholds.
        max_grad_norm: the learner's clip norm, in whose multiples gradient limits are given.
    """

    def __init__(self, config: DetectorConfig, max_grad_norm: float) -> None:
        self.detectors = {name: detector(config, max_grad_norm) for name, detector in DETECTORS.items()}

    def check(self, metrics: Metrics) -> list[Event]:
        """The events of an update, from all detectors."""
        return [event for detector in self.detectors.values() for event in detector.check(metrics)]

    def state_dict(self) -> dict[str, Any]:
        """The memory of all detectors, for checkpoints."""
        return {name: detector.state_dict() for name, detector in self.detectors.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved memory.

        Raises:
            ValueError: when it is not the memory of these detectors.
        """
        if set(state) != set(self.detectors):
            raise ValueError(f"saved detectors are {sorted(state)}; expected {sorted(self.detectors)}")
        for name, detector in self.detectors.items():
            detector.load_state_dict(state[name])
