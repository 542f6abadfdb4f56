"""Training in a run directory: periodic checkpoints, resuming, and stopping on request."""

import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gymnasium
import torch
from esper_env.tasks.data import DataError
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger

from esper_agent.algorithm.archive import CheckpointError
from esper_agent.algorithm.checkpoint import State, load_checkpoint, restore_checkpoint
from esper_agent.algorithm.defaults import default_n_envs
from esper_agent.algorithm.devices import choose_device
from esper_agent.algorithm.environments import make_vector_env
from esper_agent.algorithm.pull import Pull
from esper_agent.algorithm.schedules import describe, restore
from esper_agent.distributed import ALONE, Ranks
from esper_agent.networks.policy import check_shapes
from esper_agent.ppo import FactoredRecurrentPPO
from esper_agent.pretrained import pretrained_file
from esper_agent.runs.action_shares import ActionShares
from esper_agent.runs.directory import RunConfig, RunDirectory, RunError, find_checkpoint
from esper_agent.runs.learning_curve import draw_learning_curve
from esper_agent.runs.profiling import ProfileRun
from esper_agent.runs.stopping import Interrupted, stopping_on_signals
from esper_agent.runs.trackers import require_loggers
from esper_agent.runs.validation import Validation

_IMPOSSIBLE = (ValueError, TypeError, LookupError, AttributeError, RuntimeError, ImportError)  # wishes of all kinds


class CheckpointRun(BaseCallback):
    """Saves between rollouts, where a resumed run continues exactly like one that never stopped.

    Args:
        run: where the checkpoints go.
        every: environment steps between them.
        keep: how many of the newest stay.
        ranks: who saves together.
    """

    def __init__(self, run: RunDirectory, every: int, keep: int, ranks: Ranks = ALONE) -> None:
        super().__init__()
        self.run, self.every, self.keep, self.ranks = run, every, keep, ranks
        self.next_save = 0
        self.stop_requested = 0  # the signal that asks for a stop before the next rollout

    def save(self) -> Path:
        """Write a checkpoint of this moment."""
        path = self.run.checkpoint_file(self.model.num_timesteps)
        if self.ranks.leads:
            path.parent.mkdir(exist_ok=True)
        self.model.save(path)
        if self.ranks.leads:
            self.run.prune_checkpoints(self.keep)
        self.next_save = self.model.num_timesteps + self.every
        return path

    def _on_rollout_start(self) -> None:
        if signal := max(self.ranks.gather(self.stop_requested)):
            raise Interrupted(self.save(), signal)
        if self.model.num_timesteps >= self.next_save:
            self.save()

    def _on_step(self) -> bool:
        return True


def start_run(
    run: RunDirectory, config: RunConfig, *, progress_bar: bool, profile: bool = False, ranks: Ranks = ALONE
) -> None:
    """Train from the beginning in a new run directory.

    Raises:
        RunError: when the directory is not empty or cannot be written.
        Interrupted: after Ctrl-C, SIGTERM or SIGHUP, with the state saved.
        LostRanksError: when another rank has died.
    """
    _require_loggers(config)
    model = build_model(config, ranks)
    start = begin_with(model, config, run)
    # Every setting is written down, so that a later default cannot change a resumed run.
    n_envs = model.buffer.n_envs * ranks.size
    config = replace(config, n_envs=n_envs, ranks=ranks.size, agent=describe(asdict(model.config)))
    with explaining_failed_writes(run):
        if ranks.leads:
            run.create()
        with run.locked() if ranks.leads else nullcontext():
            if ranks.leads:
                run.create()  # still empty, now that nobody else can begin
                if start is not None:
                    shutil.copyfile(start, run.start_file)
                run.write_config(config)
            _train(run, config, model, progress_bar=progress_bar, profile=profile)


def resume_run(
    run: RunDirectory,
    changes: Mapping[str, Any] = MappingProxyType({}),
    *,
    progress_bar: bool,
    profile: bool = False,
    ranks: Ranks = ALONE,
) -> None:
    """Continue a run from its newest checkpoint to its end; device and threads may change.

    Raises:
        RunError: when the directory holds no run or cannot be written.
        CheckpointError: when the checkpoint cannot be read or written.
        Interrupted: after Ctrl-C, SIGTERM or SIGHUP, with the state saved.
        LostRanksError: when another rank has died.
    """
    config = run.read_config()
    config = replace(config, **changes)
    with explaining_failed_writes(run), run.locked() if ranks.leads else nullcontext():
        model = build_model(config, ranks)
        if config.start_from is not None:
            adopt(model, run.start_file, config.pull)
        if run.checkpoints():
            state = restore_newest(run, model)
            _note_other_ranks(1 + len(state["other_ranks"]), ranks)
        if ranks.leads:
            run.sweep()
            _note(run.unreadable_metrics())
        _train(run, config, model, progress_bar=progress_bar, profile=profile)


def _require_loggers(config: RunConfig) -> None:
    try:
        require_loggers(config.loggers)
    except ImportError as error:
        raise RunError(str(error)) from error


def begin_with(model: FactoredRecurrentPPO, config: RunConfig, run: RunDirectory) -> Path | None:
    """Give a new run's agent the policy that its settings name; returns the checkpoint that it comes from."""
    if config.start_from is None:
        return None
    _, checkpoint = find_checkpoint(Path(config.start_from), trusted=run.trusted)
    adopt(model, checkpoint, config.pull)
    return checkpoint


def adopt(model: FactoredRecurrentPPO, checkpoint: Path, pull: float) -> None:
    """Begin with the policy of a checkpoint, and the units that it knows observations and returns in.

    Args:
        model: the agent, untrained.
        checkpoint: of an agent of the same shape.
        pull: weight of the divergence from that policy in the loss, which fades over the run.

    Raises:
        CheckpointError: when it cannot be read or is of another shape.
    """
    state = load_checkpoint(checkpoint)
    try:
        check_shapes(state["policy"], model.policy.state_dict())
    except ValueError as error:
        raise CheckpointError(f"{checkpoint} does not fit: {error}") from error
    model.policy.load_state_dict(state["policy"])
    model.learner.counters.rollouts = state["counters"]["rollouts"]  # above 0, so that the units stay
    if pull:
        model.learner.pull = Pull(model.policy, pull, model.config.precision)


def restore_newest(run: RunDirectory, model: FactoredRecurrentPPO) -> State:
    """Give the newest checkpoint's state to an agent; returns it.

    Raises:
        RunError: when there is none.
        CheckpointError: when it cannot be read or does not fit; names an older one that can.
    """
    newest = run.latest_checkpoint()
    try:
        return restore_checkpoint(newest, model)
    except CheckpointError as error:
        readable = next(filter(_is_readable, reversed(run.checkpoints()[:-1])), None)
        advice = "no older one can be read" if readable is None else f"move it away to go on from {readable}"
        raise CheckpointError(f"{error}; {advice}") from error


def load_agent(config: RunConfig, checkpoint: Path, device: str | None = None) -> FactoredRecurrentPPO:
    """The agent of a checkpoint, about to begin new episodes.

    Args:
        config: the settings of its run.
        checkpoint: the file.
        device: where it shall compute; that of the run unless given.
    """
    model = build_model(replace(config, device=device or config.device))
    restore_checkpoint(checkpoint, model, episodes=False)
    return model


def find_agent(path: Path | None, pretrained: str | None, *, trusted: bool) -> tuple[RunConfig, Path]:
    """The settings and the checkpoint of a run, of one of its checkpoints, or of an agent that comes with the package.

    Raises:
        RunError: when there is no such run or agent.
        CheckpointError: when a shipped file is damaged.
    """
    if path is not None:
        run, checkpoint = find_checkpoint(path, trusted=trusted)
        return run.read_config(), checkpoint
    try:
        checkpoint = pretrained_file(str(pretrained))
    except ValueError as error:
        raise RunError(str(error)) from error
    return RunConfig(str(pretrained), agent=load_checkpoint(checkpoint)["config"]), checkpoint


def _is_readable(checkpoint: Path) -> bool:
    try:
        load_checkpoint(checkpoint)
    except CheckpointError:
        return False
    return True


def _note(text: str | None) -> None:
    if text:
        print(text, flush=True)


def _note_other_ranks(before: int, ranks: Ranks) -> None:
    if before != ranks.size and ranks.leads:
        note = "what was learnt goes on, all environments begin new episodes"
        print(f"ranks of the checkpoint: {before}, of this run: {ranks.size}; {note}", flush=True)


def build_model(config: RunConfig, ranks: Ranks = ALONE) -> FactoredRecurrentPPO:
    """The agent of a run, at its beginning.

    Raises:
        RunError: when the environment or a setting is not possible.
    """
    try:
        settings = {name: restore(name, value) for name, value in config.agent.items()}
        device = str(choose_device(config.device))
        n_envs = default_n_envs(config.env_id) if config.n_envs is None else config.n_envs
        env = make_vector_env(config.env_id, ranks.share(n_envs), device, **config.env)
        return FactoredRecurrentPPO(env, seed=config.seed, device=device, ranks=ranks, **settings)
    except (*_IMPOSSIBLE, DataError, gymnasium.error.Error) as error:
        raise RunError(f"cannot train in {config.env_id}: {error}") from error


def _train(
    run: RunDirectory, config: RunConfig, model: FactoredRecurrentPPO, *, progress_bar: bool, profile: bool
) -> None:
    leads = model.ranks.leads
    model.set_logger(run.logger(model.num_timesteps, config) if leads else Logger(None, []))
    callback = CheckpointRun(run, config.checkpoint_every, config.keep_checkpoints, model.ranks)
    profiler = ProfileRun(run.profile_directory)
    validation = [Validation(run, config, model)] if config.eval_every else []
    callbacks = [ActionShares(), *([profiler] if profile and leads else []), *validation, callback]
    remaining = config.total_timesteps - model.num_timesteps
    try:
        with stopping_on_signals(callback, speaks=leads), using_threads(config.threads):
            if remaining > 0:
                model.learn(remaining, callbacks, reset_num_timesteps=False, progress_bar=progress_bar)
                for evaluation in validation:
                    evaluation.evaluate()
                callback.save()
    finally:
        profiler.close()
        model.logger.close()
        if leads:
            draw_learning_curve(run.metrics(), f"{config.env_id}, seed {config.seed}", run.picture_file)


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Let torch compute with so many threads; 0 leaves them as they are."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def explaining_failed_writes(run: RunDirectory) -> Iterator[None]:
    """One error for a full disk, a read-only directory and the like; checkpoints are replaced only when complete."""

    def report(failure: threading.ExceptHookArgs) -> None:
        # TensorBoard's writer raises the error of its thread once more in ours.
        if not issubclass(failure.exc_type, OSError):
            previous(failure)

    previous, threading.excepthook = threading.excepthook, report
    try:
        yield
    except OSError as error:
        raise RunError(f"cannot write to {run.path}: {error}; the checkpoints in it are unchanged") from error
    finally:
        threading.excepthook = previous
