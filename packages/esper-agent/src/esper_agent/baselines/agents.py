"""The agents that can be compared: how each is built, with which settings, and what a search for settings may vary.

agent = AGENTS["maskable_ppo"].build("Esper-v0", num_envs=64, seed=0)
agent.train(100_000)
play(agent, make_test_env("Esper-v0", 128), seed=10_000)
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from esper_env import HEADS
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import LinearSchedule

from esper_agent.algorithm.environments import make_vector_env
from esper_agent.baselines.sb3_agent import Algorithm, SB3Agent, Settings, annealed
from esper_agent.config import FIELD_NAMES
from esper_agent.evaluation.episodes import Policy
from esper_agent.ppo import FactoredRecurrentPPO

TUNED = Path(__file__).with_name("tuned_agents")  # a JSON file per environment id, by `esper-agent tune`
SETTINGS_WHERE_UNTUNED = TUNED / "Esper-v0.json"


class Agent(Policy, Protocol):
    """Something that learns, and can be asked for actions at any time."""

    rollout: int  # environment steps of one rollout

    def train(self, steps: int, callback: BaseCallback | None = None) -> None:
        """Train for a number of environment steps; the last rollout is completed."""


class OurAgent:
    """Our agent; the arguments are those of `SB3Agent`. `decay` anneals the weights of the entropies as well."""

    def __init__(self, env_id: str, rows: int, seed: int, settings: Settings, env: Settings) -> None:
        arguments = annealed(settings)
        if settings["decay"]:
            arguments["ent_coef"] = _annealed_entropy(settings["ent_coef"])
        self.model = FactoredRecurrentPPO(make_vector_env(env_id, rows, **env), seed=seed, **arguments)
        self.rollout = rows * self.model.config.n_steps
        self.predict = self.model.predict

    def train(self, steps: int, callback: BaseCallback | None = None) -> None:
        """Train for a number of environment steps; the last rollout is completed."""
        self.model.learn(steps, callback)


def _annealed_entropy(weights: float | Mapping[str, float]) -> LinearSchedule | dict[str, LinearSchedule]:
    if isinstance(weights, Mapping):
        return {head: LinearSchedule(weight, 0.0, 1.0) for head, weight in weights.items()}
    return LinearSchedule(weights, 0.0, 1.0)


@dataclass(frozen=True)
class AgentSpec:
    """How an agent is made.

    Attributes:
        name: its name, also in the files of tuned settings.
        make: builds it from an environment id, a number of rows, a seed, settings, and the environment's arguments.
        defaults: a search starts with them; tuned settings take their place.
        search_space: the values that a search may give to a setting.
        algorithm: what it needs of SB3 or sb3-contrib; None for our own.
        tuned_as: the agent whose tuned settings it takes, if that is another one.
    """

    name: str
    make: Callable[[str, int, int, Settings, Settings], Agent]
    defaults: Settings
    search_space: Mapping[str, tuple[Any, ...]]
    algorithm: Algorithm | None = None
    tuned_as: str | None = None

    def require(self) -> None:
        """Check that it can be built.

        Raises:
            ImportError: when an optional package is missing; it names the command that installs it.
        """
        if self.algorithm is not None:
            self.algorithm.load()

    def settable(self) -> tuple[str, ...]:
        """The settings that it may be given."""
        own = FIELD_NAMES if self.algorithm is None else self.algorithm.settable()
        return tuple(dict.fromkeys((*self.defaults, *own)))

    def settings(self, env_id: str) -> dict[str, Any]:
        """The tuned settings for an environment, those for Esper-v0 if it has none, or the defaults."""
        file = TUNED / f"{env_id}.json"
        found = file if file.exists() else SETTINGS_WHERE_UNTUNED
        tuned = json.loads(found.read_text(encoding="utf-8"))["agents"]
        chosen = tuned.get(self.tuned_as or self.name, {"settings": {}})
        return {**self.defaults, **chosen["settings"]}

    def build(self, env_id: str, num_envs: int, seed: int, **hyperparameters: Any) -> Agent:
        """An untrained agent, with the settings for this environment where no other value is given."""
        return self.make(env_id, num_envs, seed, {**self.settings(env_id), **hyperparameters}, {})


def entropy_weights(op: float) -> dict[str, float]:
    """Weights of the heads' entropies: the others are rarely used and must sharpen from few samples."""
    return {"op": op, **dict.fromkeys(HEADS[1:], op / 20)}


SHARED_SPACE: dict[str, tuple[Any, ...]] = {
    "learning_rate": (3e-4, 6e-4, 1e-3, 1.5e-3, 2e-3),
    "n_steps": (30, 60),
    "n_epochs": (4, 8, 10),
    "n_minibatches": (1, 2, 4),
    "gae_lambda": (0.9, 0.95, 0.98),
    "decay": (False, True),
}
SB3_SPACE = {
    **SHARED_SPACE,
    "ent_coef": (0.0, 0.003, 0.01, 0.03),
    "normalize": (False, True),
    "idle_bias": (0.0, 1.0, 5.0),  # among joint actions, over a hundred compete with waiting
}
OUR_SPACE = {
    **SHARED_SPACE,
    "ent_coef": tuple(entropy_weights(op) for op in (0.0, 0.003, 0.01, 0.03)),
    "normalize_observations": (False, True),
    "idle_bias": (0.0, 1.0, 2.0),
}
SB3_DEFAULTS: Settings = {
    "learning_rate": 1e-3, "n_steps": 30, "n_epochs": 10, "n_minibatches": 4, "gae_lambda": 0.95, "ent_coef": 0.01,
    "normalize": False, "decay": False, "idle_bias": 0.0,
}  # fmt: skip
OUR_DEFAULTS: Settings = {
    "learning_rate": 1.5e-3, "n_steps": 30, "n_epochs": 8, "n_minibatches": 2, "gae_lambda": 0.9,
    "ent_coef": entropy_weights(0.01), "normalize_observations": True, "sequence_length": 30,
    "decay": True, "idle_bias": 1.0, "memory_skip": True,
}  # fmt: skip

FEED_FORWARD: Settings = {"net_arch": [64, 64]}
RECURRENT: Settings = {"lstm_hidden_size": 64, "net_arch": [64]}
RECURRENT_PPO, ONE_CALL = "sb3_contrib:RecurrentPPO", "esper_agent.baselines.recurrent_onecall:OneCallMlpLstmPolicy"


def _sb3(name: str, algorithm: Algorithm, tuned_as: str | None = None) -> AgentSpec:
    return AgentSpec(name, partial(SB3Agent, algorithm), SB3_DEFAULTS, SB3_SPACE, algorithm, tuned_as)


AGENTS: dict[str, AgentSpec] = {
    spec.name: spec
    for spec in (
        AgentSpec("ours", OurAgent, OUR_DEFAULTS, OUR_SPACE),
        _sb3("ppo", Algorithm("stable_baselines3:PPO", "MlpPolicy", FEED_FORWARD)),
        # Joint actions have exact masks; with the marginal masks of each head it is the weaker agent.
        _sb3("maskable_ppo", Algorithm("sb3_contrib:MaskablePPO", "MlpPolicy", FEED_FORWARD, "discrete", masked=True)),
        _sb3("recurrent_ppo_onecall", Algorithm(RECURRENT_PPO, ONE_CALL, RECURRENT)),
        # The one-call LSTM learns the same weights, so both play with the settings found for the faster one.
        _sb3("recurrent_ppo", Algorithm(RECURRENT_PPO, "MlpLstmPolicy", RECURRENT), "recurrent_ppo_onecall"),
    )
}
