"""Esper's vector environment as a native Stable-Baselines3 `VecEnv`: N rows stay one tensor program.

PPO("MlpPolicy", VecMonitor(EsperVecEnv("Esper-v0", num_envs=64)))
MaskablePPO("MlpPolicy", VecMonitor(EsperVecEnv("Esper-v0", num_envs=64, actions="discrete")))
"""

import inspect
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from esper_env import EsperVectorEnv
from esper_env.wrappers import JointActions, MarginalActions
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvStepReturn

from esper_agent.evaluation.episodes import numbers

ACTIONS: dict[str, type[MarginalActions] | type[JointActions]] = {
    "multi_discrete": MarginalActions,
    "discrete": JointActions,
}


class EsperVecEnv(VecEnv):
    """Rows of an Esper environment behind SB3's interface, with masks for MaskablePPO.

    The info of a row holds the environment's numbers (`metric`, `committed_metric`, `added_parameters`,
    `invalid_action`, ...), `TimeLimit.truncated` and, where an episode ended, that episode's last numbers and its
    `terminal_observation`. The environment owns the discount: an algorithm that learns here with another is refused.

    Args:
        env_id: The environment's id.
        num_envs: How many rows.
        actions: "multi_discrete" for one integer per head with marginal masks, or "discrete" for one integer that
            counts all joint actions with exact masks.
        **settings: As for the environment.
    """

    def __init__(self, env_id: str, num_envs: int, actions: str = "multi_discrete", **settings: Any) -> None:
        if actions not in ACTIONS:
            raise ValueError(f"actions is {actions!r}; allowed: {', '.join(ACTIONS)}")
        env = gymnasium.make_vec(env_id, num_envs=num_envs, autoreset_mode="same_step", **settings).unwrapped
        heads = env.single_action_space
        assert isinstance(env, EsperVectorEnv)
        assert isinstance(heads, spaces.Dict)
        self.env, self.actions = env, ACTIONS[actions](heads)
        self._chosen: Any = None
        self._infos: dict[str, Any] = {}
        super().__init__(num_envs, self.env.single_observation_space, self.actions.space)

    def reset(self) -> NDArray[np.float32]:
        """Begin new episodes in all rows, with the seeds of `seed()` if it was called since the last reset.

        Raises:
            ValueError: when an algorithm with another gamma than the environment's calls this in order to learn.
        """
        if any(self._options):
            raise ValueError(f"options is {self._options}; allowed: none, since SB3 resets all rows at once")
        _check_gamma(self.env.gamma)
        observations: NDArray[np.float32]
        observations, self._infos = self.env.reset(seed=self._seeds)
        self.reset_infos = _rows(numbers(self._infos, self.num_envs))
        self._reset_seeds()
        return observations

    def step_async(self, actions: NDArray[np.int64]) -> None:
        """Remember the actions."""
        self._chosen = self.actions.decode(actions)

    def step_wait(self) -> VecEnvStepReturn:
        """Step all rows; those that end begin a new episode at once."""
        observations, rewards, terminated, truncated, self._infos = self.env.step(self._chosen)
        done = terminated | truncated
        fresh, cut = numbers(self._infos, self.num_envs), truncated & ~terminated
        last = numbers(self._infos["final_info"], self.num_envs) if done.any() else fresh
        infos = _rows({**last, "TimeLimit.truncated": cut})
        for row in np.flatnonzero(done):
            infos[row]["terminal_observation"] = self._infos["final_obs"][row]
            self.reset_infos[row] = {key: column[row].item() for key, column in fresh.items()}
        return observations, rewards.astype(np.float32), done, infos

    def action_masks(self) -> NDArray[np.bool_]:
        """Which actions are legal now, [n, flags]."""
        flags: NDArray[np.bool_] = self.actions.flags(self._infos)
        return flags

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        """A picture of every row."""
        return self.env.render() or (None,) * self.num_envs

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """An attribute of the environment, which all rows share."""
        owner = self if attr_name == "action_masks" else self.env
        return [getattr(owner, attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Refused: rows have no attributes of their own.

        Raises:
            AttributeError: always.
        """
        del value, indices
        raise AttributeError(f"the rows share {attr_name}; set it as an argument when the environment is made")

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """The masks of the rows, computed for all of them at once.

        Raises:
            AttributeError: for any other method.
        """
        if method_name != "action_masks":
            raise AttributeError(f"method_name is {method_name!r}; allowed: action_masks, the only one that rows have")
        masks = self.action_masks(*method_args, **method_kwargs)
        return [masks[row] for row in self._get_indices(indices)]

    def env_is_wrapped(
        self, wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]], indices: Any = None
    ) -> list[bool]:
        """No row is wrapped on its own."""
        del wrapper_class
        return [False for _ in self._get_indices(indices)]


def _check_gamma(own: float) -> None:
    """Refuse an algorithm with another discount.

    SB3 tells an environment nothing about who learns in it; but every algorithm resets it from within its `learn`.

    Raises:
        ValueError: when the algorithm on the call stack, if there is one, has another gamma.
    """
    frame = inspect.currentframe()
    while frame is not None:
        learner = frame.f_locals.get("self")
        if isinstance(learner, BaseAlgorithm) and getattr(learner, "gamma", own) != own:
            gamma = learner.gamma  # type: ignore[attr-defined]
            raise ValueError(f"gamma is {gamma!r}; allowed: the environment's own, {own!r}; pass gamma={own!r}")
        frame = frame.f_back


def _rows(columns: dict[str, NDArray[Any]]) -> list[dict[str, Any]]:
    """One dict per row."""
    values = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in values]
