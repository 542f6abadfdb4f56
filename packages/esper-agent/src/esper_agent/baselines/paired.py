"""Paired episodes: every policy plays the same instances, with the same initial weights and data order."""

from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Policy(Protocol):
    """Anything with SB3's `predict`, masks included."""

    def predict(
        self, observation: Any, state: Any, episode_start: Any, deterministic: bool, action_masks: Any
    ) -> tuple[Any, Any]:
        """Actions and the new state."""


@dataclass(frozen=True)
class Episodes:
    """How a policy did in each episode, [episodes] each."""

    test_accuracy: Floats  # of the committed network, on the split that no step reads
    val_accuracy: Floats  # of the committed network, on the split that the reward reads
    added_parameters: Floats  # at the end, as a share of the host's
    episode_return: Floats


def make_test_env(env_id: str, episodes: int, **settings: Any) -> VectorEnv[Any, Any, Any]:
    """A vector environment with one row per episode, on held-out instances."""
    return gymnasium.make_vec(env_id, num_envs=episodes, autoreset_mode="disabled", **{"instances": "test", **settings})


def play(policy: Policy, env: VectorEnv[Any, Any, Any], seed: int, deterministic: bool = True) -> Episodes:
    """Play one episode in every row of an environment from `make_test_env`; row i has the seed `seed + i`."""
    observation, infos = env.reset(seed=seed)
    returns, state, ended = np.zeros(env.num_envs), None, np.zeros(env.num_envs, dtype=np.bool_)
    start = np.ones(env.num_envs, dtype=np.bool_)
    while not ended.all():
        actions, state = policy.predict(observation, state, start, deterministic, infos)
        observation, reward, ended, _, infos = env.step(actions)
        returns += reward
        start = np.zeros_like(start)
        if ended.any() and not ended.all():
            raise RuntimeError("some episodes ended early; play them with a horizon that all rows reach")
    test = env.unwrapped.evaluate_test()  # type: ignore[attr-defined]
    return Episodes(
        test.committed.double().cpu().numpy(), infos["committed_metric"], infos["added_parameters"], returns
    )
