"""Schedules are kept whatever happens, and the oracle plays the right one for each lesion."""

from typing import Any

import numpy as np
import pytest
from baseline_tools import Env, committed, oracle_table, planting, quick_env, stages, watched
from esper_agent.baselines.oracle import Oracle, lesion_kind, lesion_kinds, lesioned_first, lesions
from esper_agent.baselines.schedules import FixedSchedule
from esper_env import HEADS, Op, Stage

ROWS = 6
SCHEDULE = (planting(2, 1, blueprint=3, blend=2, tempo=1, incubation=3), planting(2, 0))


@pytest.fixture
def env() -> Env:
    return quick_env("Esper-v0", ROWS, horizon=20)


def orders(actions: list[dict[str, Any]], row: int = 0) -> dict[int, tuple[int, ...]]:
    """What a row was told in which step, without the waits."""
    table = [tuple(int(action[head][row]) for head in HEADS) for action in actions]
    return {step: order for step, order in enumerate(table) if order[0] != Op.WAIT}


def test_a_schedule_takes_the_first_free_steps_for_each_operation(env: Env) -> None:
    actions, infos = watched(FixedSchedule(env, SCHEDULE), env)
    assert orders(actions) == {
        2: (Op.GERMINATE, 1, 3, 2, 1),
        3: (Op.GERMINATE, 0, 1, 0, 0),
        5: (Op.ADVANCE, 1, 0, 0, 0),  # three steps after its germination
        6: (Op.ADVANCE, 0, 0, 0, 0),  # two steps after its own would be step 5, which is taken
        10: (Op.FOSSILIZE, 0, 0, 0, 0),  # a ramp of three, then one step of holding
        11: (Op.FOSSILIZE, 1, 0, 0, 0),  # a ramp of five
    }
    assert not any(info["invalid_action"].any() for info in infos)
    np.testing.assert_array_equal(committed(env), np.tile([True, True, False], (ROWS, 1)))


def test_a_schedule_does_not_look_at_the_host(env: Env) -> None:
    schedule = FixedSchedule(env, SCHEDULE)
    told, _ = watched(schedule, env, seed=0)
    elsewhere, _ = watched(schedule, env, seed=1000)
    for row in range(ROWS):
        assert orders(told, row) == orders(elsewhere, row) == orders(told, 0)


def test_a_schedule_ignores_every_number_but_the_time_and_what_is_legal(env: Env) -> None:
    schedule = FixedSchedule(env, SCHEDULE)
    heeded = [number for name, number in schedule.columns.items() if name == "progress" or ".stage[" in name]
    heeded += [number for name, number in schedule.columns.items() if ".may_" in name]
    rng = np.random.default_rng(0)
    observation, infos = env.reset(seed=0)
    for _ in range(15):
        noise = rng.random(observation.shape, dtype=np.float32)
        noise[:, heeded] = observation[:, heeded]
        seen, _ = schedule.predict(observation)
        noisy, _ = schedule.predict(noise)
        for head in HEADS:
            np.testing.assert_array_equal(seen[head], noisy[head])
        observation, *_, infos = env.step(seen)
    assert not infos["invalid_action"].any()


def test_a_schedule_waits_where_its_order_is_illegal(env: Env) -> None:
    observation, _ = env.reset(seed=0)
    schedule = FixedSchedule(env, [planting(0, 0)])
    taken = observation.copy()
    taken[0, schedule.columns["slot0.stage[0]"]], taken[0, schedule.columns["slot0.stage[5]"]] = 0.0, 1.0
    actions, _ = schedule.predict(taken)
    np.testing.assert_array_equal(actions["op"], [Op.WAIT] + [Op.GERMINATE] * (ROWS - 1))


def test_what_does_not_fit_into_the_horizon_is_left_out(env: Env) -> None:
    actions, _ = watched(FixedSchedule(env, [planting(16, 0)]), env)
    assert [order[0] for order in orders(actions).values()] == [Op.GERMINATE, Op.ADVANCE]
    assert not committed(env).any()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (planting(20, 0), "planting.step is 20; allowed: 0 to 19"),
        (planting(0, 3), "planting.slot is 3; allowed: 0 to 2"),
        (planting(0, 0, blueprint=-1), "planting.blueprint is -1; allowed: 0 to 4"),
        (planting(0, 0, incubation=1), "planting.incubation is 1; allowed: 2 to 20"),
    ],
)
def test_an_impossible_planting_is_refused(wrong: Any, message: str, env: Env) -> None:
    with pytest.raises(ValueError, match=message):
        FixedSchedule(env, [wrong])


def test_a_slot_is_planted_once(env: Env) -> None:
    with pytest.raises(ValueError, match=r"slots of a schedule are \[1, 1\]; allowed: each slot once"):
        FixedSchedule(env, [planting(0, 1), planting(9, 1)])


def test_kinds_of_lesion_name_every_lesion() -> None:
    lesioned = np.array([[0, 0, 0], [1, 0, 0], [0, 0, 1], [1, 0, 1], [0, 1, 1]], dtype=np.bool_)
    kinds = lesion_kinds(3)
    assert [kinds[number] for number in lesion_kind(lesioned)] == ["none", "slot 0", "slot 2", "two", "two"]
    np.testing.assert_array_equal(lesioned_first(lesioned), [[0, 1, 2], [0, 1, 2], [2, 0, 1], [0, 2, 1], [1, 2, 0]])


@pytest.mark.parametrize(("weights", "count"), [((1.0, 0.0, 0.0), 0), ((0.0, 1.0, 0.0), 1), ((0.0, 0.0, 1.0), 2)])
@pytest.mark.parametrize("env_id", ["Esper-v0", "Esper-Deep-v0", "Esper-CNN-v0"])
def test_the_oracle_grows_beside_lesioned_blocks_only(env_id: str, weights: Any, count: int) -> None:
    env = quick_env(env_id, 3, horizon=10, lesion_weights=weights)
    watched(Oracle(env, oracle_table(env)), env)
    assert (lesions(env).sum(axis=1) == count).all()
    np.testing.assert_array_equal(committed(env), lesions(env))


def test_the_oracle_plays_the_schedule_of_each_rows_kind(env: Env) -> None:
    table = oracle_table(env, slot_1=(planting(1, 0, blueprint=4),), none=(planting(1, 2, blueprint=0),))
    many = quick_env("Esper-v0", 40, horizon=12)
    watched(Oracle(many, table), many)
    lesioned, census = lesions(many), many.unwrapped.census  # type: ignore[attr-defined]
    kinds = [lesion_kinds(3)[number] for number in lesion_kind(lesioned)]
    assert set(kinds) == set(lesion_kinds(3))
    for row, kind in enumerate(kinds):
        planted = {
            slot: int(census.blueprint[row, slot]) for slot in np.flatnonzero(stages(many)[row] != Stage.DORMANT)
        }
        places = [2] if kind == "none" else np.flatnonzero(lesioned[row]).tolist()
        expected = {"none": [0], "slot 1": [4], "two": [1, 2]}.get(kind, [1])
        assert planted == dict(zip(places, expected, strict=True))


def test_the_oracle_needs_a_schedule_for_every_kind(env: Env) -> None:
    with pytest.raises(ValueError, match=r"keys \['none'\]; allowed: exactly"):
        Oracle(env, {"none": ()})


def test_the_oracle_plays_only_the_environment_that_it_knows(env: Env) -> None:
    observation, _ = env.reset(seed=0)
    with pytest.raises(ValueError, match=f"got 2 observations; its environment has {ROWS} rows"):
        Oracle(env, oracle_table(env)).predict(observation[:2])
