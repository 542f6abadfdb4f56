"""Adapters: Stable-Baselines3's VecEnv, environments that answer `action_masks()`, and no environment at all."""

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space, create_empty_array
from gymnasium.wrappers import NormalizeReward
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from esper_agent.algorithm.observations import described_size, restore_space
from esper_agent.networks.action_spec import ActionSpec, action_space
from esper_agent.networks.entity_encoder import Entities

INFOS_BY_ENV = "infos_by_env"  # where an SB3Rows keeps SB3's infos


class SB3Rows(VectorEnv[Any, Any, Any]):
    """A VecEnv of Stable-Baselines3 as a Gymnasium vector environment, which resets in the same step.

    Args:
        vec_env: the VecEnv.
    """

    def __init__(self, vec_env: VecEnv) -> None:
        self.vec_env, self.num_envs, self.render_mode = vec_env, vec_env.num_envs, vec_env.render_mode
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space, self.single_action_space = vec_env.observation_space, vec_env.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin new episodes; row i has the seed `seed + i`."""
        if seed is not None:
            self.vec_env.seed(seed)
        if options:
            self.vec_env.set_options(options)
        return self.vec_env.reset(), {INFOS_BY_ENV: self.vec_env.reset_infos}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all rows; SB3 tells truncations and last observations in the infos."""
        observations, rewards, done, infos = self.vec_env.step(actions)
        truncated = done & np.array([bool(info.get("TimeLimit.truncated", False)) for info in infos])
        told: dict[str, Any] = {INFOS_BY_ENV: infos}
        if done.any():
            final = np.full(self.num_envs, None, dtype=object)
            for row in np.flatnonzero(done):
                final[row] = infos[row]["terminal_observation"]
            told |= {"final_obs": final, "_final_obs": done}
        return observations, rewards, done & ~truncated, truncated, told

    def close_extras(self, **_: Any) -> None:
        """Close the VecEnv."""
        self.vec_env.close()

    def declared(self, name: str) -> list[Any]:
        """What the environments beneath their wrappers declare under this name; empty if they do not."""
        base = self.vec_env.unwrapped
        if hasattr(base, "envs"):
            return [getattr(env.unwrapped, name) for env in base.envs if hasattr(env.unwrapped, name)]
        if not base.has_attr(name) or (name == "gamma" and any(base.env_is_wrapped(NormalizeReward))):
            return []  # across processes SB3 does not look beneath wrappers: that gamma is the wrapper's
        return base.get_attr(name)


class MasksInInfo(VectorWrapper):  # generic only since gymnasium 1.4
    """A vector environment that answers `action_masks()`, with the answer in its infos.

    Args:
        env: the environment; masks that are in its infos already are left as they are.
        ask: gives flags [n, size].
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], ask: Callable[[], Any]) -> None:
        super().__init__(env)
        self.ask = ask

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, with the masks in infos."""
        observations, infos = self.env.reset(seed=seed, options=options)
        return observations, self._told(infos)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step, with the masks in infos."""
        *results, infos = self.env.step(actions)
        return *results, self._told(infos)

    def _told(self, infos: dict[str, Any]) -> dict[str, Any]:
        if "action_mask" in infos:
            return infos
        flags = self.ask()
        return {**infos, "action_mask": flags if isinstance(flags, Tensor) else np.asarray(flags, dtype=np.int8)}


def with_masks(env: VectorEnv[Any, Any, Any]) -> VectorEnv[Any, Any, Any]:
    """The environment, telling in its infos what it, or each of its rows, would answer to `action_masks()`."""
    ask = _who_answers_masks(env)
    return env if ask is None else MasksInInfo(env, ask)


def _who_answers_masks(env: VectorEnv[Any, Any, Any]) -> Callable[[], Any] | None:
    layer: Any = env
    while isinstance(layer, VectorWrapper):
        if hasattr(layer, "action_masks"):
            return layer.action_masks  # type: ignore[no-any-return]
        layer = layer.env
    if isinstance(layer, SB3Rows):
        vec_env = layer.vec_env
        return (lambda: vec_env.env_method("action_masks")) if vec_env.has_attr("action_masks") else None
    if hasattr(layer, "action_masks"):
        return layer.action_masks  # type: ignore[no-any-return]
    rows = rows_of(layer)
    answered = bool(rows) and all(row.has_wrapper_attr("action_masks") for row in rows)
    return (lambda: layer.call("action_masks")) if answered else None


def rows_of(env: VectorEnv[Any, Any, Any]) -> list[gymnasium.Env[Any, Any]]:
    """The environments of a vector of single ones; where they live in processes, one that is made like the first."""
    if isinstance(env, AsyncVectorEnv):
        row = env.env_fns[0]()  # asking a process for what it lacks would end it
        row.close()
        return [row]
    return list(env.envs) if isinstance(env, SyncVectorEnv) else []


class NoEnvironment(VectorEnv[Any, Any, Any]):
    """Stands for the environment of an agent that was loaded without one: it has the spaces, and cannot be played.

    Args:
        num_envs: rows.
        observation_space: of a single environment.
        actions: the heads.
        entities: parts of the observation, if there are any.
        gamma: the discount.
    """

    def __init__(
        self,
        num_envs: int,
        observation_space: gymnasium.Space[Any],
        actions: ActionSpec,
        entities: Entities | None,
        gamma: float,
    ) -> None:
        self.num_envs, self.gamma, self.actions = num_envs, gamma, actions
        self.heads = actions.heads
        self.observation_entities = entities and (entities.head, entities.shared, entities.width)
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space, self.single_action_space = observation_space, action_space(actions)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> "NoEnvironment":
        """From the state of an agent.

        Raises:
            ValueError: when its spaces are malformed, or larger than its network.
        """
        try:
            _require_spaces_of_network(state)
            actions: dict[str, Any] = {
                name: tuple(part) if isinstance(part, list) else part for name, part in state["actions"].items()
            }
            entities = None if state["entities"] is None else Entities(**state["entities"])
            space, rows = restore_space(state["observation_space"]), len(state["collector"]["starts"])
            return cls(rows, space, ActionSpec(**actions), entities, state["gamma"])
        except (KeyError, TypeError, AttributeError, AssertionError) as error:
            raise ValueError(f"the saved spaces are malformed: {error!r}") from error

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Observations of zeros, and masks that allow everything."""
        del seed, options
        spec, n = self.actions, self.num_envs
        sizes = dict(zip(spec.heads, spec.sizes, strict=True))
        infos: dict[str, Mapping[str, Any]] = {}
        if spec.masked:
            infos["action_mask"] = {name: np.ones((n, size), np.int8) for name, size in sizes.items()}
        if spec.by_op:
            ops = spec.sizes[0]
            infos["action_mask_by_op"] = {name: np.ones((n, ops, size), np.int8) for name, size in sizes.items()}
        return create_empty_array(self.single_observation_space, n), dict(infos)

    def step(self, actions: Any) -> Any:
        """Refused.

        Raises:
            RuntimeError: always.
        """
        del actions
        raise RuntimeError("the agent was loaded without an environment; call set_env() before learn()")


def _require_spaces_of_network(state: Mapping[str, Any]) -> None:
    """Refuse spaces that a network of that size cannot be for, before anything of their size is made."""
    entries = described_size(state["observation_space"]) + sum(state["actions"]["sizes"])
    saved = sum(tensor.numel() for tensor in state["policy"].values())
    if entries > saved:
        raise ValueError(f"the saved spaces have {entries:,} entries; the network has {saved:,} parameters")
