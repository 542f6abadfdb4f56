"""Branching: a copy of a row goes on as the row that it was copied from, in its place bit for bit."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from env_tools import IDS, TINY, assert_same, batch, legal_action, tiny
from esper_env import EsperVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

RUGGED = {"learning_rate": (0.02, 3.0), "horizon": 14, "max_rollbacks": 3, "training_steps": 1}
FAMILIES = [(0, 3, 5), (1,), (2, 7), (4, 6)]  # rows that are copies of each other


def play(env: EsperVectorEnv, start: int, stop: int, families: Any = ()) -> list[dict[str, Any]]:
    """Legal random play in which all rows of a family do what its first row does."""
    leader = {row: family[0] for family in families for row in family}
    results = []
    for number in range(start, stop):
        by_op = env.legality()["action_mask_by_op"]
        drawn = [legal_action(by_op, row, np.random.default_rng((number, row))) for row in range(env.num_envs)]
        observation, *result, infos = env.step(batch([drawn[leader.get(row, row)] for row in range(env.num_envs)]))
        kept = {key: infos[key] for key in ("rolled_back", "metric", "committed_metric", "added_parameters")}
        results.append({"observation": observation, **dict(zip("rtx", result, strict=True)), **kept})
    return results


def assert_alike(results: list[dict[str, Any]], family: tuple[int, ...], tolerance: float = 1e-4) -> None:
    """Rows side by side agree but for rounding: in what order a kernel adds may depend on a row's place."""
    for result in results:
        for name, values in result.items():
            for row in family[1:]:
                close = {"rtol": tolerance, "atol": tolerance, "err_msg": name}
                np.testing.assert_allclose(values[row], values[family[0]], **close)


@settings(max_examples=5, deadline=None)
@given(cut=st.integers(0, 20), seed=st.integers(0, 100), reward=st.sampled_from(["shaped", "contribution"]))
def test_copies_go_on_as_their_source_through_rollbacks_and_into_the_next_episodes(
    cut: int, seed: int, reward: str
) -> None:
    env = tiny(8, **RUGGED, reward=reward, dtype="float64")
    env.reset(seed=seed)
    play(env, 0, cut)
    for first, *copies in FAMILIES:
        if copies:
            env.branch(first, copies)
    results = play(env, cut, cut + 18, FAMILIES)
    for family in FAMILIES:
        assert_alike(results, family, tolerance=1e-6)


@settings(max_examples=5, deadline=None)
@given(cut=st.integers(0, 20), seed=st.integers(0, 100), reward=st.sampled_from(["shaped", "contribution"]))
def test_a_restored_row_goes_on_bit_for_bit(cut: int, seed: int, reward: str) -> None:
    env, store = (tiny(8, **RUGGED, reward=reward) for _ in range(2))
    env.reset(seed=seed)
    play(env, 0, cut)
    store.branch(range(8), [3, 1, 4, 0, 5, 7, 2, 6], source=env)
    once = play(env, cut, cut + 18)
    env.branch([3, 1, 4, 0, 5, 7, 2, 6], range(8), source=store)
    assert_same(dict(enumerate(once)), dict(enumerate(play(env, cut, cut + 18))))


def test_rows_that_nobody_branched_into_go_on_as_if_nothing_had_happened() -> None:
    env, undisturbed = (tiny(8, **RUGGED, dtype="float64") for _ in range(2))
    env.reset(seed=2), undisturbed.reset(seed=2)
    play(env, 0, 7), play(undisturbed, 0, 7)
    env.branch(0, [3, 5])
    for result, expected in zip(play(env, 7, 12, [(0, 3, 5)]), play(undisturbed, 7, 12), strict=True):
        for name, values in result.items():
            untouched = [0, 1, 2, 4, 6, 7]
            np.testing.assert_allclose(values[untouched], expected[name][untouched], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", IDS)
def test_rows_of_every_environment_are_stored_in_another_and_restored_exactly(name: str) -> None:
    stage, store = (gymnasium.make_vec(name, num_envs=n, training_steps=1).unwrapped for n in (2, 3))
    stage.reset(seed=0)
    play(stage, 0, 4)
    before = stage.state_dict()
    store.branch([1, 0, 1], [0, 1, 2], source=stage)
    assert_alike(play(store, 4, 6, [(0, 2)]), (0, 2))
    store.branch([0, 1], [2, 0], source=stage)
    play(stage, 4, 7)
    stage.branch([2, 0], [0, 1], source=store)
    assert_same(stage.state_dict(), before)


def test_rows_may_change_places() -> None:
    env = tiny(2, **RUGGED)
    env.reset(seed=3)
    play(env, 0, 6)
    before = env.state_dict()
    env.branch([1, 0], [0, 1])
    assert torch.equal(env.state.metric, before["simulation"]["state"]["metric"].flip(0))
    env.branch([1, 0], [0, 1])
    assert_same(env.state_dict(), before)


@pytest.mark.parametrize(
    ("row", "into", "message"),
    [
        (4, 0, "row is 4; allowed: one or more rows from 0 to 3"),
        (0, -1, "into is -1; allowed"),
        (0, [], "into is .*; allowed"),
        (0.5, 1, "row is 0.5; allowed"),
        (0, [1, 1], "allowed: each row once"),
        ([0, 1], [1, 2, 3], "row names 2 rows for the 3 of into; allowed: one, or as many"),
    ],
)
def test_rows_that_do_not_exist_are_refused_and_nothing_changes(row: Any, into: Any, message: str) -> None:
    env = tiny(4)
    env.reset(seed=0)
    before = env.state_dict()
    with pytest.raises(ValueError, match=message):
        env.branch(row, into)
    assert_same(env.state_dict(), before)


def test_rows_that_never_began_and_environments_with_other_settings_are_refused() -> None:
    env, other = tiny(2), tiny(2, horizon=13)
    other.reset(seed=0)
    with pytest.raises(ValueError, match="allowed: rows that were reset"):
        env.branch(0, 1)
    with pytest.raises(ValueError, match="source has other settings"):
        env.branch(0, 1, source=other)


def test_pictures_begin_anew_where_a_row_is_overwritten() -> None:
    env = EsperVectorEnv(2, task=TINY, horizon=6, render_mode="ansi")
    env.reset(seed=0)
    play(env, 0, 3)
    env.branch(0, 1)
    play(env, 3, 4, [(0, 1)])
    assert [len(env._recorder.course(row)) for row in range(2)] == [5, 2]
