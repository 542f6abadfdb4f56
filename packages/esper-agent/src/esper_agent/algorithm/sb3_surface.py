"""The surface of an SB3 model: its environment and spaces, its logger, its parameters, its seed and its files."""

from pathlib import Path
from typing import Any

import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, unwrap_vec_normalize
from torch import Tensor

from esper_agent.algorithm.agent_state import AgentState
from esper_agent.algorithm.checkpoint import load_checkpoint
from esper_agent.networks.policy import check_shapes

SUFFIX = ".zip"
"""Of a file that was named without one, as in SB3; a checkpoint is a zip archive, too, but of another content."""

POLICY, OPTIMIZER = "policy", "policy.optimizer"


class SB3Surface(AgentState):
    """What callbacks and scripts read of an SB3 model; `FactoredRecurrentPPO` inherits this."""

    env: VectorEnv[Any, Any, Any] | VecEnv | None  # as it was given; None after loading without one
    _logger: Logger | None
    _custom_logger: bool

    @property
    def num_timesteps(self) -> int:
        """Environment steps so far, over all environments of all ranks."""
        return self.learner.counters.env_steps

    @property
    def n_envs(self) -> int:
        """Environments of this rank."""
        return self.tensor_env.num_envs

    @property
    def observation_space(self) -> spaces.Space[Any]:
        """Of a single environment."""
        return self.tensor_env.env.single_observation_space

    @property
    def action_space(self) -> spaces.Space[Any]:
        """Of a single environment."""
        return self.tensor_env.env.single_action_space

    def get_env(self) -> VectorEnv[Any, Any, Any] | VecEnv | None:
        """The vector environment that the agent trains in, as it was given."""
        return self.env

    def get_vec_normalize_env(self) -> VecNormalize | None:
        """SB3's normalising wrapper, if the agent trains in one; its own normaliser is part of the policy."""
        return unwrap_vec_normalize(self.env) if isinstance(self.env, VecEnv) else None

    @property
    def logger(self) -> Logger:
        """SB3's logger; there is one once `learn` or `set_logger` was called."""
        if self._logger is None:
            raise RuntimeError("there is no logger yet: call learn() or set_logger() first")
        return self._logger

    def set_logger(self, logger: Logger) -> None:
        """Use this logger instead of making one."""
        self._logger = logger
        self._custom_logger = True

    def set_random_seed(self, seed: int | None = None) -> None:
        """Seed agent and environments anew, and begin new episodes; None changes nothing. No global seed is set."""
        if seed is None:
            return
        self.seed = seed
        self.seed_generators()
        self.begin_episodes()

    def get_parameters(self) -> dict[str, dict[str, Any]]:
        """Copies of the parameters and of the optimiser's state, under SB3's names."""
        optimizer = {
            index: {name: value.clone() for name, value in moments.items()}
            for index, moments in self.learner.optimizer.state_dict().items()
        }
        return {POLICY: _copy(self.policy.state_dict()), OPTIMIZER: optimizer}

    def set_parameters(
        self,
        load_path_or_dict: str | Path | dict[str, dict[str, Any]],
        exact_match: bool = True,
        device: str | torch.device = "auto",
    ) -> None:
        """Take over parameters, and the optimiser's state, of a checkpoint or of `get_parameters`.

        Args:
            load_path_or_dict: a file, or a dict with "policy" and "policy.optimizer".
            exact_match: whether both, and all parameters, must be given.
            device: has no effect: they go where the agent is.

        Raises:
            ValueError: when names or shapes are not the agent's; nothing has changed then.
        """
        del device
        given = load_path_or_dict if isinstance(load_path_or_dict, dict) else _saved_parameters(load_path_or_dict)
        own = dict(self.policy.state_dict())
        if set(given) - {POLICY, OPTIMIZER} or (exact_match and set(given) != {POLICY, OPTIMIZER}):
            raise ValueError(f"parameters of {sorted(given)} are given; allowed: {POLICY!r} and {OPTIMIZER!r}")
        policy = given.get(POLICY, {})
        check_shapes(policy, own if exact_match else {name: own[name] for name in own if name in policy})
        optimizer = given.get(OPTIMIZER)
        if optimizer is not None:
            self.learner.optimizer.check_state_dict(optimizer)
            self.learner.optimizer.load_state_dict(optimizer)
        self.policy.load_state_dict({**own, **policy})


def file_to_write(path: str | Path) -> Path:
    """The path, with SB3's suffix if it has none."""
    path = Path(path)
    return path if path.suffix else path.with_suffix(SUFFIX)


def file_to_read(path: str | Path) -> Path:
    """The file of that name or, if there is none, the one that `save` would have written for it."""
    return Path(path) if Path(path).is_file() else file_to_write(path)


def _saved_parameters(path: str | Path) -> dict[str, dict[str, Any]]:
    state = load_checkpoint(file_to_read(path))
    return {POLICY: state["policy"], OPTIMIZER: state["optimizer"]}


def _copy(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
