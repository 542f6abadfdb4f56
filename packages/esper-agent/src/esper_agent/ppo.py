"""FactoredRecurrentPPO: the agent, an SB3-compatible algorithm.

model = FactoredRecurrentPPO("Esper-v0", seed=0, verbose=1)
model.learn(200_000, progress_bar=True)
model.save("model.ckpt")

The algorithm, in the order of the methods: `learn` repeats `collect` (a rollout in every environment), `update` (what
the old policy says, advantages, `_epochs` of minibatches, metrics, diagnostics) and `record_update` (the log).
"""

import time
from collections import deque
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from esper_env.mdp.phases import Phase, unmeasured
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.utils import configure_logger
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from esper_agent.algorithm.acting import act
from esper_agent.algorithm.adapters import NoEnvironment
from esper_agent.algorithm.agent_state import require_plausible
from esper_agent.algorithm.callbacks import InfosByEnv, MaybeCallback, as_callbacks
from esper_agent.algorithm.checkpoint import load_checkpoint, portable, restore_checkpoint, save_checkpoint
from esper_agent.algorithm.collector import RolloutCollector
from esper_agent.algorithm.defaults import default_n_envs, default_settings
from esper_agent.algorithm.devices import choose_device
from esper_agent.algorithm.environments import AnyEnv, TensorEnv, Transition, make_vector_env, resolve_gamma
from esper_agent.algorithm.escalation import Escalation, critical, investigate
from esper_agent.algorithm.log import record_update
from esper_agent.algorithm.loss import LossSettings, Targets
from esper_agent.algorithm.observations import ObservationEncoder
from esper_agent.algorithm.progress import progress_bar as showing_progress
from esper_agent.algorithm.quarantine import note_quarantine
from esper_agent.algorithm.rollout_buffer import RolloutBuffer, Sequences
from esper_agent.algorithm.sb3_surface import SB3Surface, file_to_read, file_to_write
from esper_agent.algorithm.schedules import restore
from esper_agent.algorithm.update import Learner, in_union
from esper_agent.config import check_minibatches, make_config
from esper_agent.diagnostics import Event, Monitor
from esper_agent.diagnostics.metrics import Measured, Metrics, summarize
from esper_agent.distributed import ALONE, Ranks
from esper_agent.networks.action_spec import ActionSpec, to_environment, user_masks
from esper_agent.networks.entity_encoder import Entities
from esper_agent.networks.policy import Policy
from esper_agent.pretrained import Pretrained

Array = NDArray[Any]


class FactoredRecurrentPPO(SB3Surface, Pretrained):
    """Recurrent PPO for actions made of discrete heads, with masks.

    Args:
        env: an id, a Gymnasium environment or vector environment, or a VecEnv of SB3.
        n_envs: how many environments to make when `env` is an id, over all ranks; None for 64 of Esper's, 8 of others.
        seed: seed of everything random; None draws one.
        device: "auto", "cpu" or "cuda".
        verbose: 1 prints the log as a table.
        tensorboard_log: directory for TensorBoard; None for none.
        ranks: who trains the policy together, see `join_ranks`; an `env` that is no id is then this rank's own.
        **settings: the fields of `PPOConfig`; `algorithm.defaults` says which have other defaults in Esper's.
    """

    def __init__(
        self,
        env: str | AnyEnv,
        *,
        n_envs: int | None = None,
        seed: int | None = None,
        device: str = "cpu",
        verbose: int = 0,
        tensorboard_log: str | None = None,
        ranks: Ranks = ALONE,
        **settings: Any,
    ) -> None:
        self._settings = settings
        self.ranks = ranks
        self.seed = ranks.gather(int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed)[0]
        self.device, self.verbose, self.tensorboard_log = choose_device(device), verbose, tensorboard_log
        self.set_env(env, n_envs)

    def _build(self, env: TensorEnv) -> None:
        self.observation_encoder, self.action_spec, self.entities = self._spaces(env)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            rescale = self.config.normalize_observations and env.encoder.numeric
            network = replace(self.config, normalize_observations=rescale)
            self.policy = Policy(env.encoder.size, self.action_spec, network, self.entities).to(self.device)
        self.action_generator = torch.Generator(self.device)
        self.learner = Learner(self.policy, self.config, self.gamma, torch.Generator(), self.ranks)
        self.seed_generators()
        self.monitor = Monitor(self.config.detectors, self.config.max_grad_norm)
        self.escalation, self.events = Escalation(), list[Event]()
        self.last_events: list[Event] = []
        self.ep_info_buffer: deque[dict[str, float]] = deque(maxlen=self.config.stats_window_size)
        self._logger, self._custom_logger = None, False
        self._total_timesteps = 0
        self.phase: Phase = unmeasured
        self._started, self._steps_before = time.perf_counter(), 0

    def set_env(self, env: str | AnyEnv, n_envs: int | None = None) -> None:
        """Train in this environment from now on, starting with new episodes.

        Raises:
            ValueError: when its spaces, heads or gamma are not the agent's.
        """
        rows = self.ranks.share(default_n_envs(env) if n_envs is None else n_envs) if isinstance(env, str) else 1
        vector_env = make_vector_env(env, rows, str(self.device))
        if not hasattr(self, "policy"):
            self.config = make_config({**default_settings(vector_env, self._settings), **self._settings})
        gamma = resolve_gamma(vector_env, self.config.gamma)
        first_seed = self.next_seed(self._check_rows(vector_env.num_envs))
        tensor_env = TensorEnv(
            vector_env,
            self.device,
            first_seed,
            check_masks=self.config.check_masks,
            condition_on_op=self.config.condition_on_op,
            masks=self.config.masks,
        )
        check_minibatches(self.config, tensor_env.num_envs)
        if not hasattr(self, "policy"):
            self.gamma = gamma
            self._build(tensor_env)
        self._check_same(tensor_env, gamma)
        self.tensor_env = tensor_env
        given = env if isinstance(env, VectorEnv | VecEnv) else vector_env
        self.env = None if isinstance(given, NoEnvironment) else given
        self.collector = RolloutCollector(
            tensor_env, self.policy, self.config.precision, self.action_generator, self.ranks
        )
        self.buffer = RolloutBuffer(
            self.config.n_steps,
            tensor_env.num_envs,
            self.config.sequence_length,
            tensor_env.encoder.size,
            tensor_env.actions,
            self.policy.initial_state(tensor_env.num_envs),
        )

    def _check_rows(self, num_envs: int) -> int:
        """The number of environments of this rank, which must be that of every rank."""
        everywhere = self.ranks.gather(num_envs)
        if len(set(everywhere)) > 1:
            raise ValueError(f"the ranks have {everywhere} environments; allowed: the same number everywhere")
        return num_envs

    def _spaces(self, env: TensorEnv) -> tuple[ObservationEncoder, ActionSpec, Entities | None]:
        """What the network is made for; the place of entities only if it reads them."""
        return env.encoder, env.actions, env.entities if self.config.entity_size else None

    def _check_same(self, env: TensorEnv, gamma: float) -> None:
        names = ("observations", "actions", "entities", "gamma")
        own = (self.observation_encoder, self.action_spec, self.entities, self.gamma)
        for name, mine, other in zip(names, own, (*self._spaces(env), gamma), strict=True):
            if other != mine:
                raise ValueError(f"{name} of the environment: {other}; the agent was made for {mine}")

    def measure_phases(self, phase: Phase) -> None:
        """Run "policy", "environment" and "update", and the environment's own phases, in contexts that this makes."""
        self.phase = self.collector.phase = phase
        env: Any = self.tensor_env.env.unwrapped
        if hasattr(env, "measure_phases"):
            env.measure_phases(phase)

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
            progress_bar: show one, with what recent episodes came to.
        """
        with showing_progress(progress_bar and self.ranks.leads) as bar:
            callback = self._setup_learn(as_callbacks(callback) + bar, reset_num_timesteps, tb_log_name)
            self._total_timesteps = total_timesteps = self.num_timesteps + total_timesteps
            self._started, self._steps_before = time.perf_counter(), self.num_timesteps
            callback.on_training_start(locals(), globals())
            while self.num_timesteps < total_timesteps and self.collect(callback):
                with self.phase("update"):
                    metrics = self.update()
                record_update(self.logger, metrics, self.collector.hosts.summary(self.ranks), self.last_events)
                if log_interval is not None and self.learner.counters.rollouts % log_interval == 0:
                    self.dump_logs()
            callback.on_training_end()
        return self

    def _setup_learn(self, callbacks: list[BaseCallback], reset: bool, tb_log_name: str) -> BaseCallback:
        if reset:
            self.learner.counters.env_steps = 0
        if not self._custom_logger:
            outputs = (self.verbose, self.tensorboard_log) if self.ranks.leads else (0, None)
            self._logger = configure_logger(*outputs, tb_log_name, reset)
        everything = CallbackList(callbacks)
        everything.init_callback(self)  # type: ignore[arg-type]
        return everything

    def collect(self, callback: BaseCallback) -> bool:
        """Play until the rollout is complete; False when a callback, on any rank, stops the training."""
        callback.on_rollout_start()
        ends = self.ranks.gather((self._play(callback), self.num_timesteps))
        self.learner.counters.env_steps = max(steps for _, steps in ends)
        if not all(complete for complete, _ in ends):
            return False
        found, counters = self.ranks.gather(self.collector.count_nonfinite(self.buffer)), self.learner.counters
        limit, speak = self.config.max_nonfinite, self.ranks.leads
        counters.quarantined = note_quarantine(counters.quarantined, found, limit, speak=speak)
        finished = self.ranks.gather(self.collector.finished_episodes(self.buffer))
        self.ep_info_buffer.extend({"r": total, "l": length} for episodes in finished for total, length in episodes)
        callback.on_rollout_end()
        return True

    def _play(self, callback: BaseCallback) -> bool:
        """Fill this rank's rollout; False when a callback objects."""
        while not self.buffer.full:
            transition = self.collector.step(self.buffer)
            self.learner.counters.env_steps += self.n_envs * self.ranks.size
            callback.update_locals(self._told(transition))
            if not callback.on_step():
                return False
        return True

    def _told(self, transition: Transition) -> dict[str, Any]:
        """What SB3's callbacks read of a step."""
        terminated, truncated = transition.terminated.cpu().numpy(), transition.truncated.cpu().numpy()
        dones = terminated | truncated
        episodes = self.collector.ended_episodes(self.buffer) if dones.any() else {}
        infos = InfosByEnv(transition.infos, terminated, truncated, episodes)
        return {"rewards": transition.rewards.cpu().numpy(), "dones": dones, "infos": infos, "self": self}

    def update(self) -> Metrics:
        """Learn from the complete rollout and run the diagnostics."""
        learner, counters, progress = self.learner, self.learner.counters, self._progress_remaining()
        batch, first = in_union(self.buffer.sequences(), self.buffer.n_envs, self.ranks), counters.rollouts == 0
        if first:  # nothing is learnt yet that new units would change: learn in the right ones from the beginning
            learner.take_in_observations(self.buffer, batch)
        partition = learner.partition(batch.count)
        old_policy = learner.old_policy(batch, partition)
        targets, measured = learner.targets(self.buffer, batch, old_policy, self.collector.last_values())
        learner.optimizer.learning_rate = learner.learning_rate(progress)
        minibatches = self._epochs(batch, targets, learner.settings(progress), partition)
        metrics = summarize(minibatches, measured, self.action_spec.heads, tuple(learner.optimizer.groups))
        taken = int(metrics["minibatches"])
        counters.rollouts += 1
        counters.optimizer_steps += taken
        metrics |= {
            "learning_rate": learner.optimizer.learning_rate,
            "clip_range": learner.clip_range(progress),
            "compiled": learner.compiled,
            "epochs": -(-taken // len(partition)),  # those in which at least one step was taken
            "stopped_early": taken < len(minibatches),
            **asdict(counters),
        }
        self.last_events = self.monitor.check(metrics)
        self.events.extend(self.last_events)
        if self.ranks.leads and (alarming := critical(self.last_events)):
            directory = None if self._logger is None else self._logger.get_dir()
            self.escalation.report(alarming, investigate(learner, batch, targets, metrics), directory)
        if not first:
            learner.take_in_observations(self.buffer, batch)
        self.buffer.clear()
        return metrics

    def _epochs(
        self, batch: Sequences, targets: Targets, settings: LossSettings, partition: list[Tensor]
    ) -> list[Measured]:
        """Every minibatch of every epoch, until one stops the update; the first epoch is that of the old policy."""
        active = torch.ones((), dtype=torch.bool, device=self.device)
        minibatches: list[Measured] = []
        for epoch in range(self.config.n_epochs):
            for rows in partition if epoch == 0 else self.learner.partition(batch.count):
                measured = self.learner.minibatch(batch.select(rows), targets.select(rows), settings, active)
                minibatches.append(measured)
                active = measured["minibatches"]
                if self.learner.may_peek and not active:
                    return minibatches
        return minibatches

    def predict(
        self,
        observation: Any,
        state: tuple[Array, ...] | None = None,
        episode_start: Array | None = None,
        deterministic: bool = False,
        action_masks: Any = None,
    ) -> tuple[Any, tuple[Array, ...]]:
        """Choose an action for one observation or for a batch.

        Args:
            observation: as the environment gives it, single or batched.
            state: what the previous call returned; None at the start of an episode.
            episode_start: bool [N], where a new episode starts; None for nowhere.
            deterministic: take the most likely action instead of drawing one.
            action_masks: the environment's infos, or what its `action_masks()` or `action_mask` says if legality does
                not depend on the op; needed where the environment gives masks.

        Returns:
            The action in the form that the environment's `step` takes, and the new state.
        """
        batched = self.observation_encoder.is_batch(observation)
        batch = observation if batched else self.observation_encoder.as_batch(observation)
        observations = self.observation_encoder(batch, self.device)
        starts = np.zeros(len(observations), dtype=bool) if episode_start is None else np.atleast_1d(episode_start)
        before = self.policy.initial_state(len(observations))
        if state is not None:
            before = (torch.as_tensor(state[0], device=self.device), torch.as_tensor(state[1], device=self.device))
        self.policy.memory.check_state(before, len(observations))
        chosen = act(
            self.policy,
            self.config.precision,
            observations,
            before,
            torch.as_tensor(starts, dtype=torch.bool, device=self.device),
            user_masks(self.action_spec, action_masks, len(observations) if batched else None, self.device),
            None if deterministic else self.action_generator,
        )
        action = to_environment(self.action_spec, chosen.actions, tensors=False)
        if not batched:
            action = {k: v[0] for k, v in action.items()} if isinstance(action, dict) else action[0]
        return action, tuple(part.cpu().numpy() for part in chosen.state)

    def save(self, path: str | Path) -> None:
        """Write a checkpoint: pickle-free and atomic. All ranks call this together; one file holds them all.

        Directories are made, and a name without a suffix gets `.zip`, as in SB3.
        """
        state = self.state_dict()
        if self.ranks.several:
            state["other_ranks"] = self.ranks.gather_to_leader(portable(self._own_state()))[1:]
        if self.ranks.leads:
            save_checkpoint(file_to_write(path), state)
        self.ranks.wait()

    def restore(self, path: str | Path) -> None:
        """Go on exactly where a checkpoint was taken, in the same kind of environment; completely or not at all."""
        restore_checkpoint(file_to_read(path), self)

    @classmethod
    def load(
        cls,
        path: str | Path,
        env: str | AnyEnv | None = None,
        device: str = "cpu",
        *,
        n_envs: int | None = None,
        **settings: Any,
    ) -> Self:
        """An agent from a checkpoint, about to begin new episodes; `restore` goes on in the middle of the saved ones.

        Args:
            path: the checkpoint.
            env: the environment to play in; without one the agent predicts, and learns after `set_env`.
            device: "auto", "cpu" or "cuda".
            n_envs: how many environments to make when `env` is an id; None as for a new agent.
            **settings: fields of `PPOConfig` to change; schedules that are functions have to be given again.
        """
        state = load_checkpoint(file_to_read(path))
        saved = {name: restore(name, value) for name, value in state["config"].items() if name not in settings}
        require_plausible(make_config(saved), state["policy"])
        place = NoEnvironment.of(state) if env is None else env
        model = cls(place, n_envs=n_envs, seed=state["seed"], device=device, **{**saved, **settings})
        model.load_state_dict({**state, "env": None, "other_ranks": []})
        return model

    def _progress_remaining(self) -> float:
        """The share of the environment steps that remained when the rollout began: the last update counts, too."""
        before = self.num_timesteps - self.config.n_steps * self.n_envs * self.ranks.size
        done = before / self._total_timesteps if self._total_timesteps else 0.0
        return min(max(1.0 - done, 0.0), 1.0)

    def dump_logs(self) -> None:
        """Write the log with what is known now."""
        record, seconds = self.logger.record, time.perf_counter() - self._started
        if self.ep_info_buffer:
            record("rollout/ep_rew_mean", float(np.mean([episode["r"] for episode in self.ep_info_buffer])))
            record("rollout/ep_len_mean", float(np.mean([episode["l"] for episode in self.ep_info_buffer])))
        record("time/iterations", self.learner.counters.rollouts, exclude="tensorboard")
        record("time/fps", int((self.num_timesteps - self._steps_before) / max(seconds, 1e-9)))
        record("time/time_elapsed", int(seconds), exclude="tensorboard")
        record("time/total_timesteps", self.num_timesteps, exclude="tensorboard")
        self.logger.dump(step=self.num_timesteps)
