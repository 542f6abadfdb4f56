"""A study: every agent with every seed, on the same terms."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
from esper_env.config import INSTANCE_SETS
from esper_env.tasks.data import DataError

from esper_agent.comparison.arms import Arm, parse_arm
from esper_agent.comparison.participants import check_arms, finished_policy
from esper_agent.comparison.processes import run_plans
from esper_agent.comparison.run import Plan
from esper_agent.evaluation.paired import make_test_env
from esper_agent.runs.directory import RunError, find_checkpoint

HELD_OUT = INSTANCE_SETS[1:]  # from training


@dataclass(frozen=True)
class Study:
    """What is compared, and on which terms.

    Attributes:
        env_id: the environment.
        agents: labels of arms.
        steps: environment steps that every agent may take; whole rollouts that fit in are trained.
        seeds: how often each agent is trained; everyone else plays once.
        rows: environments side by side while training, the same for all.
        episodes: held-out instances that each evaluation plays, the same for all.
        evaluations: how often, beside the one before training.
        env: arguments of the environment; those left out are its id's.
        instances: which set of them evaluations draw from.
    """

    env_id: str
    agents: tuple[str, ...]
    steps: int = 100_000
    seeds: int = 5
    rows: int = 64
    episodes: int = 128
    evaluations: int = 12
    env: dict[str, Any] = field(default_factory=dict)
    instances: str = "test"

    def __post_init__(self) -> None:
        for name in ("steps", "seeds", "rows", "episodes", "evaluations"):
            if getattr(self, name) < 1:
                raise RunError(f"{name} is {getattr(self, name)}; allowed: integers from 1 on")
        if self.instances not in HELD_OUT:
            raise RunError(f"instances is {self.instances!r}; allowed: {', '.join(HELD_OUT)}")
        check_arms(self.agents)

    def plans(self) -> list[Plan]:
        """All runs: seed by seed, so that a change of the machine's load meets all agents alike."""
        arms = [parse_arm(label) for label in self.agents]
        return [self._plan(arm, seed) for seed in range(self.seeds) for arm in arms if arm.spec or seed == 0]

    def settings(self, arm: Arm) -> dict[str, Any]:
        """Those of its name for this environment, with its own in their place; the checkpoint of one trained before."""
        if arm.trained:  # so that the result of another checkpoint is not taken for it
            return {"checkpoint": find_checkpoint(Path(arm.name), trusted=False)[1].name}
        return {**(arm.spec.settings(self.env_id) if arm.spec else {}), **arm.settings}

    def _plan(self, arm: Arm, seed: int) -> Plan:
        settings = self.settings(arm)
        rollout = self.rows * settings["n_steps"] if arm.spec else 1
        steps = self.steps // rollout * rollout if arm.spec else 0
        if arm.spec and not steps:
            raise RunError(f"steps is {self.steps}; allowed: at least one rollout, which is {rollout} of {arm.label}")
        terms = (self.rows, self.episodes, self.evaluations, settings, self.instances, self.env)
        return Plan(self.env_id, arm.label, seed, steps, *terms)


def run_study(
    study: Study, directory: Path, jobs: int, report: Callable[[str], None] = print, cluster: str | None = None
) -> None:
    """Carry out all runs that are not finished yet.

    Args:
        study: what to run.
        directory: where the result of each run goes.
        jobs: how many runs at a time.
        report: takes a line about each run.
        cluster: address of a Dask scheduler whose workers carry them out.

    Raises:
        RunError: when the environment cannot be made, the directory holds other runs, or a run failed.
    """
    _check_env(study)
    plans = {directory / parse_arm(plan.agent).file_name(plan.seed): plan for plan in study.plans()}
    run_plans(plans, jobs, report, cluster)


def _check_env(study: Study) -> None:
    """Check that the environment, whose data may be missing, and everyone in it can be made."""
    try:
        env = make_test_env(study.env_id, 1, **study.env)
    except (ValueError, TypeError, RuntimeError, OSError, ImportError, DataError, gymnasium.error.Error) as error:
        raise RunError(f"cannot compare agents in {study.env_id}: {error}") from error
    for arm in map(parse_arm, study.agents):
        if not arm.spec:
            finished_policy(arm.label, study.env_id, env)
        elif arm.settings:
            _check_settings(study, arm)
    env.close()


def _check_settings(study: Study, arm: Arm) -> None:
    """Build an agent with settings of its own once: nobody else knows all values that are allowed."""
    assert arm.spec
    try:
        arm.spec.make(study.env_id, study.rows, 0, study.settings(arm), study.env)
    except (ValueError, TypeError, AssertionError, KeyError) as error:
        raise RunError(f"{arm.label}: {error}") from error
