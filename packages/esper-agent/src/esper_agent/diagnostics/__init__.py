"""Watching a training run: detectors that every update runs, and the measurements they rest on."""

from esper_agent.config import DetectorConfig
from esper_agent.diagnostics.alarms import Event, Severity, say
from esper_agent.diagnostics.detectors import DETECTORS, Detector
from esper_agent.diagnostics.gradients import ClipReport, clip_gradients, group_norms
from esper_agent.diagnostics.lstm import LstmHealth, lstm_health, lstm_summary
from esper_agent.diagnostics.monitor import Monitor
from esper_agent.diagnostics.ratios import RatioExtremes, ratio_extremes

__all__ = [
    "DETECTORS",
    "ClipReport",
    "Detector",
    "DetectorConfig",
    "Event",
    "LstmHealth",
    "Monitor",
    "RatioExtremes",
    "Severity",
    "clip_gradients",
    "group_norms",
    "lstm_health",
    "lstm_summary",
    "ratio_extremes",
    "say",
]
