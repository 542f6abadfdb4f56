"""The settings that an agent has unless others are given: one rule, two cases.

An environment that declares `observation_entities`, as those of Esper do, is trained in with the settings that the
published results were made with. Every other one has the defaults of `PPOConfig` and 8 rows.
"""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import VectorEnv
from stable_baselines3.common.utils import LinearSchedule

from esper_agent.algorithm.environments import declared

N_ENVS, N_ENVS_WITH_ENTITIES = 8, 64
ROLLOUT = 30  # steps: an episode of Esper-v0
OP_ENTROPY, ARGUMENT_ENTROPY = 0.01, 0.0005  # the arguments are rarely used and must sharpen from few samples


def default_settings(env: VectorEnv[Any, Any, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings for an environment where `given` has none and `PPOConfig`'s defaults are not meant.

    Args:
        env: the environment; a wrapper that turns its heads into other actions makes it one without entities.
        given: the user's settings. A sequence is a whole rollout, whatever its length.
    """
    heads, space = declared(env, "heads") or (), env.single_action_space
    if not declared(env, "observation_entities") or not isinstance(space, spaces.Dict) or {*space} != {*heads}:
        return {}
    return entity_settings(heads, env.num_envs, given.get("n_steps", ROLLOUT))


def entity_settings(heads: Sequence[str], num_envs: int, sequence_length: int = ROLLOUT) -> dict[str, Any]:
    """The settings of the published results, for environments that declare entities.

    Args:
        heads: of the actions; the op head is the first.
        num_envs: rows.
        sequence_length: steps per sequence.
    """
    return {
        "learning_rate": LinearSchedule(1.5e-3, 0.0, 1.0),
        "n_steps": ROLLOUT,
        "sequence_length": sequence_length,
        "n_epochs": 8,
        "n_minibatches": min(2, num_envs),
        "gae_lambda": 0.9,
        "ent_coef": entropy_schedules(heads),
        "idle_bias": 1.0,
        "memory_skip": True,
    }


def entropy_schedules(heads: Sequence[str]) -> dict[str, LinearSchedule]:
    """Weights of the heads' entropies, annealed over the training; the op head is the first."""
    starts = (OP_ENTROPY, *[ARGUMENT_ENTROPY] * (len(heads) - 1))
    return {head: LinearSchedule(start, 0.0, 1.0) for head, start in zip(heads, starts, strict=True)}


def default_n_envs(env_id: str) -> int:
    """How many environments are made of an id."""
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    creator = gymnasium.spec(name).vector_entry_point
    made = load_env_creator(creator) if isinstance(creator, str) else creator
    return N_ENVS_WITH_ENTITIES if hasattr(made, "observation_entities") else N_ENVS
