"""Legality: what the tables call legal is what the environment executes, no more and no less."""

import gymnasium
import numpy as np
import pytest
import torch
from env_tools import WAIT, act, any_actions, assert_same, batch, canonical_actions, everywhere, play, row_bits, tiny
from esper_env import HEADS, RELEVANT_HEADS, EsperVectorEnv, Op, sample_action, sample_mask
from esper_env.mdp.actions import canonical
from esper_env.mdp.lifecycle import gates, is_legal
from esper_env.mdp.simulation import Simulation
from esper_env.population.population import EMPTY
from esper_env.tasks import TASKS


def legal_by_table(by_op: dict[str, np.ndarray], joint: np.ndarray) -> np.ndarray:
    """Which joint actions [j, heads] the tables call legal in each row, [n, j]."""
    op = joint[:, 0]
    legal = by_op["op"][:, op, op] == 1
    for place, head in enumerate(HEADS[1:], start=1):
        legal &= by_op[head][:, op, joint[:, place]] == 1
    return legal


@pytest.mark.ledger("N9")
def test_the_tables_and_the_gate_of_execution_agree_on_every_joint_action_in_hundreds_of_states() -> None:
    env = tiny(24, horizon=20)
    joint = np.array(canonical_actions(env.simulation.head_sizes))
    assert len(joint) == 1 + 3 * 3 * 3 * 3 + 3 * 3
    states, legal = 0, 0
    for *_, infos in play(env, 19, seed=3):
        allowed = gates(env.simulation.state, env.simulation.config, env.simulation.instance.budget)
        executed = [is_legal(torch.from_numpy(action).expand(24, -1), allowed).numpy() for action in joint]
        tabled = legal_by_table(infos["action_mask_by_op"], joint)
        np.testing.assert_array_equal(np.stack(executed, axis=1), tabled)
        states, legal = states + 24, legal + tabled.sum(axis=0)
    assert states >= 400
    assert (legal > 0).all()  # every joint action was legal somewhere


@pytest.mark.parametrize("mode", ["disabled", "same_step", "next_step"])
def test_gates_are_computed_once_per_state(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    monkeypatch.setattr("esper_env.mdp.simulation.gates", lambda *state: counted.append(1) or gates(*state))
    env = tiny(2, horizon=3, autoreset_mode=mode)
    env.reset(seed=0)
    counted.clear()
    for _ in range(2):
        env.step(everywhere(WAIT, 2))
    assert len(counted) == 2
    env.step(everywhere(WAIT, 2))
    assert len(counted) == (4 if mode == "same_step" else 3)  # and once more for the states that a reset makes


def test_a_step_executes_exactly_the_legal_joint_actions() -> None:
    """Actions of every operation and slot are stepped from the same saved states."""
    env, trial, rng = tiny(horizon=30), tiny(horizon=30), np.random.default_rng(0)
    joint = canonical_actions(env.simulation.head_sizes)
    seen = set()
    for number, (*_, infos) in enumerate(play(env, 21, seed=11)):
        if number % 3:
            continue
        saved = env.state_dict()
        births = [joint[i] for i in rng.permutation(len(joint)) if joint[i][0] == Op.GERMINATE]
        for action in [action for action in joint if action[0] != Op.GERMINATE] + births[:6]:
            trial.load_state_dict(saved)
            legal = bool(legal_by_table(infos["action_mask_by_op"], np.array([action])))
            *_, result = trial.step(batch([action]))
            assert bool(result["invalid_action"][0]) is not legal
            assert trial.simulation.state.last_op[0] == (action[0] if legal else Op.WAIT)
            assert carried_out(env.simulation, trial.simulation) == (expected(action) if legal else set())
            seen.add((Op(action[0]), legal))
    assert seen == {(op, legal) for op in Op for legal in (True, False)} - {(Op.WAIT, False)}


def expected(action: tuple[int, ...]) -> set[tuple[Op, int]]:
    return set() if action[0] == Op.WAIT else {(Op(action[0]), action[1])}


def carried_out(before: Simulation, after: Simulation) -> set[tuple[Op, int]]:
    """The operations that the seeds themselves show to have happened."""
    old, new = (simulation.population.census for simulation in (before, after))
    shown = {
        Op.GERMINATE: (old.blueprint == EMPTY) & (new.blueprint != EMPTY),
        Op.ADVANCE: ~old.live & new.live,
        Op.FOSSILIZE: ~old.committed & new.committed,
        Op.PRUNE: (old.blueprint != EMPTY) & (new.blueprint == EMPTY),
    }
    return {(op, int(slot)) for op, table in shown.items() for slot in np.flatnonzero(table[0])}


@pytest.mark.ledger("N9")
def test_masks_are_well_formed_and_marginals_are_the_projection_of_the_tables() -> None:
    env = tiny(8, horizon=20, autoreset_mode="same_step")
    sizes = env.simulation.head_sizes
    joint = np.array(canonical_actions(sizes))
    for *_, infos in play(env, 40, seed=5, illegal=0.3):
        marginal, by_op = infos["action_mask"], infos["action_mask_by_op"]
        assert set(marginal) == set(by_op) == set(HEADS)
        assert (marginal["op"][:, Op.WAIT] == 1).all()
        for head, size in sizes.items():
            assert marginal[head].dtype == by_op[head].dtype == np.int8
            assert marginal[head].shape == (8, size)
            assert by_op[head].shape == (8, len(Op), size)
            assert marginal[head].any(axis=1).all()
            assert by_op[head].any(axis=2).all()
        for op in Op:
            for head in set(HEADS[1:]) - set(RELEVANT_HEADS[op]):
                assert (by_op[head][:, op] == np.eye(sizes[head], dtype=np.int8)[0]).all()
        for row, legal_here in enumerate(legal_by_table(by_op, joint)):
            legal = joint[legal_here]
            for place, head in enumerate(HEADS):
                assert np.flatnonzero(marginal[head][row]).tolist() == sorted(set(legal[:, place]))


def test_masks_have_the_form_that_the_spaces_sample_from_and_are_fresh_each_call() -> None:
    env = tiny(3)
    _, infos = env.reset(seed=0)
    action = env.action_space.sample(mask=sample_mask(infos["action_mask"]))
    assert env.action_space.contains(action)
    for head in HEADS:
        infos["action_mask"][head][:] = 0
        infos["action_mask_by_op"][head][:] = 0
    _, _, _, _, after = env.step(everywhere(WAIT, 3))
    assert all(mask.any() for mask in after["action_mask"].values())


@pytest.mark.ledger("X2")
def test_heads_that_the_operation_does_not_use_change_nothing() -> None:
    """Twins play the same operations; one fills the unused heads at random."""
    plain, noisy = tiny(6, horizon=30), tiny(6, horizon=30)
    rng = np.random.default_rng(1)
    noisy.reset(seed=2)
    for actions, *result in play(plain, 12, seed=2, illegal=0.2):
        random = any_actions(noisy, rng)
        used = {head: [head == "op" or head in RELEVANT_HEADS[Op(op)] for op in actions["op"]] for head in HEADS}
        same = {head: np.where(used[head], actions[head], random[head]) for head in HEADS}
        theirs = noisy.step(same)
        assert_same(dict(enumerate(result)), dict(enumerate(theirs)))


def test_canonical_zeroes_exactly_the_unused_heads() -> None:
    filled = torch.tensor([[op, 2, 1, 1, 1] for op in Op])
    expected = [
        [op, *(v if head in RELEVANT_HEADS[op] else 0 for head, v in zip(HEADS[1:], (2, 1, 1, 1), strict=True))]
        for op in Op
    ]
    assert canonical(filled).tolist() == expected


@pytest.mark.ledger("X1")
@pytest.mark.parametrize("reward", ["shaped", "sparse", "contribution", "loss"])
def test_an_illegal_action_is_wait_with_a_flag_and_the_declared_cost(reward: str) -> None:
    settings = {"reward": reward, "invalid_action_cost": 0.25, "horizon": 6}
    waiting, declined = tiny(2, **settings), tiny(2, **settings)
    waiting.reset(seed=4), declined.reset(seed=4)
    for _ in range(6):
        obs, earned, *_, infos = waiting.step(everywhere(WAIT, 2))
        refused_obs, refused, *_, refused_infos = declined.step(everywhere(act(Op.FOSSILIZE, slot=1), 2))
        assert refused_infos["invalid_action"].all()
        assert not infos["invalid_action"].any()
        np.testing.assert_array_equal(refused_infos["reward_terms"]["invalid_action"], -0.25)
        np.testing.assert_allclose(refused, earned - 0.25, rtol=0, atol=1e-12)
        differing = np.flatnonzero((obs != refused_obs).any(axis=0))
        labels = [waiting.simulation.schema.columns()[place][0] for place in differing]
        assert labels == ["last_executed"]
    assert_same(row_bits(waiting.simulation, 0)["body"], row_bits(declined.simulation, 0)["body"])


def test_illegal_actions_cost_nothing_by_default() -> None:
    env = tiny(1)
    env.reset(seed=0)
    *_, infos = env.step(everywhere(act(Op.PRUNE), 1))
    assert infos["invalid_action"].tolist() == [True]
    assert infos["reward_terms"]["invalid_action"].tolist() == [0.0]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("beyond", [-1, "size"])
def test_an_action_outside_the_space_raises(head: str, beyond: int | str) -> None:
    env = tiny(2)
    env.reset(seed=0)
    size = env.simulation.head_sizes[head]
    value = size if beyond == "size" else beyond
    with pytest.raises(ValueError, match=rf"action\['{head}'\].*allowed: 0 to {size - 1}"):
        env.step({**everywhere(WAIT, 2), head: np.array([0, value])})


def test_every_task_offers_the_declared_heads() -> None:
    for task in ("digits_mlp", "digits_deep", "digits_cnn", "text"):
        env = EsperVectorEnv(1, task=task)
        spec = TASKS[task]
        assert [env.single_action_space[head].n for head in HEADS] == [5, len(spec.host.slots), 5, 3, 3]
        assert env.heads == HEADS


def test_sampled_actions_are_exactly_legal() -> None:
    env = gymnasium.make("Esper-v0")
    env.action_space.seed(0)
    ops = set()
    for seed in range(3):
        _, info = env.reset(seed=seed)
        over = False
        while not over:
            action = sample_action(env.action_space, info)
            assert env.action_space.contains(action)
            ops.add(int(action["op"]))
            _, _, over, _, info = env.step(action)
            assert not info["invalid_action"]
    assert ops == set(Op)
