"""The agent learns what it should: op-dependent slots, memory, a critic that knows the time, and growth."""

from typing import Any

import numpy as np
import pytest
import torch
from esper_agent import FactoredRecurrentPPO, evaluate_policy
from toy_envs import Countdown, MockGrowth, OpDependentSlot, TMaze


def trained(env: Any, steps: int, seed: int = 0, **settings: Any) -> FactoredRecurrentPPO:
    return FactoredRecurrentPPO(env, seed=seed, **settings).learn(steps)


@pytest.mark.ledger("X17")
def test_slots_that_depend_on_the_op_are_solved_by_factored_heads_and_not_by_independent_ones() -> None:
    settings = {"n_steps": 16, "sequence_length": 16, "n_epochs": 8}
    factored = trained(OpDependentSlot(16), 8_000, **settings)
    independent = trained(OpDependentSlot(16), 8_000, **settings, condition_on_op=False)
    mean, _ = evaluate_policy(factored, OpDependentSlot(50), 500, seed=1)
    assert mean >= 0.99 * OpDependentSlot.optimum
    mean, _ = evaluate_policy(independent, OpDependentSlot(50), 500, seed=1)
    assert mean <= 0.7 * OpDependentSlot.optimum


@pytest.mark.ledger("X3")
def test_the_critic_learns_the_remaining_time() -> None:
    """A reward of 1 per step, gamma 1 and a terminal end: V(s_t) = T - t."""
    model = trained(Countdown(8), 15_000, gamma=1.0, n_steps=64)
    state = model.policy.initial_state(1)
    for age in range(Countdown.horizon):
        observation = torch.tensor([[[age / Countdown.horizon]]])
        start = torch.tensor([[age == 0]])
        with torch.no_grad():
            value = model.policy.values.denormalize(model.policy.value(observation, state, start)).item()
            _, state = model.policy.step(observation, state, start)
        assert value == pytest.approx(Countdown.horizon - age, abs=0.6), age


def best_action(observation: np.ndarray) -> dict[str, np.ndarray]:
    """The known optimal policy of `MockGrowth`: germinate what is wanted where it lacks, advance it, commit it."""
    marks, stages = observation[:, :3], observation[:, 6:18].reshape(-1, 3, 4)
    slot = np.abs(marks).argmax(1)
    rows = np.arange(len(observation))
    stage = stages[rows, slot].argmax(1)
    op = np.array([1, 2, 3, 0])[stage]
    wanted = (marks[rows, slot] > 0).astype(np.int64)
    return {"op": op, "slot": np.where(op == 0, 0, slot), "blueprint": np.where(op == 1, wanted, 0)}


def test_the_optimum_of_mock_growth_is_what_it_is_said_to_be() -> None:
    env = MockGrowth(20)
    observation, _ = env.reset(seed=0)
    total = np.zeros(20)
    for _ in range(MockGrowth.horizon):
        observation, reward, *_ = env.step(best_action(observation))
        total += reward
    assert total.tolist() == [MockGrowth.optimum] * 20


def test_mock_growth_is_solved() -> None:
    model = trained(MockGrowth(16), 35_000, n_steps=64, ent_coef=0.02)
    mean, _ = evaluate_policy(model, MockGrowth(50), 200, seed=1)
    assert mean >= 0.97 * MockGrowth.optimum
    env = MockGrowth(50)
    observation, infos = env.reset(seed=2)
    action, _ = model.predict(observation, None, np.ones(50, bool), deterministic=True, action_masks=infos)
    planted = action["op"] == 1
    assert (action["slot"] == best_action(observation)["slot"])[planted].mean() >= 0.95


@pytest.mark.slow
def test_a_sign_is_remembered_over_twenty_steps() -> None:
    model = trained(TMaze(16), 60_000, sequence_length=64, n_steps=64)
    mean, _ = evaluate_policy(model, TMaze(50), 200, seed=1)
    assert mean >= 0.97 * TMaze.optimum
