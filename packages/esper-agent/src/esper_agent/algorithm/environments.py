"""The environment side: any Gymnasium environment as a vector environment that speaks tensors."""

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from esper_agent.algorithm.adapters import SB3Rows, rows_of, with_masks
from esper_agent.algorithm.observations import ObservationEncoder, say_how_observations_are_read
from esper_agent.config import DEFAULT_GAMMA, Masks
from esper_agent.networks.action_spec import ActionSpec, action_spec, check_cells, masks_to_cells, to_environment
from esper_agent.networks.entity_encoder import Entities

AnyEnv = gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any] | VecEnv


def make_vector_env(env: str | AnyEnv, n_envs: int, device: str = "cpu", **settings: Any) -> VectorEnv[Any, Any, Any]:
    """A vector environment from an id, a single environment or a vector environment, with its masks in its infos.

    Args:
        env: an id such as "CartPole-v1" or "package:Id-v0", a Gymnasium environment or vector environment, or a VecEnv
            of Stable-Baselines3.
        n_envs: how many environments to make from an id.
        device: where those compute that can choose.
        **settings: arguments of the environment that an id names.
    """
    if isinstance(env, VectorEnv):
        return with_masks(env)
    if isinstance(env, VecEnv):
        return with_masks(SB3Rows(env))
    if isinstance(env, gymnasium.Env):
        return with_masks(SyncVectorEnv([lambda: env], autoreset_mode=AutoresetMode.SAME_STEP))
    return with_masks(_make_from_id(env, n_envs, device, settings))


def _make_from_id(env: str, n_envs: int, device: str, settings: Mapping[str, Any]) -> VectorEnv[Any, Any, Any]:
    module, _, _ = env.rpartition(":")
    if module:
        importlib.import_module(module)
    spec = gymnasium.spec(env.removeprefix(f"{module}:"))
    if spec.vector_entry_point is None:
        mode = {"autoreset_mode": AutoresetMode.SAME_STEP}
        return gymnasium.make_vec(spec, n_envs, "sync", vector_kwargs=mode, **settings)
    creator = spec.vector_entry_point
    offered = inspect.signature(load_env_creator(creator) if isinstance(creator, str) else creator).parameters
    wanted: dict[str, Any] = {"output": "torch", "autoreset_mode": "same_step", "device": device}
    given = {key: value for key, value in wanted.items() if key in offered}
    return gymnasium.make_vec(spec, n_envs, **given, **settings)


def declared(env: VectorEnv[Any, Any, Any], name: str) -> Any:
    """An attribute that the environment, or each of its rows beneath their wrappers, declares; None if it does not."""
    base = env.unwrapped
    if hasattr(base, name):
        return getattr(base, name)
    if isinstance(base, SB3Rows):
        values = base.declared(name)
    else:
        values = [getattr(row.unwrapped, name) for row in rows_of(base) if hasattr(row.unwrapped, name)]
    if any(value != values[0] for value in values):
        raise ValueError(f"the environments declare different values of {name}: {values}")
    return values[0] if values else None


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


def declared_entities(env: VectorEnv[Any, Any, Any], actions: ActionSpec) -> Entities | None:
    """The entities that an environment declares; None without any, or if a wrapper changed the spaces past them."""
    head, shared, width = declared(env, "observation_entities") or (None, 0, 0)
    sizes = dict(zip(actions.heads[1:], actions.sizes[1:], strict=True))
    if head not in sizes:
        return None
    count = sizes[head]
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
        condition_on_op: argument heads have logits for every value of the op head.
        masks: which of the environment's masks are used, see `PPOConfig`.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        device: torch.device,
        seed: int | None,
        *,
        check_masks: bool,
        condition_on_op: bool,
        masks: Masks = "exact",
    ) -> None:
        mode = env.metadata.get("autoreset_mode")
        if mode not in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
            raise ValueError(f"autoreset_mode is {mode!r}; allowed: AutoresetMode.SAME_STEP or NEXT_STEP")
        self.env, self.device, self.check_masks = env, device, check_masks
        self.num_envs = env.num_envs
        self.resets_next_step = mode == AutoresetMode.NEXT_STEP
        self.encoder = ObservationEncoder.of(env.single_observation_space)
        say_how_observations_are_read(self.encoder)
        observations, infos = env.reset(seed=seed)
        self.tensors = isinstance(observations, Tensor)
        heads = declared(env, "heads")
        self.actions: ActionSpec = action_spec(
            env.single_action_space, heads and tuple(heads), infos, condition_on_op=condition_on_op, masks=masks
        )
        self.entities = declared_entities(env, self.actions)
        self._begin(observations, infos)

    def reset(self, seed: int | None) -> None:
        """Begin new episodes in all environments."""
        self._begin(*self.env.reset(seed=seed))

    def _begin(self, observations: Any, infos: Mapping[str, Any]) -> None:
        self.first_observations = self.encoder(observations, self.device)
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
        encoded = [self.encoder(self.encoder.as_batch(final[row]), self.device) for row in rows]
        result[torch.as_tensor(rows)] = torch.cat(encoded)
        return result
