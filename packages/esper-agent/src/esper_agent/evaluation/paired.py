"""Paired episodes: every policy plays the same instances, with the same initial weights and data order."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import esper_env  # noqa: F401  (registers its environments)
import gymnasium
import numpy as np

from esper_agent.evaluation.episodes import Env, Flags, Floats, Policy, Watcher, play_episodes


@dataclass(frozen=True)
class GrowthEpisodes:
    """How a policy did in each episode, [episodes] each."""

    test_accuracy: Floats  # of the committed network, on the split that no step reads
    val_accuracy: Floats  # of the committed network, on the split that the reward reads
    added_parameters: Floats  # at the end, as a share of the host's
    episode_return: Floats  # the plain sum of the rewards, as SB3 logs it
    discounted_return: Floats  # what agents maximise; with the environment's gamma, shaping drops out of it
    compute: Floats  # parameters that were trained, as a mean over the steps in units of the host's
    training_flops: Floats  # of the whole episode, forward and backward, host and seeds

    def means(self) -> dict[str, float]:
        """The mean of every measure."""
        return {name: float(np.mean(values)) for name, values in asdict(self).items()}


def make_test_env(env_id: str, episodes: int, **settings: Any) -> Env:
    """A vector environment with one row per episode, on held-out instances."""
    return gymnasium.make_vec(env_id, num_envs=episodes, autoreset_mode="disabled", **{"instances": "test", **settings})


def evaluate(
    policy: Policy,
    env_id: str,
    episodes: int = 100,
    instances: str = "validation",
    seed: int = 10_000,
    **settings: Any,
) -> dict[str, float]:
    """How any object with SB3's `predict` does on instances that no training saw: the mean of every measure.

    Args:
        policy: who plays, with Dict actions; where its `predict` takes `action_masks`, it is given the infos.
        env_id: an Esper environment.
        episodes: how many instances.
        instances: "validation", or "test" for a final result.
        seed: of the first instance; with the default these are the instances of `esper-agent evaluate`.
        **settings: arguments of the environment.
    """
    env = make_test_env(env_id, episodes, instances=instances, **settings)
    try:
        return play(policy, env, seed).means()
    finally:
        env.close()


def play(
    policy: Policy, env: Env, seed: int | Sequence[int], deterministic: bool = True, watchers: Sequence[Watcher] = ()
) -> GrowthEpisodes:
    """Play one episode in every row of an environment from `make_test_env`.

    Args:
        policy: who plays.
        env: where; it is reset.
        seed: row i has the seed `seed + i`; or one seed per row.
        deterministic: passed on to the policy.
        watchers: look on.
    """
    growth = _Growth(env)
    episodes = play_episodes(policy, env, seed=seed, deterministic=deterministic, watchers=(growth, *watchers))
    return GrowthEpisodes(
        test_accuracy=growth.test_accuracy,
        val_accuracy=episodes.infos["committed_metric"],
        added_parameters=episodes.infos["added_parameters"],
        episode_return=episodes.episode_return,
        discounted_return=episodes.discounted_return,
        compute=growth.trained / episodes.length,
        training_flops=growth.flops,
    )


class _Growth:
    """Measures what the infos of an episode's end do not tell."""

    def __init__(self, env: Env) -> None:
        self.env = env
        self.test_accuracy, self.trained, self.flops = (np.zeros(env.num_envs) for _ in range(3))

    def begin(self, infos: Mapping[str, Any]) -> None:
        """Nothing is trained yet."""

    def step(self, actions: Any, infos: Mapping[str, Any], playing: Flags, ended: Flags) -> None:
        """Count the parameters and FLOPs of the step, and test the networks whose episode is over."""
        del actions
        self.trained += (1.0 + infos["added_parameters"]) * playing
        self.flops += infos["training_flops"] * playing
        if ended.any():
            test = self.env.unwrapped.evaluate_test()  # type: ignore[attr-defined]
            self.test_accuracy[ended] = test.committed.double().cpu().numpy()[ended]
