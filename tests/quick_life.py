"""Lifecycle times that let seeds be planted at once and pruned soon, for tests with short episodes."""

from typing import Any

QUICK_LIFE: dict[str, Any] = {"warmup_steps": 0, "prune_age": 1, "embargo_steps": 2}
