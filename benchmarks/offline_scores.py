"""Scores of benchmarks/offline.py: shares of the oracle's gain, with intervals over seeds and instances."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from common import RESULTS
from numpy.typing import NDArray

REPLICATIONS = 2_000
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scores:
    """Discounted returns of an agent and of rules in the same instances, [seeds, instances] each."""

    own: Floats
    never: Floats
    plateau: Floats
    oracle: Floats

    def share(self, rng: np.random.Generator | None = None) -> float:
        """Of the oracle's gain; with a generator, of seeds and instances that are drawn."""
        own, never, _, oracle = self.means(rng)
        return (own - never) / (oracle - never)

    def above_plateau(self, rng: np.random.Generator | None = None) -> float:
        """The return above the plateau rule's."""
        own, _, plateau, _ = self.means(rng)
        return own - plateau

    def by_seed(self) -> list[float]:
        """The share of each seed."""
        never, gain = self.never.mean(), self.oracle.mean() - self.never.mean()
        return [float((one.mean() - never) / gain) for one in self.own]

    def means(self, rng: np.random.Generator | None) -> list[float]:
        """Of all four; seeds are drawn for each, instances for all alike."""
        samples = (self.own, self.never, self.plateau, self.oracle)
        if rng is None:
            return [float(one.mean()) for one in samples]
        instances = rng.integers(self.own.shape[1], size=self.own.shape[1])
        return [float(one[rng.integers(len(one), size=len(one))][:, instances].mean()) for one in samples]


def estimate(statistic: Callable[[np.random.Generator | None], float]) -> dict[str, float]:
    """A statistic and the ends of its interval; given a generator, it draws seeds and instances anew."""
    rng = np.random.default_rng(0)
    low, high = np.quantile([statistic(rng) for _ in range(REPLICATIONS)], (0.025, 0.975))
    return {"point": statistic(None), "low": float(low), "high": float(high)}


def published(env_id: str) -> tuple[Scores, list[list[dict[str, float]]]]:
    """The agents that were trained from scratch beside the rules of that study, and their curves."""
    found = {
        name: [
            json.loads(file.read_text(encoding="utf-8"))
            for file in sorted((RESULTS / f"compare_agents_{env_id}").glob(f"{name}_seed*.json"))
        ]
        for name in ("ours", "never", "plateau", "oracle")
    }
    returns = (np.array([one["episodes"]["discounted_return"] for one in runs]) for runs in found.values())
    curves = [[{"steps": p["step"], "return": p["discounted_return"]} for p in one["curve"]] for one in found["ours"]]
    return Scores(*returns), curves


def figures(scores: Scores) -> dict[str, Any]:
    """What can be said of any agent."""
    return {
        "return": estimate(lambda rng: scores.means(rng)[0]),
        "share": estimate(scores.share),
        "by_seed": scores.by_seed(),
        "above_plateau": estimate(lambda rng: scores.above_plateau(rng)),
    }


def share(returns: Any, rules: dict[str, float]) -> Any:
    """Of the oracle's gain."""
    return (returns - rules["never"]) / (rules["oracle"] - rules["never"])
