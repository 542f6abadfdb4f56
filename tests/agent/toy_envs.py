"""Small environments that the agent's tests and benchmarks train in."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv


class HideVelocities(gymnasium.ObservationWrapper[Any, Any, Any]):
    """CartPole that shows positions only: the policy has to remember where things were."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        space = env.observation_space
        assert isinstance(space, spaces.Box)
        self.observation_space = spaces.Box(space.low[[0, 2]], space.high[[0, 2]], dtype=np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[[0, 2]]


def make_hidden_cartpole() -> gymnasium.Env[Any, Any]:
    return HideVelocities(gymnasium.make("CartPole-v1"))


def hidden_cartpole_vector(n: int, mode: AutoresetMode = AutoresetMode.SAME_STEP) -> SyncVectorEnv:
    return SyncVectorEnv([make_hidden_cartpole] * n, autoreset_mode=mode)
