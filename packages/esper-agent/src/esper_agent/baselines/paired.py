"""Paired episodes: every policy plays the same instances, with the same initial weights and data order."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


class Policy(Protocol):
    """Anything with SB3's `predict`, masks included."""

    def predict(
        self, observation: Any, state: Any, episode_start: Any, deterministic: bool, action_masks: Any
    ) -> tuple[Any, Any]:
        """Actions and the new state."""


@dataclass(frozen=True)
class Episodes:
    """How a policy did in each episode, [episodes] each."""

    test_accuracy: Floats  # of the committed network, on the split that no step reads
    val_accuracy: Floats  # of the committed network, on the split that the reward reads
    added_parameters: Floats  # at the end, as a share of the host's
    episode_return: Floats  # the plain sum of the rewards, as SB3 logs it
    discounted_return: Floats  # what agents maximise; with the environment's gamma, shaping drops out of it
    compute: Floats  # parameters that were trained, as a mean over the steps in units of the host's

    @classmethod
    def blank(cls, episodes: int) -> "Episodes":
        """All zero."""
        return cls(*(np.zeros(episodes) for _ in range(6)))


def make_test_env(env_id: str, episodes: int, **settings: Any) -> VectorEnv[Any, Any, Any]:
    """A vector environment with one row per episode, on held-out instances."""
    return gymnasium.make_vec(env_id, num_envs=episodes, autoreset_mode="disabled", **{"instances": "test", **settings})


def play(
    policy: Policy, env: VectorEnv[Any, Any, Any], seed: int | Sequence[int], deterministic: bool = True
) -> Episodes:
    """Play one episode in every row of an environment from `make_test_env`.

    Args:
        policy: Who plays.
        env: Where; it is reset.
        seed: Row i has the seed `seed + i`; or one seed per row.
        deterministic: Passed on to the policy.
    """
    observation, infos = env.reset(seed=seed)  # type: ignore[arg-type]  # Gymnasium's hint is a list
    gamma: float = env.unwrapped.gamma  # type: ignore[attr-defined]
    result, lasted = Episodes.blank(env.num_envs), np.zeros(env.num_envs)
    state, start, over = None, np.ones(env.num_envs, dtype=np.bool_), np.zeros(env.num_envs, dtype=np.bool_)
    while not over.all():
        actions, state = policy.predict(observation, state, start, deterministic, infos)
        observation, reward, start, _, infos = env.step(actions)
        result.episode_return[:] += reward * ~over
        result.discounted_return[:] += reward * gamma**lasted * ~over
        result.compute[:] += (1.0 + infos["added_parameters"]) * ~over
        lasted += ~over
        _conclude(result, start & ~over, infos, env)
        over |= start
        if start.any() and not over.all():  # a ruined row ended early; what it does from here on does not count
            observation, infos = env.reset(options={"reset_mask": start})
    result.compute[:] /= lasted
    return result


def _conclude(result: Episodes, ended: Flags, infos: dict[str, Any], env: VectorEnv[Any, Any, Any]) -> None:
    """Write down how the episodes that ended in this step did."""
    if ended.any():
        test = env.unwrapped.evaluate_test()  # type: ignore[attr-defined]
        result.test_accuracy[ended] = test.committed.double().cpu().numpy()[ended]
        result.val_accuracy[ended] = infos["committed_metric"][ended]
        result.added_parameters[ended] = infos["added_parameters"][ended]
