"""The finished runs of a study as arrays."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from esper_agent.evaluation.episodes import Flags, Floats
from esper_agent.evaluation.statistics import Estimate, hierarchical_iqm
from esper_agent.evaluation.strata import groups
from esper_agent.runs.directory import RunError

Run = dict[str, Any]
OURS, NEVER, ORACLE = "ours", "never", "oracle"
SCORES = {"discounted_return": "return", "test_accuracy": "test accuracy"}
SHARED = ("env_id", "instances", "episodes", "env")  # or the instances of two runs are not the same
AXES = {"step": "environment steps", "seconds": "seconds of training"}


@dataclass(frozen=True)
class Results:
    """The runs of each agent by name, seed by seed; all of one environment."""

    runs: dict[str, list[Run]]

    @property
    def learners(self) -> list[str]:
        """The agents that were trained."""
        return [agent for agent, runs in self.runs.items() if runs[0]["plan"]["steps"]]

    @property
    def ours(self) -> str:
        """Who the others stand against: our agent as it is, or the first with other settings; empty without any."""
        return next((agent for agent in self.runs if _name(agent) == OURS), "")

    @property
    def plan(self) -> dict[str, Any]:
        """The terms that all runs share."""
        agent = (self.learners or list(self.runs))[0]
        plan: dict[str, Any] = self.runs[agent][0]["plan"]
        return plan

    @property
    def strata(self) -> dict[str, Flags]:
        """The instances of each stratum; none where runs of an earlier version did not write them down."""
        return groups(next(iter(self.runs.values()))[0].get("traits", {}))

    def has(self, measure: str) -> bool:
        """Whether all runs measured it."""
        return all(measure in run["episodes"] for runs in self.runs.values() for run in runs)

    def settings(self, agent: str) -> dict[str, Any]:
        """The settings that an agent was trained with."""
        settings: dict[str, Any] = self.runs[agent][0]["plan"]["settings"]
        return settings

    def final(self, agent: str, measure: str) -> Floats:
        """How every seed did in every held-out instance at the end, [seeds, instances]."""
        return np.array([run["episodes"][measure] for run in self.runs[agent]])

    def scores(self, agent: str, measure: str) -> Floats:
        """The mean over the instances, [seeds]."""
        means: Floats = self.final(agent, measure).mean(axis=1)
        return means

    def iqm(self, agent: str, measure: str, of: Flags | None = None) -> Estimate:
        """Interquartile mean at the end over seeds; the interval is over seeds and instances, or those of a stratum."""
        scores = self.final(agent, measure)
        return self.judged(agent, hierarchical_iqm(scores if of is None else scores[:, of]))

    def share(self, score: float, measure: str, of: Flags | None = None) -> float:
        """How much of the oracle's gain over never growing a score is; not a number where there is no such gain."""
        if not {NEVER, ORACLE} <= set(self.runs):
            return float("nan")
        never, oracle = (self.iqm(name, measure, of).point for name in (NEVER, ORACLE))
        return (score - never) / (oracle - never) if oracle > never else float("nan")

    def judged(self, agent: str, found: Estimate) -> Estimate:
        """An estimate without its interval if the agent was trained only once, which shows nothing."""
        return Estimate(found.point) if agent in self.learners and len(self.runs[agent]) < 2 else found

    def curve(self, agent: str, axis: str, measure: str, grid: Floats) -> Floats:
        """A measure on the way, linear between evaluations, [seeds, points of the grid]."""
        return np.array([np.interp(grid, *_points(run, axis, measure)) for run in self.runs[agent]])

    def pairs(self, agent: str, other: str) -> tuple[list[int], list[int]]:
        """Which runs of two agents stand against each other: those of one seed; a baseline meets every seed."""
        seeds = [[run["plan"]["seed"] for run in self.runs[name]] for name in (agent, other)]
        if other not in self.learners:
            return list(range(len(seeds[0]))), [0] * len(seeds[0])
        both = [seed for seed in seeds[0] if seed in seeds[1]]
        return [seeds[0].index(seed) for seed in both], [seeds[1].index(seed) for seed in both]

    def end(self, agent: str, axis: str) -> float:
        """Where the curves of an agent end on an axis, the median over seeds."""
        return float(np.median([run["curve"][-1][axis] for run in self.runs[agent]]))

    def speed(self, agent: str, clock: str) -> float:
        """Environment steps per second of training by a clock, "seconds" or "cpu_seconds": the median over seeds."""
        ends = [run["curve"][-1] for run in self.runs[agent]]
        return float(np.median([end["step"] / end[clock] for end in ends]))


def _points(run: Run, axis: str, measure: str) -> tuple[list[float], list[float]]:
    return [point[axis] for point in run["curve"]], [point[measure] for point in run["curve"]]


def read_results(directory: Path) -> Results:
    """All finished runs of a directory.

    Raises:
        RunError: when there are none, or when they did not play the same instances.
    """
    found: list[Run] = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(directory.glob("*_seed*.json"))]
    if not found:
        raise RunError(f"{directory} holds no finished runs")
    for name in SHARED:
        if other := next((run for run in found if run["plan"].get(name) != found[0]["plan"].get(name)), None):
            both = [run["plan"].get(name) for run in (found[0], other)]
            raise RunError(f"{directory} holds runs whose {name} is {both[0]!r} and {both[1]!r}; allowed: the same")
    runs: dict[str, list[Run]] = {}
    for run in sorted(found, key=lambda run: (_rank(run), run["plan"]["agent"], run["plan"]["seed"])):
        runs.setdefault(run["plan"]["agent"], []).append(run)
    return Results(runs)


def _rank(run: Run) -> int:
    """Our agent first, with other settings next, then the other learners, baselines last."""
    label, learns = run["plan"]["agent"], bool(run["plan"]["steps"])
    return 0 if label == OURS else 1 if _name(label) == OURS else 2 if learns else 3


def _name(label: str) -> str:
    """Of an arm, without its settings; they may be those of another version."""
    return label.partition(":")[0]
