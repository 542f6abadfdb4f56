"""A small vector environment that can be saved and restored: recall the cue of the episode's first step."""

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

EPISODE_STEPS = 7
CUES = 3


class Resumable(VectorEnv[Any, Any, Any]):
    """Shows a cue at the first step; later it pays for naming it."""

    def __init__(self, num_envs: int = 1, render_mode: str | None = None, episode_steps: int = EPISODE_STEPS) -> None:
        self.num_envs, self.render_mode, self.episode_steps = num_envs, render_mode, episode_steps
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space = spaces.Box(0.0, 1.0, (CUES + 1,), np.float32)
        self.single_action_space = spaces.Discrete(CUES)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.age = np.zeros(self.num_envs, dtype=np.int64)
        self.cue = self.np_random.integers(CUES, size=self.num_envs)
        return self._observe(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        reward = np.where((actions == self.cue) & (self.age > 0), 1.0, 0.0)
        self.age = self.age + 1
        over = self.age >= self.episode_steps
        self.age = np.where(over, 0, self.age)
        self.cue = np.where(over, self.np_random.integers(CUES, size=self.num_envs), self.cue)
        return self._observe(), reward, over, np.zeros_like(over), {}

    def _observe(self) -> Any:
        shown = np.eye(CUES)[self.cue] * (self.age == 0)[:, None]
        return np.concatenate([shown, self.age[:, None] / self.episode_steps], axis=1).astype(np.float32)

    def state_dict(self) -> dict[str, Any]:
        return {
            "age": torch.from_numpy(self.age),
            "cue": torch.from_numpy(self.cue),
            "generator": self.np_random.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.age, self.cue = state["age"].numpy().copy(), state["cue"].numpy().copy()
        self.np_random.bit_generator.state = state["generator"]


gymnasium.register("Resumable-v0", entry_point=None, vector_entry_point=Resumable)
