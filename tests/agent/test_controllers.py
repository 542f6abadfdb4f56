"""Scripted controllers do what they say, legally, and paired play gives every policy the same instances."""

from typing import Any

import numpy as np
import pytest
from esper_agent.baselines.controllers import Controller, GrowEverything, NeverGrow, PlateauRule, RandomLegal
from esper_agent.baselines.paired import make_test_env, play
from esper_env import Op, Stage
from gymnasium.vector import VectorEnv

ROWS = 4
CONTROLLERS = [NeverGrow, GrowEverything, PlateauRule, RandomLegal]


@pytest.fixture
def env() -> VectorEnv[Any, Any, Any]:
    return make_test_env("Esper-v0", ROWS, horizon=24)


def watched(controller: Controller, env: VectorEnv[Any, Any, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The actions and infos of one episode."""
    observation, infos = env.reset(seed=0)
    actions, seen, ended = [], [infos], np.zeros(ROWS, dtype=np.bool_)
    while not ended.all():
        action, _ = controller.predict(observation, action_masks=infos)
        observation, _, ended, _, infos = env.step(action)
        actions.append(action)
        seen.append(infos)
    return actions, seen


@pytest.mark.parametrize("kind", CONTROLLERS)
def test_every_action_is_legal(kind: type[Controller], env: VectorEnv[Any, Any, Any]) -> None:
    _, infos = watched(kind(env), env)
    assert not any(info["invalid_action"].any() for info in infos)


def test_never_grow_only_waits(env: VectorEnv[Any, Any, Any]) -> None:
    actions, infos = watched(NeverGrow(env), env)
    assert all((action["op"] == Op.WAIT).all() for action in actions)
    assert not infos[-1]["added_parameters"].any()


def test_grow_everything_commits_a_seed_in_every_slot(env: VectorEnv[Any, Any, Any]) -> None:
    watched(GrowEverything(env, blueprint=1), env)
    state = env.unwrapped.simulation.state  # type: ignore[attr-defined]
    assert bool((state.stage == Stage.FOSSILIZED).all())
    assert bool((state.blueprint == 1).all())


def test_the_plateau_rule_has_one_seed_on_its_way_at_most(env: VectorEnv[Any, Any, Any]) -> None:
    rule = PlateauRule(env, patience=0.04)
    observation, infos = env.reset(seed=0)
    grown = np.zeros(ROWS, dtype=np.int64)
    for _ in range(23):
        action, _ = rule.predict(observation, action_masks=infos)
        growing = action["op"] == Op.GERMINATE
        assert (rule.field(observation, "plateau")[growing] >= rule.patience).all()
        grown += growing
        observation, *_, infos = env.step(action)
        stages = (Stage.TRAINING, Stage.BLENDING, Stage.HOLDING)
        assert (sum(rule.in_stage(observation, stage).sum(axis=1) for stage in stages) <= 1).all()
    assert grown.any()


def test_random_legal_needs_masks(env: VectorEnv[Any, Any, Any]) -> None:
    observation, _ = env.reset(seed=0)
    with pytest.raises(ValueError, match="needs action_masks"):
        RandomLegal(env).predict(observation)


def test_policies_meet_the_same_instances(env: VectorEnv[Any, Any, Any]) -> None:
    first = play(NeverGrow(env), env, seed=5)
    play(GrowEverything(env), env, seed=5)
    again = play(NeverGrow(env), env, seed=5)
    np.testing.assert_array_equal(first.test_accuracy, again.test_accuracy)
    np.testing.assert_array_equal(first.episode_return, again.episode_return)
    assert not np.array_equal(first.test_accuracy, play(NeverGrow(env), env, seed=50).test_accuracy)
