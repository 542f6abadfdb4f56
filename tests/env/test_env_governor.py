"""The governor: faults in one row are undone, charged and limited, and no other row notices."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from env_tools import (
    IDS,
    TINY,
    WAIT,
    act,
    assert_same,
    everywhere,
    legal_actions,
    play,
    resident_bytes,
    row_bits,
    settings_of,
    tiny,
)
from esper_env import EsperEnv, EsperVectorEnv, Op, Stage
from esper_env.fused.minibatches import Minibatches
from esper_env.mdp.state import State
from esper_env.population.evaluation import Evaluation, evaluate
from esper_env.population.training import TrainingReport, train_epoch

ROWS, VICTIM = 5, 2
KEPT = ("step", "rollbacks", "episode_return")  # time and accounts go on
SET_BY_THE_STEP = ("last_op", "last_executed", "ended")


def grown(**settings: Any) -> EsperVectorEnv:
    """Rows whose seeds stand in different stages, with different blueprints and blends."""
    env = tiny(ROWS, **{"horizon": 30, "training_steps": 1, "autoreset_mode": "disabled"} | settings)
    env.reset(seed=1)
    kinds, blends = np.arange(ROWS) % 3, (np.arange(ROWS) + 1) % 3
    script = [act(Op.GERMINATE, slot=0), act(Op.ADVANCE, slot=0), act(Op.GERMINATE, slot=1), WAIT, WAIT]
    for action in [*script, act(Op.FOSSILIZE, slot=0), act(Op.ADVANCE, slot=1), act(Op.GERMINATE, slot=2)]:
        *_, infos = env.step({**everywhere(action, ROWS), "blueprint": kinds, "blend": blends})
        assert not infos["invalid_action"].any()
    assert env.simulation.state.stage[VICTIM].tolist() == [Stage.FOSSILIZED, Stage.BLENDING, Stage.TRAINING]
    return env


def poison_host(env: EsperVectorEnv, _: pytest.MonkeyPatch) -> None:
    env.simulation.population.body.values[VICTIM, 7] = float("nan")


def poison_seed(slot: int) -> Any:
    def poison(env: EsperVectorEnv, _: pytest.MonkeyPatch) -> None:
        for key, cohort in env.simulation.population.seeds.items():
            if key[0] == slot and VICTIM in cohort.rows:
                cohort.values[int(cohort.rows.searchsorted(VICTIM)), 3] = float("inf")

    return poison


def explode(env: EsperVectorEnv, _: pytest.MonkeyPatch) -> None:
    env.simulation.population.lr[VICTIM] = 1e6


def corrupt_batch(_: EsperVectorEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(population: Any, data: Minibatches) -> TrainingReport:
        inputs = torch.cat([data.inputs, torch.full_like(data.inputs[:1], float("nan"))])
        index = data.index.clone()
        index[VICTIM] = len(data.inputs)
        return train_epoch(population, Minibatches(inputs, index, data.labels))

    monkeypatch.setattr("esper_env.mdp.simulation.train_epoch", train)


def run_away_at_the_end(env: EsperVectorEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    """An incubating seed overflows in the last minibatch, after every measurement of the epoch."""

    def train(population: Any, data: Minibatches) -> TrainingReport:
        report = train_epoch(population, data)
        poison_seed(2)(env, monkeypatch)
        return report

    monkeypatch.setattr("esper_env.mdp.simulation.train_epoch", train)


FAULTS = {
    "NaN in the host": poison_host,
    "infinity in a fossil": poison_seed(0),
    "infinity in a live seed": poison_seed(1),
    "infinity in an incubating seed": poison_seed(2),
    "overflow of an incubating seed in the last minibatch": run_away_at_the_end,
    "exploding learning rate": explode,
    "corrupt batch": corrupt_batch,
}


@pytest.mark.ledger("P11", "X4")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_undone_and_charged_in_its_row_and_unnoticed_elsewhere(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env, healthy = grown(), grown()
    before = [row_bits(env.simulation, row) for row in range(ROWS)]
    FAULTS[fault](env, monkeypatch)
    pruned = 2 if fault == "infinity in a live seed" else 1  # not the faulty seed, whose removal would be the cure
    actions = everywhere(act(Op.PRUNE, slot=pruned), ROWS)
    observation, reward, terminated, _, infos = env.step(actions)
    monkeypatch.undo()
    expected = healthy.step(actions)
    assert infos["rolled_back"].tolist() == [row == VICTIM for row in range(ROWS)]
    assert infos["reward_terms"]["rollback"][VICTIM] == -env.simulation.config.rollback_penalty
    assert not terminated.any()
    after = row_bits(env.simulation, VICTIM)
    changed = {name: (after["state"].pop(name), before[VICTIM]["state"].pop(name)) for name in KEPT + SET_BY_THE_STEP}
    assert_same(after, before[VICTIM])
    assert changed["step"][0] == changed["step"][1] + 1
    assert changed["rollbacks"][0] == changed["rollbacks"][1] + 1
    assert np.isfinite(observation).all()
    for row in set(range(ROWS)) - {VICTIM}:
        assert_same(row_bits(env.simulation, row), row_bits(healthy.simulation, row))
        np.testing.assert_array_equal(observation[row], expected[0][row])
        assert reward[row] == expected[1][row]


@pytest.mark.ledger("P11")
def test_after_a_single_fault_the_row_goes_on_training() -> None:
    env = grown()
    poison_host(env, pytest.MonkeyPatch())
    env.step(everywhere(WAIT, ROWS))
    restored = env.simulation.population.body.values[VICTIM].clone()
    *_, infos = env.step(everywhere(WAIT, ROWS))
    assert not infos["rolled_back"].any()
    assert not torch.equal(env.simulation.population.body.values[VICTIM], restored)


@pytest.mark.ledger("X4")
@pytest.mark.parametrize("step", [1, 2, 5])
@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_a_collapse_without_allowance_terminates_at_once_with_the_penalty(step: int, mode: str) -> None:
    """NaN at step k: terminated at k, charged at k, and the next observation is that of a reset."""
    settings = {"max_rollbacks": 0, "rollback_penalty": 0.75, "autoreset_mode": mode}
    env, twin = tiny(2, **settings), tiny(2, **settings)
    env.reset(seed=0), twin.reset(seed=0)
    for _ in range(step - 1):
        _, _, terminated, *_ = env.step(everywhere(WAIT, 2))
        assert not terminated.any()
    env.simulation.population.body.values[1] = float("nan")
    observation, reward, terminated, truncated, infos = env.step(everywhere(WAIT, 2))
    assert terminated.tolist() == [False, True]
    assert not truncated.any()
    terms = {name: value[1] for name, value in infos["reward_terms"].items()}
    assert terms["rollback"] == -0.75
    assert terms["final_metric"] == 0.0
    assert reward[1] == pytest.approx(sum(terms.values()))
    fresh, _ = twin.reset()  # the second episode of the same seeds
    if mode == "next_step":
        observation, reward, terminated, *_ = env.step(everywhere(WAIT, 2))
        assert reward[1] == 0.0
        assert not terminated.any()
    elif mode == "disabled":
        with pytest.raises(RuntimeError, match=r"rows \[1\] are over"):
            env.step(everywhere(WAIT, 2))
        observation, _ = env.reset(options={"reset_mask": np.array([False, True])})
    np.testing.assert_array_equal(observation[1], fresh[1])


@pytest.mark.ledger("X4")
def test_a_ruin_in_the_very_last_step_forfeits_the_final_metric() -> None:
    env = EsperEnv(task=TINY, horizon=2, max_rollbacks=0)
    env.reset(seed=0)
    env.step(WAIT)
    env.row.simulation.population.body.values[:] = float("nan")
    _, _, terminated, _, info = env.step(WAIT)
    assert terminated
    assert info["reward_terms"]["final_metric"] == 0.0
    assert info["reward_terms"]["rollback"] == -0.5


@pytest.mark.ledger("P11")
@pytest.mark.parametrize("allowed", [0, 1, 3])
def test_a_host_that_keeps_collapsing_is_ended_after_the_declared_number(allowed: int) -> None:
    env = EsperEnv(task=TINY, learning_rate=(1000.0, 1000.0), max_rollbacks=allowed, horizon=20)
    env.reset(seed=0)
    ended, charges = False, []
    while not ended:
        _, _, ended, _, info = env.step(WAIT)
        charges.append(info["reward_terms"]["rollback"])
        assert info["rolled_back"]
    assert charges == [-0.5] * (allowed + 1)
    with pytest.raises(RuntimeError, match="over"):
        env.step(WAIT)


def test_a_rollback_in_the_last_step_still_pays_the_final_metric_of_what_was_restored() -> None:
    env = EsperEnv(task=TINY, horizon=3)
    env.reset(seed=0)
    env.step(WAIT)
    _, _, _, _, info = env.step(WAIT)
    kept = info["committed_metric"]
    env.row.simulation.population.body.values[:] = float("nan")
    _, _, terminated, _, info = env.step(WAIT)
    assert terminated
    assert info["rolled_back"]
    assert info["reward_terms"]["final_metric"] == kept


@pytest.mark.ledger("V1")
def test_a_thousand_snapshots_take_no_memory_and_stay_in_place() -> None:
    env = grown()
    simulation = env.simulation
    snapshot, everyone = simulation.snapshot, np.arange(ROWS)
    stored = [*snapshot.body, *snapshot.seeds, *snapshot.state.tensors().values()]
    places = [tensor.data_ptr() for tensor in stored]
    size = sum(tensor.numel() * tensor.element_size() for tensor in stored)
    snapshot.take(simulation.population, simulation.state, everyone)
    start = resident_bytes()
    for number in range(1000):
        rows = everyone if number % 2 else everyone[1:4]
        snapshot.take(simulation.population, simulation.state, rows)
    assert resident_bytes() - start < max(size, 1 << 20)
    after = [*snapshot.body, *snapshot.seeds, *snapshot.state.tensors().values()]
    assert [tensor.data_ptr() for tensor in after] == places


@pytest.mark.ledger("V1", "P11")
def test_seeds_of_all_kinds_and_stages_come_back_as_they_were() -> None:
    """Rows are restored one by one, in company that changed meanwhile."""
    env, rng = tiny(8, horizon=60, autoreset_mode="disabled"), np.random.default_rng(5)
    _, infos = env.reset(seed=2)
    simulation, stages = env.simulation, set()
    for _ in range(20):
        good = [row_bits(simulation, row) for row in range(8)]
        stages |= set(simulation.state.stage.unique().tolist())
        victims = np.flatnonzero(rng.random(8) < 0.3)
        actions = legal_actions(infos, rng)
        simulation.population.body.values[victims] = float("nan")
        simulation.state.rollbacks.zero_()
        *_, infos = env.step(actions)
        assert infos["rolled_back"].tolist() == [row in victims for row in range(8)]
        for row in victims:
            now = row_bits(simulation, row)
            for name in KEPT + SET_BY_THE_STEP:
                now["state"].pop(name), good[row]["state"].pop(name)
            assert_same(now, good[row])
    assert stages >= {Stage.TRAINING, Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED}


def test_a_loss_far_beyond_a_blind_guess_is_a_collapse_and_the_limit_is_declared() -> None:
    for limit, collapses in ((2.0, True), (1e6, False)):
        env = EsperEnv(task=TINY, collapse_loss=limit, spike_loss=1e6)
        env.reset(seed=0)
        env.row.simulation.population.body.values *= 6.0  # a confident, wrong host
        env.row.simulation.population.lr.zero_()
        *_, info = env.step(WAIT)
        assert info["rolled_back"] is collapses


def test_a_restored_state_shares_no_memory_with_its_snapshot() -> None:
    env = grown()
    poison_host(env, pytest.MonkeyPatch())
    env.step(everywhere(WAIT, ROWS))
    state: State = env.simulation.state
    kept = {tensor.data_ptr() for tensor in env.simulation.snapshot.state.tensors().values()}
    assert kept.isdisjoint({tensor.data_ptr() for tensor in state.tensors().values()})


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_play_goes_on_for_long_among_collapsing_rows(mode: str) -> None:
    env = tiny(12, learning_rate=(0.01, 20.0), horizon=8, max_rollbacks=1, autoreset_mode=mode)
    episodes = 0
    for _, observation, _, terminated, _, infos in play(env, 40, seed=1):
        assert env.observation_space.contains(observation)
        assert (env.simulation.state.step <= 8).all()
        assert (env.simulation.state.rollbacks <= 2).all()
        assert infos["rolled_back"].dtype == bool
        episodes += terminated.sum()
    assert episodes > 40


@pytest.mark.ledger("Y31")
def test_a_loss_that_jumps_is_a_collapse_long_before_it_is_absurd(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 0.1 to 9, where a uniform guess has 2.3; a loss that rises as fast from next to nothing is none."""
    course = iter([(0.1, 0.001), (0.49, 0.5), (9.0, 0.57), (0.48, 0.6)])
    env = tiny(2, spike_loss=5.0, small_loss=0.05, autoreset_mode="disabled", control_interval=0)

    def measure(*arguments: Any) -> Evaluation:
        return replace(evaluate(*arguments), loss=torch.tensor(next(course)))

    monkeypatch.setattr("esper_env.mdp.measuring.evaluate", measure)
    env.reset(seed=0)
    flags = [env.step(everywhere(WAIT, 2))[-1]["rolled_back"].tolist() for _ in range(3)]
    assert flags == [[False, False], [True, False], [False, False]]
    assert env.simulation.state.previous_loss[0] == pytest.approx(0.49)  # the last good one


@pytest.mark.ledger("Y31")
@pytest.mark.parametrize("name", IDS)
def test_the_governor_keeps_still_in_normal_play(name: str) -> None:
    settings = settings_of(name) | {"horizon": 12, "prune_age": 2, "training_steps": 1}
    for *_, infos in play(EsperVectorEnv(6, **settings), 12, seed=11):
        assert not infos["rolled_back"].any()
