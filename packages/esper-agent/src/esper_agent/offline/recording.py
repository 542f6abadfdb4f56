"""Recording: who plays, how many episodes each, and the dataset that is made of them.

`esper-agent record --env Esper-v0 --policy random --policy plateau=2 --episodes 3000 --out esper/mixed-v0`
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import gymnasium
import numpy as np
from esper_env import EsperVectorEnv
from esper_env.tasks.data import DataError

from esper_agent.comparison.participants import finished_policy
from esper_agent.evaluation.episodes import Env, Policy, play_episodes
from esper_agent.evaluation.paired import make_test_env
from esper_agent.offline.dataset import describe_env
from esper_agent.offline.episodes import RecordingEnv, update_hash
from esper_agent.offline.storage import OWN_METADATA, DatasetWriter, minari, new_dataset
from esper_agent.runs.directory import PACKAGES, RunError


@dataclass(frozen=True)
class Recording:
    """What is to be recorded.

    Attributes:
        env_id: id of an Esper environment.
        dataset: name of the dataset, in Minari's form.
        policies: who plays, a baseline's name or the path of a run or checkpoint, with a weight each.
        episodes: how many in all; each policy plays its share of them.
        seed: of the first episode; the next one has the next seed.
        rows: environments side by side.
        instances: which set episodes are drawn from.
        deterministic: trained agents take their most likely actions.
        trusted: whether the module that a run's settings name may be imported.
        env: arguments of the environment.
    """

    env_id: str
    dataset: str
    policies: tuple[tuple[str, float], ...]
    episodes: int = 1000
    seed: int = 0
    rows: int = 64
    instances: str = "train"
    deterministic: bool = True
    trusted: bool = False
    env: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.policies or any(not 0 < weight < np.inf for _, weight in self.policies):
            raise RunError(f"policies is {self.policies!r}; allowed: at least one, each with a weight above 0")
        for name, least in (("episodes", len(self.policies)), ("rows", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise RunError(f"{name} is {getattr(self, name)}; allowed: an integer of at least {least}")


def shares(total: int, weights: Sequence[float]) -> list[int]:
    """Whole numbers in proportion to weights that sum to the total, by largest remainder."""
    exact = total * np.asarray(weights) / np.sum(weights)
    counts = np.floor(exact).astype(np.int64)
    rest = np.argsort(counts - exact, kind="stable")[: total - counts.sum()]
    counts[rest] += 1
    return [int(count) for count in counts]


def record(recording: Recording) -> str:
    """Play and write the dataset; returns the hash of all that its episodes hold.

    Raises:
        RunError: when the environment, a policy or the dataset's name is not possible, or nothing can be written.
    """
    env = RecordingEnv(make_env(recording))
    players = [find_player(name, recording, env) for name, _ in recording.policies]
    single = gymnasium.make(recording.env_id, instances=recording.instances, **recording.env)
    spaces = {"observation_space": single.observation_space, "action_space": single.action_space}
    with new_dataset(recording.dataset, env_spec=single.spec, **spaces) as writer:
        digest = _fill(writer, recording, env, players)
        writer.close(_metadata(recording, env, digest))
    return digest


def make_env(recording: Recording) -> Env:
    """The vector environment that is played.

    Raises:
        RunError: when there is none of Esper with these arguments.
    """
    try:
        env = make_test_env(recording.env_id, recording.rows, **recording.env, instances=recording.instances)
    except (ValueError, TypeError, LookupError, ImportError, DataError, gymnasium.error.Error) as error:
        raise RunError(f"cannot record in {recording.env_id}: {error}") from error
    if not isinstance(env.unwrapped, EsperVectorEnv):
        raise RunError(f"env is {recording.env_id}; allowed: an Esper environment, which gives masks")
    return env


def find_player(name: str, recording: Recording, env: Env) -> Policy:
    """A baseline by its name, or the trained agent of a run directory or checkpoint.

    Raises:
        RunError: when it is neither, or the agent was trained in another environment.
    """
    try:
        return finished_policy(name, recording.env_id, env, trusted=recording.trusted)
    except ValueError as error:
        raise RunError(f"policy {name!r} cannot be recorded: {error}") from error


def _fill(writer: DatasetWriter, recording: Recording, env: RecordingEnv, players: Sequence[Policy]) -> str:
    """Play batch after batch and write each; returns the hash of all."""
    digest = hashlib.sha256()
    for player, name, seed, count in _batches(recording, players):
        play_episodes(player, env, seed=seed, deterministic=recording.deterministic)
        for episode in env.episodes(seed, count):
            writer.add(episode, {"policy": name})
            update_hash(digest, episode)
    return digest.hexdigest()


def _batches(recording: Recording, players: Sequence[Policy]) -> Iterator[tuple[Policy, str, int, int]]:
    """Who plays, under which name, from which seed on, and how many of the rows are kept."""
    seed = recording.seed
    counts = shares(recording.episodes, [weight for _, weight in recording.policies])
    for player, (name, _), count in zip(players, recording.policies, counts, strict=True):
        for begun in range(0, count, recording.rows):
            batch = min(recording.rows, count - begun)
            yield player, name, seed, batch
            seed += batch


def _metadata(recording: Recording, env: Env, digest: str) -> dict[str, Any]:
    counts = shares(recording.episodes, [weight for _, weight in recording.policies])
    esper: Any = env.unwrapped
    played = [
        {"policy": name, "weight": weight, "episodes": count}
        for (name, weight), count in zip(recording.policies, counts, strict=True)
    ]
    own = {
        "env_id": recording.env_id,
        "env": {**recording.env, "instances": recording.instances},
        **describe_env(esper),
        "policies": played,
        "seed": recording.seed,
        "deterministic": recording.deterministic,
        "sha256": digest,
        "versions": {name: version(name) for name in (*PACKAGES, "minari")},
    }
    names = ", ".join(f"{one['policy']} ({one['episodes']})" for one in played)
    return {
        "dataset_id": recording.dataset,
        "minari_version": minari().__version__,
        "algorithm_name": names,
        "description": f"Growth in {recording.env_id}, {recording.instances} instances, played by {names}.",
        "requirements": [f"esper-env=={version('esper-env')}"],
        OWN_METADATA: own,
    }
