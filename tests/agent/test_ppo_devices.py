"""The agent learns where its environment computes: on the CPU, and on a GPU where there is one."""

import pytest
import torch
from esper_agent import FactoredRecurrentPPO
from esper_env import EsperVectorEnv

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.cuda, needs_cuda])])
def test_an_agent_learns_on_the_device_of_its_environment(device: str) -> None:
    env = EsperVectorEnv(4, autoreset_mode="same_step", output="torch", device=device, task="digits_mlp", horizon=8)
    agent = FactoredRecurrentPPO(env, n_steps=8, sequence_length=8, seed=0, device=device)
    before = [parameter.clone() for parameter in agent.policy.parameters()]
    agent.learn(64)
    after = list(agent.policy.parameters())
    assert {parameter.device.type for parameter in after} == {device}
    assert any(not torch.equal(old, new) for old, new in zip(before, after, strict=True))
    assert all(bool(torch.isfinite(parameter).all()) for parameter in after)
