"""The single environment: a population of one behind Gymnasium's `Env`."""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from esper_env.actions import HEADS
from esper_env.export import GrownNetwork
from esper_env.population.evaluation import Evaluation
from esper_env.vector_env import EsperVectorEnv


class EsperEnv(gymnasium.Env[NDArray[np.float32], dict[str, Any]]):
    """SPECIFICATION"""

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # noqa: RUF012 (Gymnasium's form)
    heads = HEADS

    def __init__(self, render_mode: str | None = None, **settings: Any) -> None:
        self.row = EsperVectorEnv(1, render_mode=render_mode, autoreset_mode="disabled", **settings)
        self.render_mode = self.row.render_mode
        self.observation_space = self.row.single_observation_space
        self.action_space = self.row.single_action_space
        self.gamma, self.reward_range = self.row.gamma, self.row.reward_range

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin the next episode; with a seed, the first one of that seed."""
        super().reset(seed=seed, options=options)
        observation, infos = self.row.reset(seed=[seed])
        return observation[0], _first(infos)

    def step(self, action: dict[str, Any]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Apply the operation, train one epoch, validate, and reward."""
        if self.row.simulation.state.ended.any():
            raise RuntimeError("the episode is over; call reset() before step()")
        observation, reward, terminated, _, infos = self.row.step(action)
        return observation[0], float(reward[0]), bool(terminated[0]), False, _first(infos)

    def render(self) -> Any:
        """The picture or text of the present state, or None without a render mode."""
        frames = self.row.render()
        return None if frames is None else frames[0]

    def close(self) -> None:
        """Nothing is held open; closing twice is fine."""

    def legality(self) -> dict[str, Any]:
        """The masks of the present state, `action_mask` and `action_mask_by_op`, as in info."""
        return _first(self.row.legality())

    def current(self) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """The present observation and info, for continuing after `load_state_dict`."""
        observation, infos = self.row.current()
        return observation[0], _first(infos)

    def evaluate_test(self) -> Evaluation:
        """The host on the test split, which no step reads."""
        return self.row.evaluate_test()

    def export_host(self) -> GrownNetwork:
        """The host with its live seeds as a plain `nn.Module`."""
        return self.row.export_host(0)

    def describe_observation(self, vector: Any) -> str:
        """An observation as a readable table."""
        return self.row.describe_observation(vector)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the future depends on, as nested dicts of tensors and plain values."""
        return self.row.state_dict()

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Continue from `state_dict()` of an environment with the same arguments."""
        self.row.load_state_dict(saved)


def _first(infos: dict[str, Any]) -> dict[str, Any]:
    """The info of a vector's only row."""
    return {key: _first_value(value) for key, value in infos.items() if not key.startswith("_")}


def _first_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _first_value(one) for key, one in value.items()}
    one = value[0]
    return one.copy() if isinstance(one, np.ndarray) else one.item()
