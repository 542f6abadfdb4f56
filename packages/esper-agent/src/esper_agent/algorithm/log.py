"""The log of an update: its metrics under SB3's names and ours, and what the diagnostics said."""

from collections.abc import Sequence
from dataclasses import asdict

from stable_baselines3.common.logger import Logger

from esper_agent.diagnostics.alarms import Event
from esper_agent.diagnostics.metrics import Metrics, by_label


def record_update(logger: Logger, metrics: Metrics, hosts: Metrics, events: Sequence[Event]) -> None:
    """Put an update, and what the hosts did before it, on record."""
    for name, value in hosts.items():
        logger.record(name, value)
    for name, value in metrics.items():
        logger.record(f"train/{name}", float(value))
    logger.record("train/entropy_loss", -sum(by_label(metrics, "entropy").values()))
    logger.record("train/policy_gradient_loss", metrics["policy_loss"])
    logger.record("train/n_updates", metrics["optimizer_steps"], exclude="tensorboard")
    for event in events:
        logger.record(f"diagnostics/{event.name}", event.value)
    if events:
        # Numbers alone do not say which head, how serious, or why; only JSON lines can hold the whole event.
        whole = [asdict(event) for event in events]
        logger.record("diagnostics/events", whole, exclude=("stdout", "log", "csv", "tensorboard"))
