"""FactoredRecurrentPPO: the agent, with the manners of a Stable-Baselines3 algorithm.

model = FactoredRecurrentPPO("Esper-v0", seed=0, verbose=1)
model.learn(200_000, progress_bar=True)
model.save("model.ckpt")
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Self

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, ConvertCallback, ProgressBarCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.utils import configure_logger, get_device

from esper_agent.config import FIELD_NAMES, PPOConfig
from esper_agent.diagnostics import Event, Monitor
from esper_agent.envs import AnyEnv, TensorEnv, make_vector_env, resolve_gamma
from esper_agent.learner import Learner
from esper_agent.policy import Policy
from esper_agent.rollout import RolloutBuffer
from esper_agent.runner import Runner
from esper_agent.stats import UpdateStats

MaybeCallback = BaseCallback | list[BaseCallback] | Callable[[dict[str, Any], dict[str, Any]], bool] | None


class FactoredRecurrentPPO:
    """Recurrent PPO for actions made of discrete heads, with masks.

    Args:
        env: an id, a Gymnasium environment or a Gymnasium vector environment.
        n_envs: how many environments to make when `env` is an id.
        seed: seed of everything random; None draws one.
        device: "auto", "cpu" or "cuda".
        verbose: 1 prints the log as a table.
        tensorboard_log: directory for TensorBoard; None for none.
        **settings: the fields of `PPOConfig`.
    """

    def __init__(
        self,
        env: str | AnyEnv,
        *,
        n_envs: int = 8,
        seed: int | None = None,
        device: str = "cpu",
        verbose: int = 0,
        tensorboard_log: str | None = None,
        **settings: Any,
    ) -> None:
        self.config = make_config(settings)
        self.seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed
        self.device = get_device(device)
        self.verbose, self.tensorboard_log = verbose, tensorboard_log
        vector_env = make_vector_env(env, n_envs)
        self.gamma = resolve_gamma(vector_env, self.config.gamma)
        self.env = TensorEnv(vector_env, self.device, self.seed, check_masks=self.config.check_masks)
        check_minibatches(self.config, self.env.num_envs)
        self._build()

    def _build(self) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self.policy = Policy(self.env.encoder.size, self.env.actions, self.config).to(self.device)
        shuffle = torch.Generator().manual_seed(self.seed)
        self.action_generator = torch.Generator(self.device).manual_seed(self.seed + 1)
        self.learner = Learner(self.policy, self.config, self.gamma, shuffle)
        self.monitor = Monitor(self.config.detectors, self.config.max_grad_norm)
        self.events: list[Event] = []
        self.last_events: list[Event] = []
        self.ep_info_buffer: deque[dict[str, float]] = deque(maxlen=self.config.stats_window_size)
        self._logger: Logger | None = None
        self._total_timesteps = 0
        self._start_playing()

    def _start_playing(self) -> None:
        config = self.config
        self.runner = Runner(self.env, self.learner, self.action_generator)
        self.buffer = RolloutBuffer(
            config.n_steps,
            self.env.num_envs,
            config.sequence_length,
            self.env.encoder.size,
            self.env.actions,
            self.policy.initial_state(self.env.num_envs),
        )

    @property
    def num_timesteps(self) -> int:
        """Environment steps so far, over all environments."""
        return self.learner.counters.env_steps

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

    _custom_logger = False

    def get_env(self) -> VectorEnv[Any, Any, Any]:
        """The vector environment that the agent trains in."""
        return self.env.env

    def learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int | None = 1,
        tb_log_name: str = "FactoredRecurrentPPO",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """Train for a number of environment steps; the last rollout is completed.

        Args:
            total_timesteps: environment steps of this call.
            callback: SB3 callbacks.
            log_interval: rollouts between two writes of the log; None for none.
            tb_log_name: name of the run for TensorBoard.
            reset_num_timesteps: count from 0; False goes on with the count and the same log.
            progress_bar: show one.
        """
        callback = self._setup_learn(callback, progress_bar, reset_num_timesteps, tb_log_name)
        total_timesteps += self.num_timesteps
        self._total_timesteps = total_timesteps
        started, steps_before = time.perf_counter(), self.num_timesteps
        callback.on_training_start(locals(), globals())
        while self.num_timesteps < total_timesteps and self.collect(callback):
            stats = self.update()
            self._record(stats)
            if log_interval is not None and stats.rollouts % log_interval == 0:
                self._dump(time.perf_counter() - started, self.num_timesteps - steps_before)
        callback.on_training_end()
        return self

    def _setup_learn(self, callback: MaybeCallback, progress_bar: bool, reset: bool, tb_log_name: str) -> BaseCallback:
        if reset:
            self.learner.counters.env_steps = 0
        if not self._custom_logger:
            self._logger = configure_logger(self.verbose, self.tensorboard_log, tb_log_name, reset)
        parts = as_callbacks(callback) + ([ProgressBarCallback()] if progress_bar else [])
        everything = CallbackList(parts)
        everything.init_callback(self)  # type: ignore[arg-type]
        return everything

    def collect(self, callback: BaseCallback) -> bool:
        """Play until the rollout is complete; False when a callback stops the training."""
        callback.on_rollout_start()
        while not self.buffer.full:
            transition = self.runner.step(self.buffer)
            self.learner.counters.env_steps += self.env.num_envs
            dones = (transition.terminated | transition.truncated).cpu().numpy()
            rewards, infos = transition.rewards, transition.infos
            callback.update_locals({"dones": dones, "rewards": rewards, "infos": infos, "self": self})
            if not callback.on_step():
                return False
        episodes = self.runner.finished_episodes(self.buffer)
        self.ep_info_buffer.extend({"r": total, "l": length} for total, length in episodes)
        callback.on_rollout_end()
        return True

    def update(self) -> UpdateStats:
        """Learn from the complete rollout and run the diagnostics."""
        progress = 1.0 - self.num_timesteps / self._total_timesteps if self._total_timesteps else 1.0
        batch = self.buffer.sequences()
        stats = self.learner.update(self.buffer, batch, self.runner.last_values(), max(progress, 0.0))
        self.buffer.clear()
        self.last_events = self.monitor.check(stats)
        self.events.extend(self.last_events)
        return stats

    def _record(self, stats: UpdateStats) -> None:
        """Put an update on record under SB3's names, and ours beside them."""
        record = self.logger.record
        for key, value in flatten_stats(stats).items():
            record(f"train/{key}", value)
        record("train/entropy_loss", -sum(stats.entropy.values()))
        record("train/compiled", int(self.learner.compiled))
        for event in self.last_events:
            record(f"diagnostics/{event.name}", event.value)

    def _dump(self, seconds: float, steps: int) -> None:
        record = self.logger.record
        if self.ep_info_buffer:
            record("rollout/ep_rew_mean", float(np.mean([episode["r"] for episode in self.ep_info_buffer])))
            record("rollout/ep_len_mean", float(np.mean([episode["l"] for episode in self.ep_info_buffer])))
        record("time/iterations", self.learner.counters.rollouts, exclude="tensorboard")
        record("time/fps", int(steps / max(seconds, 1e-9)))
        record("time/time_elapsed", int(seconds), exclude="tensorboard")
        record("time/total_timesteps", self.num_timesteps, exclude="tensorboard")
        self.logger.dump(step=self.num_timesteps)


def make_config(settings: dict[str, Any]) -> PPOConfig:
    """Settings as a config.

    Raises:
        TypeError: for a name that is not a setting.
    """
    unknown = sorted(set(settings) - set(FIELD_NAMES))
    if unknown:
        raise TypeError(f"unknown settings {unknown}; allowed: {', '.join(FIELD_NAMES)}")
    return PPOConfig(**settings)


def check_minibatches(config: PPOConfig, n_envs: int) -> None:
    """Every minibatch needs a sequence.

    Raises:
        ValueError: when there are fewer sequences than minibatches.
    """
    sequences = n_envs * config.n_steps // config.sequence_length
    if config.n_minibatches > sequences:
        raise ValueError(
            f"n_minibatches is {config.n_minibatches}; allowed: at most {sequences}, the number of sequences "
            f"(n_envs {n_envs} x n_steps {config.n_steps} / sequence_length {config.sequence_length})"
        )


def as_callbacks(callback: MaybeCallback) -> list[BaseCallback]:
    """Any form of callback as a list."""
    if callback is None:
        return []
    if isinstance(callback, BaseCallback):
        return [callback]
    return list(callback) if isinstance(callback, Sequence) else [ConvertCallback(callback)]


def flatten_stats(stats: UpdateStats) -> dict[str, float]:
    """The numbers of an update by path, such as entropy/op or advantage/std."""
    flat: dict[str, float] = {}
    for name, value in asdict(stats).items():
        if isinstance(value, dict):
            flat |= {f"{name}/{key}": float(part) for key, part in value.items()}
        elif not isinstance(value, str):
            flat[name] = float(value)
    return flat
