"""The planner plays what was best among all that it tried, and leaves the environment alone while it tries."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from baseline_tools import Env, planting, quick_env, watched
from esper_agent.baselines.planner import Plan, Planner
from esper_agent.baselines.schedules import FixedSchedule
from esper_agent.baselines.tuned import make_baseline
from esper_agent.evaluation.episodes import play_episodes
from esper_agent.evaluation.paired import play
from esper_env import HEADS

ROWS, HORIZON = 3, 12


class FewPlans(Planner):
    """Tries one blueprint only, so that brute force is cheap."""

    def first_plans(self) -> list[Plan]:
        return [plan for plan in super().first_plans() if all(one.blueprint == 1 for one in plan)]


@pytest.fixture
def env() -> Env:
    return quick_env("Esper-v0", ROWS, horizon=HORIZON, lesion_weights=(0, 1, 0), rent=0.0, slot_rent=0.02)


def returns(plan: Plan, env: Env) -> Any:
    return play(FixedSchedule(env, plan), env, 5).discounted_return


def test_without_refinement_it_reaches_the_best_of_its_first_plans_in_every_instance(env: Env) -> None:
    planner = FewPlans(env, rounds=0, times=(0.0, 0.3), rows=7)  # plans do not fill whole batches
    assert len(planner.first_plans()) == 8
    brute = np.stack([returns(plan, env) for plan in planner.first_plans()])
    np.testing.assert_allclose(play(planner, env, 5).discounted_return, brute.max(axis=0), atol=1e-4)


def test_refinement_finds_what_no_first_plan_had(env: Env) -> None:
    first, refined = (play(FewPlans(env, rounds=rounds, times=(0.0,)), env, 5) for rounds in (0, 1))
    assert (refined.discounted_return >= first.discounted_return - 1e-4).all()
    assert refined.discounted_return.mean() > first.discounted_return.mean()


def test_refinements_differ_in_one_thing_and_can_be_committed_in_time(env: Env) -> None:
    planner = Planner(env)
    plan = (planting(3, 1), planting(4, 0))
    refinements = planner.refinements(plan)
    assert (plan[0],) in refinements
    assert (plan[1],) in refinements
    assert (
        *plan,
        planting(env.unwrapped.config.warmup_steps, 2, blueprint=3, incubation=planner.incubation),
    ) in refinements
    assert plan not in refinements
    assert len(set(refinements)) == len(refinements)
    changed = [other for other in refinements if len(other) == len(plan)]
    assert all(len(set(other) & set(plan)) == 1 for other in changed)
    assert {other[0].blend for other in changed} == {0, 1, 2}
    assert all(one.step + one.incubation + 3 + 1 < HORIZON for other in changed for one in other)


def test_planning_leaves_the_environment_as_it_is(env: Env) -> None:
    env.reset(seed=5)
    before = env.unwrapped.state.tensors()
    FewPlans(env, rounds=0).plan(np.arange(ROWS))
    for name, values in env.unwrapped.state.tensors().items():
        np.testing.assert_array_equal(values, before[name], err_msg=name)


@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_it_plans_anew_in_every_episode_of_a_row(mode: str) -> None:
    env = gymnasium.make_vec("Esper-v0", num_envs=2, horizon=HORIZON, autoreset_mode=mode)
    planner = FewPlans(env, rounds=0, times=(0.0,))
    planned: list[int] = []
    plan = planner.plan
    planner.plan = lambda rows: planned.extend(rows.tolist()) or plan(rows)  # type: ignore[method-assign]
    play_episodes(planner, env, episodes=4, seed=0)
    assert sorted(planned)[:4] == [0, 0, 1, 1]


def test_it_is_made_by_name_and_its_orders_are_legal(env: Env) -> None:
    planner = make_baseline("planner", env, {"rounds": 0, "times": [0.2]})
    actions, infos = watched(planner, env)
    assert set(actions[0]) == set(HEADS)
    assert not any(info["invalid_action"].any() for info in infos)
    assert env.unwrapped.state.added.sum() > 0


@pytest.mark.parametrize(("name", "value"), [("rounds", -1), ("times", (1.5,)), ("rows", 0)])
def test_constants_out_of_range_are_refused(name: str, value: Any, env: Env) -> None:
    with pytest.raises(ValueError, match=rf"{name} is .*; allowed"):
        Planner(env, **{name: value})
