"""A recorded dataset, read through Minari and never written: its episodes, its environment and who played."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Space

from esper_agent.offline.storage import OWN_METADATA, dataset_path, minari
from esper_agent.runs.directory import RunError

MADE_ANEW = ("task", "instances")  # arguments that belong to the id, or to the use of the environment
_UNREADABLE = (OSError, RuntimeError, ValueError, LookupError, TypeError, AttributeError, AssertionError)


@dataclass(frozen=True)
class Recorded:
    """All of a dataset in memory.

    Attributes:
        dataset: its name.
        env_id: of the environment that was played.
        env: arguments of the environment that are not its id's own.
        observation_space: of a single environment.
        action_space: of a single environment.
        episodes: Minari's EpisodeData, in their order.
        about: what `esper-agent record` wrote into the metadata; empty for a dataset of another origin.
    """

    dataset: str
    env_id: str
    env: dict[str, Any]
    observation_space: Space[Any]
    action_space: Space[Any]
    episodes: Sequence[Any]
    about: Mapping[str, Any]


def load_recorded(dataset_id: str) -> Recorded:
    """Read a dataset.

    Raises:
        RunError: when there is none of this name, or it is empty, damaged, or of a version that Minari cannot read.
    """
    path = dataset_path(dataset_id)
    if not path.is_dir():
        raise RunError(f"there is no dataset {dataset_id} in {path}; record it, or set MINARI_DATASETS_PATH")
    try:
        return _read(dataset_id)
    except _UNREADABLE as error:
        raise RunError(f"the dataset {dataset_id} in {path} cannot be read: {error}") from error


def _read(dataset_id: str) -> Recorded:
    dataset = minari().load_dataset(dataset_id)
    spec, metadata = dataset.env_spec, dataset.storage.metadata
    if spec is None:
        raise RunError(f"the dataset {dataset_id} does not say which environment was played")
    if not dataset.total_episodes:
        raise RunError(f"the dataset {dataset_id} is empty: it holds no episode")
    episodes = list(dataset.iterate_episodes())
    if sum(len(episode.rewards) for episode in episodes) != dataset.total_steps:
        raise RunError(f"the dataset {dataset_id} is incomplete: it was to hold {dataset.total_steps} steps")
    about = metadata.get(OWN_METADATA, {})
    spaces = (dataset.observation_space, dataset.action_space)
    return Recorded(dataset_id, spec.id, _arguments(spec), *spaces, episodes, about)


def _arguments(spec: EnvSpec) -> dict[str, Any]:
    """What the environment was made with beyond what its id says."""
    try:
        registered = gymnasium.spec(spec.id).kwargs
    except gymnasium.error.Error as error:
        raise RunError(f"it was recorded in {spec.id}, which is not registered here") from error
    plain = json.loads(json.dumps(registered))  # tuples come back from JSON as lists
    return {name: value for name, value in spec.kwargs.items() if name not in MADE_ANEW and plain.get(name) != value}


def require_fit(recorded: Recorded, env: gymnasium.vector.VectorEnv[Any, Any, Any]) -> None:
    """Refuse a dataset that was recorded in an environment with other observations, slots, blueprints or discount.

    Raises:
        RunError: naming the first difference.
    """
    esper: Any = env.unwrapped
    pairs: dict[str, tuple[Any, Any]] = {
        "observations": (recorded.observation_space, env.single_observation_space),
        "actions": (recorded.action_space, env.single_action_space),
    }
    if recorded.about and hasattr(esper, "schema"):
        own = describe_env(esper)
        pairs |= {name: (recorded.about.get(name), own[name]) for name in own}
    for name, (theirs, ours) in pairs.items():
        if theirs != ours:
            known = f"{name} of the dataset {recorded.dataset}: {_short(theirs)}; of the environment {recorded.env_id}"
            raise RunError(f"{known}: {_short(ours)}; allowed: the same")


def describe_env(esper: Any) -> dict[str, Any]:
    """What observations and actions of an Esper environment mean, as plain data."""
    return {
        "heads": list(esper.heads),
        "slots": int(esper.schema.slots),
        "blueprints": list(esper.task.blueprints),
        "gamma": float(esper.gamma),
    }


def _short(value: Any) -> str:
    if isinstance(value, gymnasium.spaces.Box):
        return f"Box of shape {value.shape} from {np.min(value.low):g} to {np.max(value.high):g}"
    return str(value)
