"""Evaluation over whole episodes, with memory and masks."""

from typing import Any

import numpy as np
import pytest
from esper_agent import EvalCallback, FactoredRecurrentPPO, evaluate_policy
from gymnasium.vector import AutoresetMode
from toy_envs import Countdown, MaskedHeads, TMaze, hidden_cartpole_vector, make_hidden_cartpole

SMALL: dict[str, Any] = {"n_steps": 16, "sequence_length": 8, "encoder_sizes": (8,), "lstm_size": 8, "head_hidden": 8}


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_whole_episodes_are_counted_and_every_environment_plays_its_share(mode: AutoresetMode) -> None:
    model = FactoredRecurrentPPO(Countdown(4), seed=0, **SMALL)
    returns, lengths = evaluate_policy(model, Countdown(3, mode=mode), 8, return_episode_rewards=True)
    assert returns == [10.0] * 8
    assert lengths == [10] * 8
    assert evaluate_policy(model, Countdown(3), 5) == (10.0, 0.0)


def test_evaluation_equals_a_loop_over_predict() -> None:
    model = FactoredRecurrentPPO(hidden_cartpole_vector(4), seed=0, **SMALL, policy_gain=1.0)
    model.learn(256)
    env = make_hidden_cartpole()
    expected = []
    observation, _ = env.reset(seed=7)
    for _ in range(3):
        state, start, total, done = None, True, 0.0, False
        while not done:
            action, state = model.predict(observation, state, np.array([start]), deterministic=True)
            observation, reward, terminated, truncated, _ = env.step(action)
            total, start, done = total + reward, False, terminated or truncated
        expected.append(total)
        observation, _ = env.reset()
    returns, _ = evaluate_policy(model, make_hidden_cartpole(), 3, seed=7, return_episode_rewards=True)
    assert returns == expected


def test_masks_hold_during_evaluation() -> None:
    class Strict(MaskedHeads):
        def step(self, actions: Any) -> Any:
            legal = self.masks()["action_mask_by_op"]
            rows = np.arange(self.num_envs)
            for head in self.heads:
                assert legal[head][rows, actions["op"], actions[head]].all()
            return super().step(actions)

    model = FactoredRecurrentPPO(Strict(4), seed=0, **SMALL)
    model.learn(64)
    for deterministic in (True, False):
        evaluate_policy(model, Strict(3), 9, deterministic=deterministic, seed=0)


def test_evaluation_keeps_memory() -> None:
    """A policy that must remember scores differently when its state is thrown away at every step."""
    model = FactoredRecurrentPPO(TMaze(8), seed=0, **SMALL, policy_gain=3.0)
    chosen: list[list[int]] = []

    class Recording(TMaze):
        def step(self, actions: Any) -> Any:
            chosen[-1].extend(np.asarray(actions).tolist())
            return super().step(actions)

    chosen.append([])
    evaluate_policy(model, Recording(16), 32, seed=0)
    step = model.policy.step
    chosen.append([])
    model.policy.step = lambda obs, _state, starts: step(obs, model.policy.initial_state(len(obs)), starts)
    evaluate_policy(model, Recording(16), 32, seed=0)
    assert chosen[0] != chosen[1]


def test_stochastic_evaluation_is_reproducible_and_leaves_training_alone() -> None:
    model = FactoredRecurrentPPO(MaskedHeads(4), seed=0, **SMALL)
    before = model.action_generator.get_state()
    first = evaluate_policy(model, MaskedHeads(4), 12, deterministic=False, seed=3)
    assert first == evaluate_policy(model, MaskedHeads(4), 12, deterministic=False, seed=3)
    assert (model.action_generator.get_state() == before).all()


def test_the_callback_logs_and_keeps_the_best(tmp_path: Any) -> None:
    model = FactoredRecurrentPPO(Countdown(4), seed=0, **SMALL)
    callback = EvalCallback(Countdown(2), n_eval_episodes=4, eval_freq=10, best_model_save_path=tmp_path)
    model.learn(64, callback, log_interval=None)
    assert callback.best_mean_reward == callback.last_mean_reward == 10.0
    assert model.logger.name_to_value["eval/mean_reward"] == 10.0
    assert model.logger.name_to_value["eval/mean_ep_length"] == 10.0
    loaded = FactoredRecurrentPPO.load(tmp_path / "best_model.ckpt", Countdown(4))
    assert loaded.num_timesteps == 40
