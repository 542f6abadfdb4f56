"""One run of a comparison: train an agent, evaluate it on the way, give everything as plain data."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import esper_env  # noqa: F401  (registers its environments)
import numpy as np
import torch

from esper_agent.baselines.agents import AgentSpec
from esper_agent.comparison.arms import parse_arm
from esper_agent.comparison.participants import finished_policy
from esper_agent.evaluation import EvalCallback
from esper_agent.evaluation.episodes import Env
from esper_agent.evaluation.paired import GrowthEpisodes, make_test_env, play
from esper_agent.evaluation.strata import traits
from esper_agent.runs.directory import PACKAGES

EVALUATION_SEED = 10_000  # the same instances in every evaluation
DECIMALS = 6
Curve = list[dict[str, float]]


@dataclass(frozen=True)
class Plan:
    """Everything that a run is made of.

    Attributes:
        env_id: the environment.
        agent: the label of an arm.
        seed: seed of the agent and of its training instances.
        steps: environment steps, a whole number of rollouts; 0 for a policy that is finished.
        rows: environments side by side while training.
        episodes: instances that each evaluation plays.
        evaluations: how often, beside the one before training.
        settings: all settings of the agent.
        instances: which set of instances evaluations draw from: "test", or "validation" to choose settings.
        env: arguments of the environment; those left out are its id's.
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
    env: dict[str, Any] = field(default_factory=dict)


def carry_out(plan: Plan) -> dict[str, Any]:
    """Run a plan; the result is plain data."""
    env, spec = make_env(plan), parse_arm(plan.agent).spec
    curve, episodes = train(spec, plan, env) if spec else _play(plan, env)
    return {
        "plan": asdict(plan),
        "curve": [{name: round(value, DECIMALS) for name, value in point.items()} for point in curve],
        "episodes": {name: np.round(values, DECIMALS).tolist() for name, values in asdict(episodes).items()},
        "traits": traits(env),
        "threads": torch.get_num_threads(),
        "versions": versions(),
    }


def make_env(plan: Plan) -> Env:
    """Where a plan's evaluations play."""
    return make_test_env(plan.env_id, plan.episodes, **plan.env, instances=plan.instances)


def versions() -> dict[str, str]:
    """Of everything that a result depends on and that is installed."""
    return {name: found for name in (*PACKAGES, "sb3-contrib") if (found := _version(name))}


def train(
    spec: AgentSpec, plan: Plan, env: Env, told: Callable[[Mapping[str, float]], None] | None = None
) -> tuple[Curve, GrowthEpisodes]:
    """Train an agent by a plan; gives the learning curve and the last evaluation.

    Args:
        spec: of the agent.
        plan: the plan.
        env: from `make_env`.
        told: is given the means of every evaluation; what it raises ends the training.
    """
    agent = spec.make(plan.env_id, plan.rows, plan.seed, plan.settings, plan.env)
    played: list[GrowthEpisodes] = []

    def measure() -> dict[str, float]:
        played.append(play(agent, env, EVALUATION_SEED))
        means = played[-1].means()
        if told:
            told(means)
        return means

    steps = [plan.steps * part // plan.evaluations for part in range(plan.evaluations)]
    callback = EvalCallback(env, eval_at=steps, measure=measure)
    agent.train(plan.steps, callback)
    callback.evaluate()
    return callback.curve, played[-1]


def _play(plan: Plan, env: Env) -> tuple[Curve, GrowthEpisodes]:
    episodes = play(finished_policy(plan.agent, plan.env_id, env), env, EVALUATION_SEED)
    return [{"step": 0, "seconds": 0.0, "cpu_seconds": 0.0, **episodes.means()}], episodes


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
