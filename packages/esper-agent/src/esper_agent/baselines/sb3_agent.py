"""An SB3 algorithm as an agent in an Esper environment: it trains, and answers in the environment's own actions."""

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecEnv, VecMonitor, VecNormalize

from esper_agent.algorithm.environments import resolve_gamma
from esper_agent.baselines.sb3_env import EsperVecEnv

Settings = Mapping[str, Any]
# What `SB3Agent` gives an algorithm, and what says how it is carried out rather than what is learnt.
MANAGED = (
    "policy", "env", "batch_size", "gamma", "policy_kwargs", "seed", "device", "_init_setup_model",
    "stats_window_size", "tensorboard_log", "verbose",
)  # fmt: skip


@dataclass(frozen=True)
class Algorithm:
    """Which algorithm of SB3 or sb3-contrib, and how it meets the environment.

    Attributes:
        algorithm: its class, as module:name.
        policy: a policy that the algorithm knows by name, or a class as module:name.
        network: its `policy_kwargs`.
        actions: the form of the actions, as for `EsperVecEnv`.
        masked: whether it takes masks.
    """

    algorithm: str
    policy: str
    network: Settings
    actions: str = "multi_discrete"
    masked: bool = False

    def load(self) -> tuple[Any, Any]:
        """The classes of the algorithm and of its policy.

        Raises:
            ImportError: when sb3-contrib is missing; it names the command that installs it.
        """
        return _load(self.algorithm), _load(self.policy) if ":" in self.policy else self.policy

    def settable(self) -> tuple[str, ...]:
        """The arguments of the algorithm and of its network that are nobody else's to give."""
        arguments = inspect.signature(self.load()[0]).parameters
        return (*(name for name in arguments if name not in MANAGED), *self.network)


class SB3Agent:
    """An SB3 algorithm in `rows` rows of an environment.

    Args:
        algorithm: which one.
        env_id: the environment.
        rows: how many rows train side by side.
        seed: seed of everything random.
        settings: arguments of the algorithm, with `n_minibatches` in place of a batch size, `normalize` for running
            moments of observations and rewards, `decay` for a learning rate that is annealed to 0 over the training,
            and `idle_bias` for the first logit of waiting over other actions; and those of the network. The
            environment owns `gamma`: another value is refused.
        env: arguments of the environment; those left out are its id's.
    """

    def __init__(
        self, algorithm: Algorithm, env_id: str, rows: int, seed: int, settings: Settings, env: Settings
    ) -> None:
        algorithm_class, policy = algorithm.load()
        arguments = annealed(settings)
        raw = EsperVecEnv(env_id, rows, algorithm.actions, **env)
        gamma = resolve_gamma(raw.env, arguments.pop("gamma", None))
        self.env: VecEnv = VecMonitor(raw)
        if arguments.pop("normalize"):
            self.env = VecNormalize(self.env, gamma=gamma)
        self.rollout: int = rows * arguments["n_steps"]
        batch_size = _batch_size(self.rollout, arguments.pop("n_minibatches"))
        self.actions, self.masked, idle_bias = raw.actions, algorithm.masked, arguments.pop("idle_bias")
        network = {name: arguments.pop(name, usual) for name, usual in algorithm.network.items()}
        self.model = algorithm_class(
            policy,
            self.env,
            batch_size=batch_size,
            gamma=gamma,
            policy_kwargs=network,
            seed=seed,
            device="cpu",
            **arguments,
        )
        # Waiting comes first among joint actions and among operations alike.
        torch.nn.init.constant_(self.model.policy.action_net.bias[:1], idle_bias)

    def train(self, steps: int, callback: BaseCallback | None = None) -> None:
        """Train for a number of environment steps; the last rollout is completed."""
        self.model.learn(steps, callback)

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_masks: Any = None,
    ) -> tuple[dict[str, Any], Any]:
        """Actions of the environment's Dict space; `action_masks` is the environment's infos, as for our agent."""
        if isinstance(self.env, VecNormalize):
            observation = np.asarray(self.env.normalize_obs(observation), dtype=np.float32)
        masks = {"action_masks": self.actions.flags(action_masks)} if self.masked else {}
        action, state = self.model.predict(observation, state, episode_start, deterministic, **masks)
        return self.actions.decode(action), state


def annealed(settings: Settings) -> dict[str, Any]:
    """Settings for an algorithm: with `decay`, the learning rate is annealed linearly to 0 over the training."""
    arguments = dict(settings)
    if arguments.pop("decay"):
        arguments["learning_rate"] = LinearSchedule(arguments["learning_rate"], 0.0, 1.0)
    return arguments


def _batch_size(rollout: int, minibatches: int) -> int:
    if rollout % minibatches:  # SB3 would learn from a remainder, which for a single step is not a number
        raise ValueError(f"n_minibatches is {minibatches}; allowed: divisors of the {rollout} steps of a rollout")
    return rollout // minibatches


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise ImportError(f"{name} needs sb3-contrib: pip install 'esper-agent[sb3]'") from error
