"""Cheap environments for measuring agents, each offered to Gymnasium agents and to Stable-Baselines3."""

import importlib
import sys
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

Array = NDArray[Any]
BANK = 256  # masks are drawn beforehand, so that the environment costs next to nothing


# The tests' small environments serve here too; they are no part of the packages.
sys.path.append(str(Path(__file__).parents[1] / "tests" / "agent"))
TOYS: Any = importlib.import_module("toy_envs")


def make_cartpole() -> gymnasium.Env[Array, int]:
    """CartPole that shows positions only, so that velocities must be remembered."""
    env: gymnasium.Env[Array, int] = TOYS.make_hidden_cartpole()
    return env


class MaskedHeads(VectorEnv[Array, dict[str, Array], Array]):
    """Five heads with random legality per op; the reward asks for the op that the observation marks.

    Args:
        num_envs: environments side by side.
        size: length of the observation.
        episode_steps: steps of an episode.
    """

    heads: ClassVar[tuple[str, ...]] = ("op", "slot", "blueprint", "blend", "tempo")
    sizes: ClassVar[tuple[int, ...]] = (5, 3, 6, 3, 3)
    users: ClassVar[dict[str, tuple[int, ...]]] = {
        "slot": (1, 2, 3, 4),
        "blueprint": (1,),
        "blend": (1,),
        "tempo": (1,),
    }

    def __init__(self, num_envs: int, size: int = 48, episode_steps: int = 30) -> None:
        self.num_envs, self.size, self.episode_steps = num_envs, size, episode_steps
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space = spaces.Box(-1.0, 1.0, (size,), np.float32)
        self.single_action_space = spaces.Dict(
            {head: spaces.Discrete(n) for head, n in zip(self.heads, self.sizes, strict=True)}
        )
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed if isinstance(seed, int) else None, options=options)
        self.bank = self._draw_masks(BANK)
        # Episodes end at different times, as in real use.
        self.age = np.arange(self.num_envs) % self.episode_steps
        return self._draw()

    def step(self, actions: dict[str, Array]) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        wanted = self.observation[:, :5].argmax(axis=1)
        reward = (actions["op"] == wanted).astype(np.float64)
        self.age += 1
        terminated = self.age >= self.episode_steps
        self.age[terminated] = 0
        before = self.observation
        observation, info = self._draw()
        if terminated.any():
            info["final_obs"], info["_final_obs"] = np.empty(self.num_envs, dtype=object), terminated
            for row in np.flatnonzero(terminated):
                info["final_obs"][row] = before[row]
        return observation, reward, terminated, np.zeros(self.num_envs, dtype=bool), info

    def _draw(self) -> tuple[Array, dict[str, Any]]:
        self.observation = self.np_random.uniform(-1, 1, (self.num_envs, self.size)).astype(np.float32)
        rows = self.np_random.integers(BANK, size=self.num_envs)
        masks = {kind: {head: table[rows] for head, table in tables.items()} for kind, tables in self.bank.items()}
        return self.observation, masks

    def _draw_masks(self, rows: int) -> dict[str, dict[str, Array]]:
        """Random legality; an op that does not use a head leaves it one value."""
        op = self.np_random.random((rows, 5)) < 0.7
        op[:, 0] = True
        marginal: dict[str, Array] = {"op": op.view(np.int8)}
        by_op: dict[str, Array] = {"op": np.repeat(op[:, None], 5, axis=1).view(np.int8)}
        for head, n in zip(self.heads[1:], self.sizes[1:], strict=True):
            table = np.zeros((rows, 5, n), dtype=bool)
            table[:, :, 0] = True
            legal = self.np_random.random((rows, len(self.users[head]), n)) < 0.7
            legal[:, :, 0] |= ~legal.any(axis=2)
            table[:, self.users[head]] = legal
            by_op[head] = table.view(np.int8)
            marginal[head] = (table & op[:, :, None]).max(axis=1).view(np.int8)
        return {"action_mask": marginal, "action_mask_by_op": by_op}


class MultiDiscreteVecEnv(VecEnv):
    """`MaskedHeads` as Stable-Baselines3 sees it: MultiDiscrete actions, no masks."""

    def __init__(self, env: MaskedHeads) -> None:
        self.env = env
        self.render_mode = None
        super().__init__(env.num_envs, env.single_observation_space, spaces.MultiDiscrete(list(env.sizes)))

    def reset(self) -> VecEnvObs:
        return self.env.reset(seed=self._seeds[0])[0]

    def step_async(self, actions: Array) -> None:
        self.actions = dict(zip(self.env.heads, actions.T, strict=True))

    def step_wait(self) -> VecEnvStepReturn:
        observation, reward, terminated, _, info = self.env.step(self.actions)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for row in np.flatnonzero(terminated):
            infos[row]["terminal_observation"] = info["final_obs"][row]
        return observation, reward.astype(np.float32), terminated, infos

    def close(self) -> None:
        self.env.close()

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        return [getattr(self.env, attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        raise NotImplementedError("all rows are one environment: none has attributes or methods of its own")

    def env_method(self, method_name: str, *args: Any, indices: VecEnvIndices = None, **kwargs: Any) -> list[Any]:
        raise NotImplementedError("all rows are one environment: none has attributes or methods of its own")

    def env_is_wrapped(self, wrapper_class: Any, indices: VecEnvIndices = None) -> list[bool]:  # noqa: ARG002
        return [False for _ in self._get_indices(indices)]
