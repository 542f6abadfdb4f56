"""Every detector is fired by driving the real update into its condition."""

import math
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from esper_agent import FactoredRecurrentPPO
from esper_agent.diagnostics import DETECTORS, DetectorConfig
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter, Logger

Agent = FactoredRecurrentPPO


class TwoHeads(gymnasium.Env[Any, Any]):
    """A bandit with an op and a blueprint that only the second op uses."""

    heads = ("op", "blueprint")

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Dict({"op": spaces.Discrete(2), "blueprint": spaces.Discrete(3)})
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.steps = 0
        return self._observe(), self._info()

    def step(self, action: dict[str, int]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        reward = float(action["op"] + action["blueprint"])
        return self._observe(), reward, self.steps >= 5, False, self._info()

    def _observe(self) -> Any:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def _info(self) -> dict[str, Any]:
        by_op = {"op": np.ones((2, 2), np.int8), "blueprint": np.array([[1, 0, 0], [1, 1, 1]], np.int8)}
        marginal = {"op": np.ones(2, np.int8), "blueprint": np.ones(3, np.int8)}
        return {"action_mask": marginal, "action_mask_by_op": by_op}


def agent(**settings: Any) -> Agent:
    env = SyncVectorEnv([TwoHeads] * 4, autoreset_mode=AutoresetMode.SAME_STEP)
    sizes = {"n_steps": 16, "sequence_length": 16, "lstm_size": 8, "encoder_sizes": (8,), "head_hidden": 8}
    detectors = DetectorConfig(warmup_rollouts=0, patience=2)
    return FactoredRecurrentPPO(env, seed=0, **{**sizes, "detectors": detectors, **settings})


def healthy(_model: Agent) -> None:
    """Leave the agent as it is."""


def certain_blueprint(model: Agent) -> None:
    """Make the blueprint head deterministic."""
    with torch.no_grad():
        model.policy.decoder.heads["blueprint"].bias[2] = 50.0


def constant_critic(model: Agent) -> None:
    """Let the critic say the same of every state."""
    with torch.no_grad():
        model.policy.decoder.value.weight.zero_()


def saturated_memory(model: Agent) -> None:
    """Open all gates so far that the cells fill up."""
    for lstm in model.policy.memory.layers:
        torch.nn.init.constant_(lstm.bias_ih_l0, 50.0)


def silent_memory(model: Agent) -> None:
    """Close the output gates."""
    for lstm in model.policy.memory.layers:
        torch.nn.init.constant_(lstm.bias_ih_l0[-8:], -50.0)


def broken_critic(model: Agent) -> None:
    """Let the critic say NaN."""
    with torch.no_grad():
        model.policy.decoder.value.bias.fill_(math.nan)


FROZEN = {"learning_rate": 0.0}
RECKLESS = {"learning_rate": 0.5, "target_kl": 1e9, "max_group_grad_norm": None, "max_grad_norm": 100.0}
CASES: dict[str, tuple[Callable[[Agent], None], dict[str, Any]]] = {
    "entropy_collapse": (certain_blueprint, FROZEN),
    "kl_spike": (healthy, RECKLESS),
    "ratio_explosion": (healthy, RECKLESS),
    "value_collapse": (constant_critic, FROZEN),
    "nonfinite": (broken_critic, FROZEN),
    "gradient_drift": (healthy, {"vf_coef": 1e6, **FROZEN}),
    "lstm_saturation": (saturated_memory, FROZEN),
    "lstm_silence": (silent_memory, FROZEN),
}


@pytest.mark.ledger("D2", "X7")
def test_every_detector_has_a_case() -> None:
    assert set(CASES) == set(DETECTORS)


@pytest.mark.ledger("D1", "D2", "X7", "P11")
@pytest.mark.parametrize("name", CASES)
def test_the_real_update_fires_the_detector(name: str) -> None:
    condition, settings = CASES[name]
    model = agent(**settings)
    condition(model)
    model.learn(3 * 64)
    fired = {event.name for event in model.events}
    assert name in fired
    assert name not in {event.name for event in agent(**FROZEN).learn(3 * 64).events}


@pytest.mark.ledger("D1")
def test_the_collapsed_head_is_the_one_that_was_tampered_with() -> None:
    model = agent(**FROZEN)
    certain_blueprint(model)
    model.learn(3 * 64)
    assert {event.head for event in model.events if event.name == "entropy_collapse"} == {"blueprint"}


@pytest.mark.ledger("T4")
def test_an_explosion_in_the_blueprint_head_is_blamed_on_it_at_the_right_step() -> None:
    model = agent(learning_rate=0.0, target_kl=1e9, n_epochs=1, n_minibatches=1)
    learner, old_policy = model.learner, model.learner.old_policy

    def tampered(*args: Any) -> Any:
        old = old_policy(*args)
        old.head_log_probs[1, 2, 3] += 9.0  # [head, sequence, time]
        return old

    learner.old_policy = tampered  # type: ignore[method-assign]
    model.learn(64)
    events = [event for event in model.events if event.name == "ratio_explosion"]
    assert [event.head for event in events] == [None, "blueprint"]
    assert all("blueprint" in event.message and "step 14" in event.message for event in events)  # 3 * 4 + 2


class Listener(BaseCallback):
    """Hears what the diagnostics said about the last update."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def _on_rollout_start(self) -> None:
        self.heard += [event.name for event in self.model.last_events]  # type: ignore[attr-defined]

    def _on_step(self) -> bool:
        return True


class Capture(KVWriter):
    """Keeps the names of everything that is logged."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:  # noqa: ARG002
        self.names |= set(key_values)


@pytest.mark.ledger("D2", "X7")
def test_events_reach_callbacks_and_the_log() -> None:
    model, listener, capture = agent(**FROZEN), Listener(), Capture()
    constant_critic(model)
    model.set_logger(Logger(None, [capture]))
    model.learn(4 * 64, listener)
    assert "value_collapse" in listener.heard
    assert "diagnostics/value_collapse" in capture.names
