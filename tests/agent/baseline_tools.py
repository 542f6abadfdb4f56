"""What the tests of the scripted baselines share: one of each kind, and episodes to look at."""

from typing import Any

import numpy as np
from esper_agent.baselines.judging import GreedyScore, TryAndPrune
from esper_agent.baselines.oracle import Oracle, lesion_kinds
from esper_agent.baselines.published import North
from esper_agent.baselines.schedules import FixedSchedule, Planting
from esper_agent.baselines.scripted import Baseline, GrowEverything, GrowOnPlateau, NeverGrow, RandomLegal
from esper_agent.baselines.tuned import PUBLISHED
from esper_agent.evaluation.paired import make_test_env
from esper_env import Stage
from gymnasium.vector import VectorEnv
from quick_life import QUICK_LIFE

Env = VectorEnv[Any, Any, Any]
KINDS = (
    *(NeverGrow, GrowEverything, GrowOnPlateau, RandomLegal, GreedyScore, TryAndPrune, FixedSchedule, Oracle),
    *PUBLISHED.values(),
)


def quick_env(env_id: str, rows: int, **settings: Any) -> Env:
    """A test environment with QUICK_LIFE."""
    return make_test_env(env_id, rows, **QUICK_LIFE | settings)


def planting(step: int, slot: int, blueprint: int = 1, blend: int = 0, tempo: int = 0, incubation: int = 2) -> Planting:
    return Planting(step, slot, blueprint, blend, tempo, incubation)


def oracle_table(env: Env, **schedules: tuple[Planting, ...]) -> dict[str, tuple[Planting, ...]]:
    """Plants beside every lesioned block, unless said otherwise; "slot_0" stands for "slot 0"."""
    slots = env.unwrapped.simulation.schema.slots  # type: ignore[attr-defined]
    one, two = (planting(1, 0),), (planting(1, 0), planting(1, 1, blueprint=2))
    usual = dict.fromkeys(lesion_kinds(slots), one) | {"none": (), "two": two}
    return usual | {kind.replace("_", " "): schedule for kind, schedule in schedules.items()}


def one_of(kind: type[Baseline], env: Env) -> Baseline:
    """A baseline with constants that make it do all that it can."""
    if kind is FixedSchedule:
        return FixedSchedule(env, [planting(0, 2), planting(0, 0, tempo=1), planting(3, 1, blueprint=3, blend=2)])
    if kind is Oracle:
        return Oracle(env, oracle_table(env))
    if kind is GreedyScore:
        return GreedyScore(env, start=1, trials=3, incubation=3)
    if kind is North:
        return North(env, threshold=0.2)
    return TryAndPrune(env, start=1, seeds=2) if kind is TryAndPrune else kind(env)


def watched(baseline: Baseline, env: Env, seed: int = 0) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The actions and infos of one episode in every row."""
    observation, infos = env.reset(seed=seed)
    rows = env.num_envs
    actions, seen, state, ended = [], [infos], None, np.ones(rows, dtype=np.bool_)
    while len(actions) == 0 or not ended.all():
        action, state = baseline.predict(observation, state, ended, action_masks=infos)
        observation, _, ended, _, infos = env.step(action)
        actions.append(action)
        seen.append(infos)
    return actions, seen


def stages(env: Env) -> np.ndarray:
    """The stage of every slot, [n, slots]."""
    return env.unwrapped.simulation.state.stage.numpy()  # type: ignore[attr-defined]


def committed(env: Env) -> np.ndarray:
    """Where seeds are committed, [n, slots]."""
    return stages(env) == Stage.FOSSILIZED
