"""The environment side: any Gymnasium environment as a vector environment that speaks tensors."""

import importlib
import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from torch import Tensor
from torch.nn import functional

from esper_agent.config import DEFAULT_GAMMA
from esper_agent.networks.action_spec import ActionSpec, action_spec, check_cells, masks_to_cells, to_environment
from esper_agent.networks.entity_encoder import Entities

AnyEnv = gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]


def make_vector_env(env: str | AnyEnv, n_envs: int, device: str = "cpu") -> VectorEnv[Any, Any, Any]:
    """A vector environment from an id, a single environment or a vector environment.

    Args:
        env: an id such as "CartPole-v1" or "package:Id-v0", or an environment.
        n_envs: how many environments to make from an id.
        device: where those compute that can choose.
    """
    if isinstance(env, VectorEnv):
        return env
    if isinstance(env, gymnasium.Env):
        return SyncVectorEnv([lambda: env], autoreset_mode=AutoresetMode.SAME_STEP)
    module, _, _ = env.rpartition(":")
    if module:
        importlib.import_module(module)
    spec = gymnasium.spec(env.removeprefix(f"{module}:"))
    if spec.vector_entry_point is None:
        return gymnasium.make_vec(spec, n_envs, "sync", vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP})
    creator = spec.vector_entry_point
    offered = inspect.signature(load_env_creator(creator) if isinstance(creator, str) else creator).parameters
    wanted: dict[str, Any] = {"output": "torch", "autoreset_mode": "same_step", "device": device}
    return gymnasium.make_vec(spec, n_envs, **{key: value for key, value in wanted.items() if key in offered})


def declared(env: VectorEnv[Any, Any, Any], name: str) -> Any:
    """An attribute that the environment, or each of its sub-environments, declares; None if it does not."""
    if hasattr(env.unwrapped, name):
        return getattr(env.unwrapped, name)
    if not hasattr(env.unwrapped, "get_attr"):
        return None
    try:
        values = env.unwrapped.get_attr(name)
    except AttributeError:
        return None
    if any(value != values[0] for value in values):
        raise ValueError(f"the environments declare different values of {name}: {values}")
    return values[0]


def resolve_gamma(env: VectorEnv[Any, Any, Any], gamma: float | None) -> float:
    """The discount: the environment's own if it declares one, which the agent's must then equal.

    Raises:
        ValueError: when both are given and differ.
    """
    own = declared(env, "gamma")
    if own is None:
        return DEFAULT_GAMMA if gamma is None else gamma
    if gamma is not None and gamma != own:
        raise ValueError(f"gamma is {gamma!r}; allowed: the environment's own, {own!r} (leave gamma out to take it)")
    return float(own)


@dataclass(frozen=True)
class ObservationEncoder:
    """Turns batches of observations into float vectors: boxes are flattened, discrete values one-hot."""

    shape: tuple[int, ...]  # of a single observation
    sizes: tuple[int, ...] | None  # numbers of discrete values; None for numbers that are taken as they are

    @classmethod
    def of(cls, space: spaces.Space[Any]) -> "ObservationEncoder":
        """The encoder of a single environment's observation space.

        Raises:
            ValueError: for a space that is not a Box or made of discrete values starting at 0.
        """
        shape = tuple(space.shape or ())
        if isinstance(space, spaces.Discrete) and space.start == 0:
            return cls(shape, (int(space.n),))
        if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1 and not space.start.any():
            return cls(shape, tuple(int(n) for n in space.nvec))
        if not isinstance(space, spaces.Box | spaces.MultiBinary):
            raise ValueError(
                f"observation space {space} is not supported; allowed: Box, Discrete, MultiDiscrete, MultiBinary "
                "(gymnasium.wrappers.FlattenObservation turns others into a Box)"
            )
        return cls(shape, None)

    @property
    def size(self) -> int:
        """Width of an encoded observation."""
        return math.prod(self.shape) if self.sizes is None else sum(self.sizes)

    def __call__(self, observations: Any, device: torch.device) -> Tensor:
        """Encode a batch, [N, ...] to float32 [N, size]."""
        batch = torch.as_tensor(observations, device=device)
        if self.sizes is None:
            return batch.to(torch.float32).flatten(1)
        columns = batch.long().view(len(batch), len(self.sizes))
        parts = [functional.one_hot(columns[:, i], n) for i, n in enumerate(self.sizes)]
        return torch.cat(parts, 1).float()

    def is_batch(self, observations: Any) -> bool:
        """Whether these are the observations of several environments rather than of one."""
        return np.ndim(observations) > len(self.shape)


def declared_entities(env: VectorEnv[Any, Any, Any], actions: ActionSpec) -> Entities | None:
    """The entities that an environment declares; None without any, or if a wrapper changed the spaces past them."""
    head, shared, width = declared(env, "observation_entities") or (None, 0, 0)
    if head not in actions.heads[1:]:
        return None
    count = actions.sizes[actions.heads.index(head)]
    fits = env.single_observation_space.shape == (shared + count * width,)
    return Entities(head, shared, count, width) if fits else None


@dataclass(frozen=True)
class Transition:
    """What a step of all environments gave."""

    observations: Tensor  # [N, size]
    masks: Tensor | None
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    final_observations: Tensor | None  # [N, size] where a truncated episode was reset at once; other rows are undefined
    infos: dict[str, Any]


class TensorEnv:
    """A vector environment behind tensors on the learner's device.

    Args:
        env: the vector environment.
        device: the learner's device.
        seed: seed of the first reset.
        check_masks: verify every mask.
    """

    def __init__(
        self, env: VectorEnv[Any, Any, Any], device: torch.device, seed: int | None, *, check_masks: bool
    ) -> None:
        mode = env.metadata.get("autoreset_mode")
        if mode not in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
            raise ValueError(f"autoreset_mode is {mode!r}; allowed: AutoresetMode.SAME_STEP or NEXT_STEP")
        self.env, self.device, self.check_masks = env, device, check_masks
        self.num_envs = env.num_envs
        self.resets_next_step = mode == AutoresetMode.NEXT_STEP
        self.encoder = ObservationEncoder.of(env.single_observation_space)
        observations, infos = env.reset(seed=seed)
        self.tensors = isinstance(observations, Tensor)
        heads = declared(env, "heads")
        self.actions: ActionSpec = action_spec(env.single_action_space, heads and tuple(heads), infos)
        self.entities = declared_entities(env, self.actions)
        self.first_observations = self.encoder(observations, device)
        self.first_masks = self.masks(infos)

    def step(self, actions: Tensor) -> Transition:
        """Step all environments with actions [heads, N]."""
        observations, rewards, terminated, truncated, infos = self.env.step(
            to_environment(self.actions, actions, tensors=self.tensors)
        )
        return Transition(
            observations=self.encoder(observations, self.device),
            masks=self.masks(infos),
            rewards=torch.as_tensor(rewards, device=self.device).to(torch.float32),
            terminated=torch.as_tensor(terminated, device=self.device),
            truncated=torch.as_tensor(truncated, device=self.device),
            final_observations=self._final_observations(truncated, infos),
            infos=infos,
        )

    def masks(self, infos: Mapping[str, Any]) -> Tensor | None:
        """The masks of the infos in the layout of cells; None for an environment without masks."""
        if not self.actions.masked:
            return None
        cells = masks_to_cells(self.actions, infos, self.device)
        if self.check_masks:
            check_cells(self.actions, cells)
        return cells

    def _final_observations(self, truncated: Any, infos: Mapping[str, Any]) -> Tensor | None:
        """The last observations of truncated episodes that were reset at once; None if there is none.

        Raises:
            ValueError: when the environment keeps them to itself: the value after the truncation is then unknown.
        """
        if self.resets_next_step:
            return None
        if "final_obs" not in infos:
            if truncated.any():
                raise ValueError("the environment truncated an episode without infos['final_obs']")
            return None
        final = infos["final_obs"]
        if isinstance(final, Tensor):
            return self.encoder(final, self.device)
        rows = np.flatnonzero(np.asarray(truncated))
        if not len(rows):
            return None
        result = torch.zeros(self.num_envs, self.encoder.size, device=self.device)
        result[torch.as_tensor(rows)] = self.encoder(np.stack([final[row] for row in rows]), self.device)
        return result
