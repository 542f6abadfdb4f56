"""Partial measurements: few samples of each row's own, one slot per step in turn, and the full metric at the end."""

from typing import Any

import numpy as np
import pytest
import torch
from env_tools import any_actions, assert_close, assert_same, play, tiny
from esper_env import EsperEnv, EsperVectorEnv
from esper_env.mdp.measuring import drawn_samples
from esper_env.mdp.state import OCCUPIED, Stage
from esper_env.population.evaluation import Evaluation, evaluate

SLOTS = 3


def partial(n: int, **settings: Any) -> EsperVectorEnv:
    return tiny(n, measurements="partial", **{"validation_samples": 7, "horizon": 20, **settings})


def slot_column(env: EsperVectorEnv, observation: np.ndarray, name: str) -> np.ndarray:
    labels = [label for label, _ in env.schema.columns()]
    return observation[:, [labels.index(f"slot{slot}.{name}") for slot in range(SLOTS)]]


def everything_on_drawn_samples(env: EsperVectorEnv, row: int) -> Evaluation:
    """The full evaluation of a row on the samples that its last measurement drew."""
    simulation = env.simulation
    val, key, step = simulation.data.val, simulation.instance.key, simulation.state.step
    samples = drawn_samples(key, step, len(val), env.config)[row]
    return evaluate(simulation.population.gathered(np.array([row])), val.inputs[samples], val.labels[samples])


def test_a_step_measures_its_drawn_samples_and_one_slot_in_turn_as_a_full_evaluation_would() -> None:
    env = partial(5)
    measured = 0
    for step, _ in enumerate(play(env, 19, seed=3), start=1):
        state, slot = env.state, step % SLOTS
        assert_same(state.looked_at, torch.arange(SLOTS).expand(5, -1) == slot)
        for row in range(5):
            found = everything_on_drawn_samples(env, row)
            torch.testing.assert_close(state.loss[row], found.loss[0].double(), rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(state.metric[row], found.metric[0].double())
            for name in ("contribution", "prospect"):
                torch.testing.assert_close(getattr(state, name)[row, slot], getattr(found, name)[0, slot].double())
        measured += int((state.contribution != 0).sum() + (state.prospect != 0).sum())
    assert measured > 5


def test_samples_differ_by_row_and_step_and_are_uniform() -> None:
    env = partial(64, validation_samples=40)
    env.reset(seed=0)
    key, step = env.simulation.instance.key, env.simulation.state.step
    one, other = (drawn_samples(key, step + later, 40, env.config) for later in (0, 1))
    assert len({tuple(row) for row in torch.cat([one, other]).tolist()}) == 128
    counts = torch.cat([one, other]).flatten().bincount(minlength=40)
    assert counts.min() > 0.6 * 128
    assert counts.max() < 1.4 * 128


def test_what_was_not_looked_at_is_zero_and_flagged_and_the_past_is_not_repeated() -> None:
    env = partial(6)
    known = np.zeros(2)
    for _, observation, *_ in play(env, 19, seed=1):
        seen = slot_column(env, observation, "looked_at") == 1
        assert (seen.sum(axis=1) == 1).all()
        for name in ("contribution", "prospect", "block_gradient", "seed_gradient"):
            assert not slot_column(env, observation, name)[~seen].any()
        assert not slot_column(env, observation, "block_gradient_share").any()
        stage = env.state.stage.numpy()
        flags = [slot_column(env, observation, f"{name}_known") == 1 for name in ("contribution", "prospect")]
        np.testing.assert_array_equal(flags[0], seen & np.isin(stage, OCCUPIED))
        np.testing.assert_array_equal(flags[1], seen & (stage == Stage.TRAINING))
        known += [flag.sum() for flag in flags]
        labels = [label for label, _ in env.schema.columns()]
        assert not observation[:, [k for k, label in enumerate(labels) if "history" in label]].any()
    assert (known > 0).all()


def test_the_last_step_measures_everything_and_pays_the_full_metric() -> None:
    env = partial(5, autoreset_mode="disabled")
    *_, (_, observation, _, terminated, _, infos) = play(env, 20, seed=2)
    val = env.simulation.data.val
    whole = evaluate(env.simulation.population, val.inputs, val.labels)
    assert terminated.all()
    assert slot_column(env, observation, "looked_at").all()
    np.testing.assert_allclose(infos["reward_terms"]["final_metric"], whole.committed.numpy(), rtol=1e-6)
    assert_close({"contribution": env.state.contribution}, {"contribution": whole.contribution.double()}, 1e-6)


def test_a_row_that_ends_alone_is_measured_in_full_among_others_that_are_not() -> None:
    env = partial(3)
    for _ in play(env, 6, seed=2):
        pass
    env.simulation.state.step[1] = env.config.horizon - 1
    env.step(any_actions(env, np.random.default_rng(0)))
    assert env.state.looked_at.sum(dim=1).tolist() == [1, SLOTS, 1]


def test_measuring_changes_nothing_of_what_is_trained() -> None:
    full, some = tiny(4, horizon=20), partial(4)
    for env in (full, some):
        env.reset(seed=8)
        rng = np.random.default_rng(1)
        for _ in range(12):
            env.step(any_actions(env, rng))
    assert_same(full.simulation.population.body.values, some.simulation.population.body.values)
    assert_same(full.simulation.population.census.blueprint, some.simulation.population.census.blueprint)


def test_a_row_is_the_single_environment() -> None:
    vector = partial(4)
    steps = list(play(vector, 12, seed=5))
    single = EsperEnv(**vars(vector.config))
    single.reset(seed=7)
    for actions, observation, reward, *_ in steps:
        one = single.step({head: int(values[2]) for head, values in actions.items()})
        assert_close({"observation": one[0]}, {"observation": observation[2]}, 1e-4)
        assert one[1] == pytest.approx(reward[2], abs=1e-4)


def test_a_saved_environment_goes_on_with_the_same_samples_and_slots() -> None:
    env, other = partial(3), partial(3)
    for _ in play(env, 7, seed=1):
        pass
    other.load_state_dict(env.state_dict())
    rng = np.random.default_rng(0)
    for _ in range(6):
        actions = any_actions(env, rng)
        for mine, theirs in zip(env.step(actions), other.step(actions), strict=True):
            assert_same(mine, theirs)


def test_rewards_and_detectors_that_need_every_seed_measured_are_not_there() -> None:
    with pytest.raises(ValueError, match="reward is 'contribution'; allowed: with partial measurements shaped, sparse"):
        partial(1, reward="contribution")
    env = partial(1, control_interval=2)
    _, infos = env.reset(seed=0)
    assert set(infos["detectors"]) == {"churn", "endless_holding"}
