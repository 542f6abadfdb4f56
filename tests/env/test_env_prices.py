"""Drawn widths, prices and budgets: distributed as declared, observed, paid, and kept through saving and in any row."""

from math import log
from typing import Any

import numpy as np
import pytest
import torch
from env_tools import TINY, act, any_actions, assert_close, assert_same, everywhere, play, tiny
from esper_env import EsperEnv, EsperVectorEnv, Op
from esper_env.config import EsperConfig
from esper_env.mdp.instances import Instance, draw
from esper_env.tasks import TASKS
from scipy import stats

TASK = TASKS["digits_mlp"]
DATA = TASK.load()
KEYS = torch.arange(4000) * 7919 + 3
DRAWN: dict[str, Any] = {
    **{"shapes": "widths", "live_units": (1, 6), "rent": (0.02, 1.5), "slot_rent": (0.0, 0.2), "budget": (1, 2)},
}


def drawn(**settings: Any) -> Instance:
    return draw(KEYS, TASK, DATA, EsperConfig(task="digits_mlp", **settings))


def column(env: EsperVectorEnv, observation: np.ndarray, name: str) -> np.ndarray:
    return observation[:, [label for label, _ in env.schema.columns()].index(name)]


@pytest.mark.parametrize(("low", "high"), [(2, 24), (1, 1), (5, 6)])
def test_widths_are_log_uniform_integers_in_every_block(low: int, high: int) -> None:
    widths = drawn(shapes="widths", live_units=(low, high)).live_units
    for value in range(low, high + 1):
        share = log((value + 1) / value) / log((high + 1) / low)
        for block in widths.T:
            assert stats.binomtest(int((block == value).sum()), len(block), share).pvalue > 1e-6
    assert widths.min() == low
    assert widths.max() == high


def test_blocks_are_drawn_independently() -> None:
    ranks = np.corrcoef(np.log(drawn(shapes="widths", live_units=(2, 24)).live_units.T))
    assert abs(ranks[np.triu_indices(3, 1)]).max() < 5 / len(KEYS) ** 0.5


def test_prices_are_log_uniform_or_uniform_from_zero_and_a_number_is_itself() -> None:
    instance = drawn(rent=(0.02, 1.5), slot_rent=(0.0, 0.3))
    logs = (instance.rent.log() - log(0.02)) / log(1.5 / 0.02)
    for values in (logs, instance.slot_rent / 0.3):
        assert stats.kstest(values.numpy(), "uniform").pvalue > 1e-6
    fixed = drawn(rent=0.07, slot_rent=0.0)
    assert fixed.rent.unique().tolist() == [0.07]
    assert fixed.slot_rent.unique().tolist() == [0.0]


def test_budgets_are_uniform_and_without_one_every_slot_may_be_used() -> None:
    budget = drawn(budget=(1, 3)).budget
    for value in (1, 2, 3):
        assert stats.binomtest(int((budget == value).sum()), len(KEYS), 1 / 3).pvalue > 1e-6
    assert drawn(budget=2).budget.unique().tolist() == [2]
    assert drawn().budget.unique().tolist() == [3]


def test_the_rent_of_a_step_is_what_the_row_drew_and_the_observation_says_so() -> None:
    env = tiny(6, reward="sparse", rent=(0.1, 2.0), slot_rent=(0.0, 0.5), warmup_steps=0)
    env.reset(seed=4)
    instance = env.simulation.instance
    assert len(instance.rent.unique()) == 6
    observation, _, _, _, infos = env.step(everywhere(act(Op.GERMINATE, slot=1, blueprint=1), 6))
    for name, price in (("rent", instance.rent), ("slot_rent", instance.slot_rent)):
        np.testing.assert_allclose(column(env, observation, name), (price / (1 + price)).numpy(), rtol=1e-6)
    owed = (instance.rent * env.state.added + instance.slot_rent) / env.config.horizon
    np.testing.assert_allclose(infos["reward_terms"]["rent"], -owed.numpy(), rtol=1e-12)
    assert env.reward_range[0] <= infos["reward_terms"]["rent"].min()


def test_a_number_adds_nothing_to_the_observation_and_a_range_of_one_value_is_observed() -> None:
    plain, ranged = tiny(2, rent=0.3, reward="sparse"), tiny(2, rent=(0.3, 0.3), budget=3, reward="sparse")
    assert ranged.single_observation_space.shape[0] == plain.single_observation_space.shape[0] + 2
    shown = [label for label, _ in ranged.schema.columns()]
    kept = [shown.index(label) for label, _ in plain.schema.columns()]
    for one, other in zip(play(plain, 12), play(ranged, 12), strict=True):
        assert_same(one[1][:, :], other[1][:, kept])
        np.testing.assert_allclose(one[2], other[2], rtol=1e-12)


@pytest.mark.parametrize("budget", [0, 1, 2, 3])
def test_no_more_seeds_than_the_budget_and_a_prune_frees_a_place(budget: int) -> None:
    env = tiny(8, budget=budget, horizon=30, prune_age=1, embargo_steps=0)
    most = 0
    for _, observation, *_, infos in play(env, 30, seed=2):
        seeds = sum(infos["seeds"].values())
        most = max(most, seeds.max())
        np.testing.assert_allclose(column(env, observation, "seeds_left"), (budget - seeds) / 3, atol=1e-6)
        legal = infos["action_mask"]["op"][:, Op.GERMINATE]
        assert not legal[seeds >= budget].any()
    assert most == budget


def test_a_germination_beyond_the_budget_is_executed_as_a_wait() -> None:
    env = tiny(1, budget=1, warmup_steps=0)
    env.reset(seed=0)
    env.step(everywhere(act(Op.GERMINATE, slot=0), 1))
    *_, infos = env.step(everywhere(act(Op.GERMINATE, slot=1), 1))
    assert infos["invalid_action"].tolist() == [True]
    assert sum(infos["seeds"].values()).tolist() == [1]


def test_a_row_is_the_single_environment_with_everything_drawn() -> None:
    vector = tiny(4, **DRAWN)
    steps = list(play(vector, 11, seed=5))
    single = EsperEnv(**vars(vector.config))
    single.reset(seed=7)
    for actions, observation, reward, *_ in steps:
        one = single.step({head: int(values[2]) for head, values in actions.items()})
        assert_close({"observation": one[0]}, {"observation": observation[2]}, 1e-4)
        assert one[1] == pytest.approx(reward[2], abs=1e-4)


def test_a_saved_environment_goes_on_with_its_prices_and_widths() -> None:
    env, other = tiny(3, **DRAWN), tiny(3, **DRAWN)
    for _ in play(env, 5, seed=1):
        pass
    other.load_state_dict(env.state_dict())
    assert_same(vars(env.simulation.instance), vars(other.simulation.instance))
    rng = np.random.default_rng(0)
    for _ in range(4):
        actions = any_actions(env, rng)
        for mine, theirs in zip(env.step(actions), other.step(actions), strict=True):
            assert_same(mine, theirs)


def test_of_drawn_widths_the_oracle_is_told_the_narrowest_block() -> None:
    env = tiny(16, **DRAWN)
    env.reset(seed=0)
    assert env.lesioned.sum(axis=1).tolist() == [1] * 16
    np.testing.assert_array_equal(env.live_units[env.lesioned], env.live_units.min(axis=1))


def test_widths_beyond_the_narrowest_block_are_refused() -> None:
    with pytest.raises(ValueError, match=r"live_units is \(2, 7\); allowed: at most the narrowest block's 6"):
        EsperVectorEnv(1, task=TINY, shapes="widths", live_units=(2, 7))
