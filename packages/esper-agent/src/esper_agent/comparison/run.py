"""One run of a comparison: train an agent, examine it on the way, write everything down.

python -m esper_agent.comparison.run PLAN_AS_JSON RESULT_FILE
"""

import json
import sys
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import esper_env  # noqa: F401  (registers its environments)
import numpy as np
import torch
from esper_env.files import replace_text
from gymnasium.vector import VectorEnv

from esper_agent.baselines.paired import Episodes, make_test_env, play
from esper_agent.baselines.recipes import RECIPES
from esper_agent.comparison.contestants import control
from esper_agent.comparison.examiner import DECIMALS, EVALUATION_SEED, Examiner, means
from esper_agent.runs.directory import PACKAGES

Curve = list[dict[str, float]]


@dataclass(frozen=True)
class Plan:
    """Everything that a run is made of.

    Attributes:
        env_id: the environment.
        agent: a name from `contestants.NAMES`.
        seed: seed of the agent and of its training instances.
        steps: environment steps, a whole number of rollouts; 0 for a scripted control.
        rows: environments side by side while training.
        episodes: instances that each evaluation plays.
        evaluations: how often, beside the one before training.
        settings: all settings of the agent.
        instances: which set of instances evaluations draw from, "test" or, to choose settings, "train".
    """

    env_id: str
    agent: str
    seed: int
    steps: int
    rows: int
    episodes: int
    evaluations: int
    settings: dict[str, Any] = field(default_factory=dict)
    instances: str = "test"


def carry_out(plan: Plan) -> dict[str, Any]:
    """Run a plan; the result is plain data."""
    env = make_test_env(plan.env_id, plan.episodes, instances=plan.instances)
    curve, episodes = _train(plan, env) if plan.agent in RECIPES else _play(plan, env)
    return {
        "plan": asdict(plan),
        "curve": curve,
        "episodes": {name: np.round(values, DECIMALS).tolist() for name, values in asdict(episodes).items()},
        "threads": torch.get_num_threads(),
        "versions": {name: found for name in (*PACKAGES, "sb3-contrib") if (found := _version(name))},
    }


def _train(plan: Plan, env: VectorEnv[Any, Any, Any]) -> tuple[Curve, Episodes]:
    student = RECIPES[plan.agent].make(plan.env_id, plan.rows, plan.seed, plan.settings)
    examiner = Examiner(student, env, plan.steps, plan.evaluations)
    student.train(plan.steps, examiner)
    return examiner.curve, examiner.examine()


def _play(plan: Plan, env: VectorEnv[Any, Any, Any]) -> tuple[Curve, Episodes]:
    episodes = play(control(plan.agent, plan.env_id, env), env, EVALUATION_SEED)
    return [{"step": 0, "seconds": 0.0, "cpu_seconds": 0.0, **means(episodes)}], episodes


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def main(arguments: list[str]) -> None:
    """Carry out the plan of the command line on one thread, so that no agent gains by having more."""
    torch.set_num_threads(1)
    plan, file = Plan(**json.loads(arguments[0])), Path(arguments[1])
    replace_text(file, json.dumps(carry_out(plan)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
