"""What a checkpoint holds of an agent, and how the agent takes it over."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from esper_env.fused.structure import require_alike
from torch import Tensor

from esper_agent.algorithm.collector import RolloutCollector
from esper_agent.algorithm.devices import load_generator
from esper_agent.algorithm.environments import TensorEnv
from esper_agent.algorithm.observations import ObservationEncoder, describe_space
from esper_agent.algorithm.rollout_buffer import RolloutBuffer
from esper_agent.algorithm.schedules import describe
from esper_agent.algorithm.update import Counters, Learner
from esper_agent.config import PPOConfig
from esper_agent.diagnostics import Monitor
from esper_agent.distributed import Ranks
from esper_agent.networks.action_spec import ActionSpec
from esper_agent.networks.entity_encoder import Entities
from esper_agent.networks.policy import Policy, check_shapes


class AgentState:
    """The parts of an agent that change as it learns, as one state; `FactoredRecurrentPPO` inherits this."""

    config: PPOConfig
    ranks: Ranks
    seed: int
    gamma: float
    observation_encoder: ObservationEncoder
    action_spec: ActionSpec
    policy: Policy
    learner: Learner
    entities: Entities | None
    tensor_env: TensorEnv
    collector: RolloutCollector
    buffer: RolloutBuffer
    monitor: Monitor
    action_generator: torch.Generator
    ep_info_buffer: deque[dict[str, float]]
    _total_timesteps: int

    def state_dict(self) -> dict[str, Any]:
        """Everything that this rank needs to go on exactly as if it had not stopped."""
        own = self._own_state()
        return {
            "config": describe(asdict(self.config)),
            "observation_space": describe_space(self.tensor_env.env.single_observation_space),
            "entities": None if self.entities is None else asdict(self.entities),
            "actions": describe(asdict(self.action_spec)),
            "gamma": self.gamma,
            "seed": self.seed,
            "compiled": self.learner.compiled,
            "counters": asdict(self.learner.counters),
            "total_timesteps": self._total_timesteps,
            "policy": dict(self.policy.state_dict()),
            "optimizer": self.learner.optimizer.state_dict(),
            "generators": {
                "actions": self.action_generator.get_state(),
                "shuffle": self.learner.shuffle.get_state(),
            },
            "detectors": self.monitor.state_dict(),
            "episodes": [[episode["r"], episode["l"]] for episode in self.ep_info_buffer],
            **own,
            "other_ranks": [own] * (self.ranks.size - 1),  # so that this rank finds itself; `save` asks the others
        }

    def _own_state(self) -> dict[str, Any]:
        """What differs from rank to rank."""
        env = self.tensor_env.env.unwrapped
        return {
            "env": env.state_dict() if hasattr(env, "state_dict") else None,
            "collector": self.collector.state_dict(),
            "rollout": self.buffer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state.

        Playing goes on in mid-episode if the environment can restore its own state and the ranks are as many as before;
        otherwise new episodes begin.

        Raises:
            ValueError: when the state belongs to another network; nothing has changed then.
        """
        before = self.state_dict()
        check_shapes(state["policy"], before["policy"])
        require_alike(state["policy"], before["policy"], "policy")
        self.learner.optimizer.check_state_dict(state["optimizer"])
        for name in ("counters", "total_timesteps"):
            require_alike(state[name], before[name], name)
        self.policy.load_state_dict(state["policy"])
        self.learner.optimizer.load_state_dict(state["optimizer"])
        self.learner.counters = Counters(**state["counters"])
        key = self.seed + self.learner.counters.env_steps
        load_generator(self.learner.shuffle, state["generators"]["shuffle"], key)
        load_generator(self.action_generator, state["generators"]["actions"], key + 1)
        self.monitor.load_state_dict(state["detectors"])
        self.ep_info_buffer.clear()
        self.ep_info_buffer.extend({"r": total, "l": length} for total, length in state["episodes"])
        self._total_timesteps = state["total_timesteps"]
        by_rank = [state, *state["other_ranks"]]
        own = by_rank[self.ranks.rank] if len(by_rank) == self.ranks.size else {"env": None}
        if own["env"] is not None and hasattr(self.tensor_env.env.unwrapped, "load_state_dict"):
            self._load_own_state(own)
        else:
            self.begin_episodes()

    def begin_episodes(self) -> None:
        """Leave the episodes where they are and begin new ones, with seeds that no rollout so far began with."""
        self.tensor_env.reset(self.next_seed(self.tensor_env.num_envs))
        self.collector.begin()
        self.buffer.clear()

    def next_seed(self, rows: int) -> int:
        """Seed of this rank's first environment at its next reset: the agent's own before anything was played."""
        counters = self.learner.counters if hasattr(self, "learner") else Counters()
        played = (counters.rollouts, counters.env_steps)
        drawn = int(np.random.SeedSequence((self.seed, *played)).generate_state(1)[0]) >> 1
        return (drawn if any(played) else self.seed) + self.ranks.rank * rows

    def seed_generators(self) -> None:
        """Begin the agent's own random numbers anew from its seed."""
        self.action_generator.manual_seed(self.seed + 1)
        self.learner.shuffle.manual_seed(self.seed)

    def _load_own_state(self, own: dict[str, Any]) -> None:
        env: Any = self.tensor_env.env.unwrapped
        require_alike(own["collector"], self.collector.state_dict(), "collector")
        env.load_state_dict(own["env"])
        self.collector.load_state_dict(own["collector"])
        self.buffer.load_state_dict(own["rollout"])


def require_plausible(config: PPOConfig, policy: Mapping[str, Tensor]) -> None:
    """Refuse settings that ask for more parameters than were saved, before they are allocated.

    Raises:
        ValueError: when they do.
    """
    gates = {"lstm": 4, "gru": 3, "none": 0}[config.memory]
    widths = (*config.encoder_sizes, *([config.lstm_size] if gates else []), config.head_hidden)
    least = sum(math.prod(pair) for pair in pairwise(widths)) + gates * config.lstm_layers * config.lstm_size**2
    saved = sum(tensor.numel() for tensor in policy.values())
    if least > saved:
        raise ValueError(f"the saved settings ask for at least {least:,} parameters; saved are {saved:,}")
