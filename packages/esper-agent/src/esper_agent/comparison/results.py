"""The finished runs of a study as arrays."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esper_agent.runs.directory import RunError

Floats = NDArray[np.float64]
Run = dict[str, Any]
OURS = "ours"
SCORES = {"discounted_return": "return", "test_accuracy": "test accuracy"}
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
        RunError: when there are none.
    """
    found = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(directory.glob("*_seed*.json"))]
    if not found:
        raise RunError(f"{directory} holds no finished runs")
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
