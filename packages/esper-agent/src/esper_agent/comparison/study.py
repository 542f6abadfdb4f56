"""A study: every agent with every seed, on the same terms."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
from esper_env.tasks.data import DataError

from esper_agent.baselines.agents import AGENTS
from esper_agent.comparison.participants import check_names, tuned_baseline
from esper_agent.comparison.processes import run_plans
from esper_agent.comparison.run import Plan
from esper_agent.evaluation.paired import make_test_env
from esper_agent.runs.directory import RunError


@dataclass(frozen=True)
class Study:
    """What is compared, and on which terms.

    Attributes:
        env_id: the environment.
        agents: names from `participants.NAMES`, of agents and of baselines.
        steps: environment steps that every agent may take; whole rollouts that fit in are trained.
        seeds: how often each agent is trained; a baseline plays once.
        rows: environments side by side while training, the same for all.
        episodes: held-out instances that each evaluation plays, the same for all.
        evaluations: how often, beside the one before training.
        env: arguments of the environment; those left out are its id's.
    """

    env_id: str
    agents: tuple[str, ...]
    steps: int = 100_000
    seeds: int = 5
    rows: int = 64
    episodes: int = 128
    evaluations: int = 12
    env: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("steps", "seeds", "rows", "episodes", "evaluations"):
            if getattr(self, name) < 1:
                raise RunError(f"{name} is {getattr(self, name)}; allowed: integers from 1 on")
        check_names(self.agents)

    def plans(self) -> list[Plan]:
        """All runs: seed by seed, so that a change of the machine's load meets all agents alike."""
        return [
            self._plan(agent, seed)
            for seed in range(self.seeds)
            for agent in self.agents
            if agent in AGENTS or seed == 0
        ]

    def _plan(self, agent: str, seed: int) -> Plan:
        settings = AGENTS[agent].settings(self.env_id) if agent in AGENTS else {}
        rollout = self.rows * settings["n_steps"] if settings else 1
        steps = self.steps // rollout * rollout if settings else 0
        if settings and not steps:
            raise RunError(f"steps is {self.steps}; allowed: at least one rollout, which is {rollout} of {agent}")
        return Plan(self.env_id, agent, seed, steps, self.rows, self.episodes, self.evaluations, settings, env=self.env)


def run_study(study: Study, directory: Path, jobs: int, report: Callable[[str], None] = print) -> None:
    """Carry out all runs that are not finished yet.

    Args:
        study: what to run.
        directory: where the result of each run goes.
        jobs: how many runs at a time.
        report: takes a line about each run.

    Raises:
        RunError: when the environment cannot be made, the directory holds other runs, or a run failed.
    """
    plans = study.plans()
    _check_env(study)
    run_plans({directory / f"{plan.agent}_seed{plan.seed}.json": plan for plan in plans}, jobs, report)


def _check_env(study: Study) -> None:
    """Check that the environment, whose data may be missing, and the baselines in it can be made."""
    try:
        env = make_test_env(study.env_id, 1, **study.env)
    except (ValueError, TypeError, RuntimeError, OSError, ImportError, DataError, gymnasium.error.Error) as error:
        raise RunError(f"cannot compare agents in {study.env_id}: {error}") from error
    for name in study.agents:
        if name not in AGENTS:
            tuned_baseline(name, study.env_id, env)
    env.close()
