"""What an update starts from, what it logs, and the annealing of its rate."""

from typing import Any

import numpy as np
import pytest
import torch
from esper_agent import FactoredRecurrentPPO
from esper_agent.algorithm.acting import act
from esper_agent.algorithm.rollout_buffer import reaches_end
from precision import ulps
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.utils import LinearSchedule
from toy_envs import MaskedHeads
from update_tools import FEW_ULPS, collect, make_model, with_targets


class Capture(KVWriter):
    """Keeps everything that is logged."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:  # noqa: ARG002
        self.rows.append(dict(key_values))


class Unscaled(MaskedHeads):
    """Observations far from the scale that networks like."""

    def observe(self) -> np.ndarray:
        return (self.look * np.array([0.01, 1, 10, 3, 100, 0.1]) + np.array([0, 5, -20, 0, 300, 1])).astype(np.float32)


def values_of(model: FactoredRecurrentPPO, observations: torch.Tensor) -> torch.Tensor:
    """What the critic says of single observations, in units of the reward."""
    count = len(observations)
    state, starts = model.policy.initial_state(count), torch.ones(count, 1, dtype=torch.bool)
    with torch.no_grad():
        return model.policy.values.denormalize(model.policy.value(observations[:, None], state, starts))


@pytest.mark.ledger("Y23")
def test_the_first_update_runs_on_scaled_observations() -> None:
    model = make_model(Unscaled(6), learning_rate=3e-3, n_epochs=8)
    epochs, learnt = model._epochs, []

    def watched(*args: Any) -> Any:
        result = epochs(*args)
        learnt.append(values_of(model, model.buffer.observations.flatten(0, 1)))
        return result

    model._epochs = watched
    collect(model)
    observations = model.buffer.observations.flatten(0, 1).clone()
    model.update()
    assert model.policy.normalizer.moments.updates == 1
    moved = (values_of(model, observations) - learnt[0]).abs().max() / model.policy.values.deviation
    assert moved <= 0.05
    scaled = model.policy.normalizer(observations)
    assert scaled.mean(0).abs().max() < 1e-3
    assert (scaled.std(0, correction=0) - 1).abs().max() < 1e-3


@pytest.mark.ledger("Y23")
def test_the_first_old_policy_is_that_of_the_filled_normaliser() -> None:
    model = make_model(Unscaled(6))
    collect(model)
    old_policy, filled = model.learner.old_policy, []

    def watched(*args: Any) -> Any:
        filled.append(int(model.policy.normalizer.moments.updates))
        return old_policy(*args)

    model.learner.old_policy = watched
    metrics = model.update()
    assert filled == [1]
    assert metrics["max_abs_log_ratio"] < 5.0


@pytest.mark.ledger("U3", "Z1")
def test_every_later_update_learns_in_the_units_in_which_its_rollout_was_played(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = make_model(Unscaled(6))
    taken: list[torch.Tensor] = []

    def watched_act(*args: Any) -> Any:
        chosen = act(*args)
        taken.append(chosen.distribution.log_prob(chosen.actions))
        return chosen

    old_policy, told = model.learner.old_policy, []

    def watched(*args: Any) -> Any:
        told.append(old_policy(*args).head_log_probs.sum(0))
        return old_policy(*args)

    monkeypatch.setattr("esper_agent.algorithm.collector.act", watched_act)
    model.learner.old_policy = watched
    for rollout in range(3):
        taken.clear()
        batch = collect(model)
        acted = model.buffer.to_sequences(torch.stack(taken))
        model.update()
        if rollout:
            assert ulps((told[-1] - acted)[batch.decisions], acted[batch.decisions]) < 2 * FEW_ULPS


@pytest.mark.ledger("Y26")
def test_the_last_update_of_an_annealed_run_has_a_rate() -> None:
    model, capture = make_model(learning_rate=LinearSchedule(0.01, 0.0, 1.0)), Capture()
    model.set_logger(Logger(None, [capture]))
    model.learn(6 * 24 * 4)
    rates = [row["train/learning_rate"] for row in capture.rows]
    assert rates == pytest.approx([0.01, 0.0075, 0.005, 0.0025])
    model.learn(6 * 24 * 2, reset_num_timesteps=False)
    assert all(row["train/learning_rate"] > 0 for row in capture.rows)
    model.learn(6 * 24 + 1)  # the last rollout overshoots
    assert capture.rows[-1]["train/learning_rate"] > 0


def test_the_logged_loss_is_what_was_minimised() -> None:
    coefs = {"op": 0.3, "slot": 0.05, "blueprint": 0.7}
    model, capture = make_model(ent_coef=coefs, n_minibatches=1, n_epochs=1, vf_coef=0.4), Capture()
    model.set_logger(Logger(None, [capture]))
    model.learn(6 * 24)
    (row,) = capture.rows
    entropies = sum(coef * row[f"train/entropy/{head}"] for head, coef in coefs.items())
    expected = row["train/policy_loss"] + 0.4 * row["train/value_loss"] - entropies
    assert row["train/loss"] == pytest.approx(expected, rel=1e-4)
    assert entropies > 0.1


def test_the_critic_is_judged_by_returns_that_do_not_contain_it_as_well() -> None:
    model = make_model(gae_lambda=0.5)
    model.learn(6 * 24)
    batch, _, partition = with_targets(model)
    buffer, gamma = model.buffer, model.gamma
    old = model.learner.old_policy(batch, partition)
    values = model.policy.values.denormalize(buffer.to_time(old.values)).double().numpy()
    returns, known = np.zeros_like(values), np.zeros_like(values, dtype=bool)
    bootstraps = model.policy.values.denormalize(buffer.bootstraps).double().numpy()
    for env in range(6):
        total, ended = 0.0, False
        for time in reversed(range(24)):
            if buffer.terminated[time, env] or buffer.truncated[time, env]:
                total, ended = (bootstraps[time, env] if buffer.truncated[time, env] else 0.0), True
            total = buffer.rewards[time, env].item() + gamma * total
            returns[time, env], known[time, env] = total, ended
    assert 0 < known.sum() < known.size
    assert np.array_equal(reaches_end(buffer).numpy() == 1, known)
    expected = 1 - (returns - values)[known].var() / returns[known].var()
    _, measured = model.learner.targets(buffer, batch, old, model.collector.last_values())
    assert measured["explained_variance_monte_carlo"].item() == pytest.approx(expected, abs=1e-3)
    assert measured["explained_variance"].item() != pytest.approx(expected, abs=1e-2)
