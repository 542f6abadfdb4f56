"""The one-call LSTM baseline is stock RecurrentPPO, only faster."""

import subprocess
import sys

import gymnasium as gym
import pytest
import torch
from esper_agent.baselines.recurrent_onecall import OneCallMlpLstmPolicy
from sb3_contrib import RecurrentPPO
from sb3_contrib.ppo_recurrent import MlpLstmPolicy
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import nn


def trained_weights(policy: type[MlpLstmPolicy], steps: int) -> dict[str, torch.Tensor]:
    env = DummyVecEnv([lambda: gym.make("CartPole-v1")] * 4)
    # Plain gradient descent, since Adam would blow the rounding of a gradient near 0 up to its step.
    sizes = {"lstm_hidden_size": 32, "net_arch": [32], "optimizer_class": torch.optim.SGD, "optimizer_kwargs": {}}
    settings = {"n_steps": 64, "batch_size": 64, "n_epochs": 3, "vf_coef": 1e-3, "max_grad_norm": 10.0}
    model = RecurrentPPO(policy, env, 1.0, seed=1, policy_kwargs=sizes, device="cpu", **settings)
    model.learn(steps)
    return model.policy.state_dict()


def test_it_learns_the_same_weights_as_stock() -> None:
    stock, ours = trained_weights(MlpLstmPolicy, 4 * 64 * 3), trained_weights(OneCallMlpLstmPolicy, 4 * 64 * 3)
    untrained = trained_weights(MlpLstmPolicy, 0)
    assert stock.keys() == ours.keys()
    for name, first in untrained.items():
        learnt = (stock[name] - first).abs().max().item()
        assert learnt > 1e-3, name
        torch.testing.assert_close(ours[name], stock[name], rtol=0, atol=1e-4 * learnt, msg=name)


def test_an_episode_start_inside_a_sequence_is_refused() -> None:
    lstm, states = nn.LSTM(2, 3), (torch.zeros(1, 1, 3), torch.zeros(1, 1, 3))
    starts = torch.tensor([1.0, 0.0, 1.0])
    with pytest.raises(ValueError, match="inside a sequence"):
        OneCallMlpLstmPolicy._process_sequence(torch.zeros(3, 2), states, starts, lstm)


@pytest.mark.ledger("N10")
def test_without_sb3_contrib_the_error_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['sb3_contrib'] = None\n"
        "import esper_agent\n"
        "try:\n    import esper_agent.baselines.recurrent_onecall\n"
        "except ImportError as error:\n    print(error)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "esper-agent[sb3]" in result.stdout
