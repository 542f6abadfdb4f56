"""Scripted baselines do what they say, legally, and paired play gives every policy the same instances."""

from typing import Any

import numpy as np
import pytest
from baseline_tools import KINDS, Env, committed, one_of, quick_env, stages, watched
from esper_agent.baselines.judging import GreedyScore, TryAndPrune
from esper_agent.baselines.scripted import Baseline, GrowEverything, GrowOnPlateau, NeverGrow, RandomLegal
from esper_agent.evaluation.paired import make_test_env
from esper_env import EsperVectorEnv, Op, Stage
from esper_env.registration import ENVIRONMENTS

ROWS = 4
UNDERWAY = (Stage.TRAINING, Stage.BLENDING, Stage.HOLDING)


@pytest.fixture
def env() -> Env:
    return quick_env("Esper-v0", ROWS, horizon=24)


@pytest.mark.parametrize("env_id", ["Esper-v0", "Esper-Deep-v0", "Esper-CNN-v0"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_action_is_legal(kind: type[Baseline], env_id: str) -> None:
    env = quick_env(env_id, 3, horizon=14)
    actions, infos = watched(one_of(kind, env), env)
    assert not any(info["invalid_action"].any() for info in infos)
    assert kind is NeverGrow or any(action["op"].any() for action in actions)


def test_what_the_observation_calls_legal_is_legal() -> None:
    env = make_test_env("Esper-v0", ROWS, horizon=24)
    baseline = RandomLegal(env)
    observation, infos = env.reset(seed=0)
    for _ in range(23):
        for op in (Op.GERMINATE, Op.ADVANCE, Op.FOSSILIZE, Op.PRUNE):
            legal = infos["action_mask_by_op"]["op"][:, 0, op][:, None] * infos["action_mask_by_op"]["slot"][:, op]
            np.testing.assert_array_equal(baseline.may(observation, op), legal > 0)
        actions, _ = baseline.predict(observation, action_masks=infos)
        observation, *_, infos = env.step(actions)


def test_never_grow_only_waits(env: Env) -> None:
    actions, infos = watched(NeverGrow(env), env)
    assert all((action["op"] == Op.WAIT).all() for action in actions)
    assert not infos[-1]["added_parameters"].any()


def test_grow_everything_commits_a_seed_in_every_slot(env: Env) -> None:
    watched(GrowEverything(env, blueprint=1, blend=2), env)
    assert committed(env).all()
    census = env.unwrapped.census  # type: ignore[attr-defined]
    assert (census.blueprint == 1).all()
    assert (census.blend == 2).all()


def test_a_value_that_a_head_does_not_have_is_refused(env: Env) -> None:
    with pytest.raises(ValueError, match="blueprint is 5; allowed: 0 to 4"):
        GrowEverything(env, blueprint=5)


def test_the_plateau_baseline_has_one_seed_on_its_way_at_most(env: Env) -> None:
    plateau = GrowOnPlateau(env, patience=1)
    observation, infos = env.reset(seed=0)
    grown = np.zeros(ROWS, dtype=np.int64)
    for _ in range(23):
        action, _ = plateau.predict(observation, action_masks=infos)
        growing = action["op"] == Op.GERMINATE
        assert (plateau.steps(plateau.field(observation, "plateau"))[growing] >= plateau.patience).all()
        grown += growing
        observation, *_, infos = env.step(action)
        assert (plateau.in_stage(observation, *UNDERWAY).sum(axis=1) <= 1).all()
    assert grown.any()


def test_the_plateau_baseline_plants_where_the_gradient_is_largest_and_only_below_its_ceiling(env: Env) -> None:
    plateau = GrowOnPlateau(env, patience=1, ceiling=0.5)
    observation, infos = env.reset(seed=0)
    planted = 0
    for _ in range(23):
        action, _ = plateau.predict(observation, action_masks=infos)
        state = env.unwrapped.simulation.state  # type: ignore[attr-defined]
        free = np.where((state.stage == Stage.DORMANT).numpy(), state.block_grad.numpy(), -np.inf)
        growing = action["op"] == Op.GERMINATE
        np.testing.assert_array_equal(action["slot"][growing], free.argmax(axis=1)[growing])
        assert (state.metric.numpy()[growing] < plateau.ceiling).all()
        planted += int(growing.sum())
        observation, *_, infos = env.step(action)
    assert planted


@pytest.mark.parametrize("kind", [GrowEverything, GrowOnPlateau, GreedyScore])
@pytest.mark.parametrize("tempo", [0, 2])
def test_nothing_is_planted_that_cannot_be_committed_in_time(kind: type[Baseline], tempo: int) -> None:
    for horizon in (5, 6, 7, 12):
        short = quick_env("Esper-v0", ROWS, horizon=horizon)
        actions, _ = watched(kind(short, tempo=tempo), short)
        planted = sum((action["op"] == Op.GERMINATE).sum() for action in actions)
        assert planted == committed(short).sum()


def test_the_greedy_baseline_follows_the_gradient(env: Env) -> None:
    greedy = GreedyScore(env, start=3)
    observation, infos = env.reset(seed=0)
    for _ in range(3):
        action, _ = greedy.predict(observation, action_masks=infos)
        assert not action["op"].any()
        observation, *_, infos = env.step(action)
    gradient = env.unwrapped.simulation.state.block_grad.numpy()  # type: ignore[attr-defined]
    action, _ = greedy.predict(observation, action_masks=infos)
    np.testing.assert_array_equal(action["slot"], gradient.argmax(axis=1))
    assert (action["op"] == Op.GERMINATE).all()


def test_the_greedy_baseline_advances_the_trial_seed_that_promises_the_most(env: Env) -> None:
    greedy = GreedyScore(env, start=1, trials=3, incubation=4)
    observation, infos = env.reset(seed=0)
    advanced = np.full(ROWS, -1)
    for _ in range(23):
        action, _ = greedy.predict(observation, action_masks=infos)
        for row in np.flatnonzero(action["op"] == Op.ADVANCE):
            prospect = env.unwrapped.simulation.state.prospect[row].numpy()  # type: ignore[attr-defined]
            assert (stages(env)[row] == Stage.TRAINING).all()
            assert prospect[action["slot"][row]] == prospect.max()
            advanced[row] = action["slot"][row]
        observation, *_, infos = env.step(action)
    np.testing.assert_array_equal(committed(env), np.arange(3) == advanced[:, None])


def judged(baseline: TryAndPrune, env: Env) -> tuple[dict[Op, list[float]], list[set[int]]]:
    """What the baseline knew of the seeds that it advanced and pruned in training, and which slots each row tried."""
    observation, infos = env.reset(seed=0)
    known: dict[Op, list[float]] = {Op.ADVANCE: [], Op.PRUNE: []}
    tried: list[set[int]] = [set() for _ in range(env.num_envs)]
    state: Any = None
    for _ in range(23):
        action, state = baseline.predict(observation, state, action_masks=infos)
        for row, (op, slot) in enumerate(zip(action["op"], action["slot"], strict=True)):
            if op == Op.GERMINATE:
                assert slot not in tried[row]
                tried[row].add(int(slot))
            elif op in known and stages(env)[row, slot] == Stage.TRAINING:
                known[Op(op)].append(float(env.unwrapped.simulation.state.prospect[row, slot]))  # type: ignore[attr-defined]
        observation, *_, infos = env.step(action)
    return known, tried


def test_try_and_prune_keeps_what_pays_and_tries_each_slot_once() -> None:
    env = quick_env("Esper-v0", 12, horizon=24)  # so many that some seeds pay and some do not
    baseline = TryAndPrune(env, start=1, threshold=0.02)
    known, tried = judged(baseline, env)
    assert known[Op.ADVANCE]
    assert known[Op.PRUNE]
    assert min(known[Op.ADVANCE]) >= baseline.threshold > max(known[Op.PRUNE])
    assert max(len(slots) for slots in tried) > 1
    assert (committed(env).sum(axis=1) <= 1).all()


def test_try_and_prune_commits_nothing_if_nothing_pays(env: Env) -> None:
    known, tried = judged(TryAndPrune(env, start=1, threshold=1.0), env)
    assert not known[Op.ADVANCE]
    assert all(len(slots) == 3 for slots in tried)
    assert not committed(env).any()


def test_try_and_prune_forgets_when_an_episode_begins(env: Env) -> None:
    baseline = TryAndPrune(env, start=0)
    observation, _ = env.reset(seed=0)
    everything = np.ones((ROWS, 3), dtype=np.bool_)
    begun = np.array([True, True, False, False])
    actions, _ = baseline.predict(observation, everything, begun)
    np.testing.assert_array_equal(actions["op"] == Op.GERMINATE, begun)


def test_random_legal_needs_masks(env: Env) -> None:
    observation, _ = env.reset(seed=0)
    with pytest.raises(ValueError, match="needs action_masks"):
        RandomLegal(env).predict(observation)


def test_with_partial_measurements_a_baseline_remembers_what_each_slot_showed_last_until_the_episode_ends() -> None:
    env = EsperVectorEnv(2, **{**ENVIRONMENTS["Esper-Partial-v0"], "horizon": 8})
    rule, state = NeverGrow(env), None
    observation, _ = env.reset(seed=0)
    shown = [observation]
    for step in range(5):
        actions, state = rule.predict(observation, state, np.full(2, step == 0))
        observation, *_ = env.step(actions)
        shown.append(observation)
    _, (recalled, _) = rule.predict(observation, state, np.zeros(2, dtype=np.bool_))
    gradients = [rule.slot_field(one, "block_gradient") for one in shown]
    for slot, step in ((0, 3), (1, 4), (2, 5)):
        np.testing.assert_array_equal(rule.slot_field(recalled, "block_gradient")[:, slot], gradients[step][:, slot])
    _, (fresh, _) = rule.predict(observation, state, np.ones(2, dtype=np.bool_))
    np.testing.assert_array_equal(fresh, observation)
