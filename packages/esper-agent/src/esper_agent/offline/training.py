"""Learning from a dataset in a run directory: epochs, early stopping, checkpoints and resuming.

The agent's counter of environment steps counts recorded steps, as often as they were learnt from.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from esper_env.files import replace_text
from torch import Tensor

from esper_agent.algorithm.checkpoint import State, restore_checkpoint, save_checkpoint
from esper_agent.algorithm.schedules import describe
from esper_agent.diagnostics.alarms import Event
from esper_agent.diagnostics.metrics import Measured, Metrics, summarize
from esper_agent.offline.config import ImitationConfig, OfflineConfig, QLearningConfig
from esper_agent.offline.dataset import Recorded, load_recorded, require_fit
from esper_agent.offline.imitation import Imitation
from esper_agent.offline.method import Method
from esper_agent.offline.q_learning import ImplicitQLearning
from esper_agent.offline.sequences import EpisodeBatch, as_sequences
from esper_agent.ppo import FactoredRecurrentPPO
from esper_agent.runs.directory import RunConfig, RunDirectory, RunError
from esper_agent.runs.learning_curve import draw_learning_curve
from esper_agent.runs.stopping import Interrupted, stopping_on_signals
from esper_agent.runs.training import build_model, explaining_failed_writes, using_threads

METHODS: dict[str, tuple[type[Any], type[Any]]] = {
    Imitation.name: (Imitation, ImitationConfig),
    ImplicitQLearning.name: (ImplicitQLearning, QLearningConfig),
}
ONLINE_ONLY = {"kl_spike", "ratio_explosion"}  # detectors that compare with the policy that collected the data


@dataclass(frozen=True)
class OfflinePlan:
    """What is learnt, from what, and how.

    Attributes:
        method: "imitate" or "iql".
        dataset: its name.
        settings: of the method; those left out have their defaults.
        sha256: hash of the dataset, where `esper-agent record` wrote one; None for another origin.
    """

    method: str
    dataset: str
    settings: OfflineConfig
    sha256: str | None = None


class OfflineLearning:
    """Epoch after epoch over a dataset.

    Args:
        model: the agent, untrained or not.
        plan: what to do.
        recorded: the dataset.
        seed: says which episodes are held out.
    """

    def __init__(self, model: FactoredRecurrentPPO, plan: OfflinePlan, recorded: Recorded, seed: int) -> None:
        self.model, self.plan, self.config = model, plan, plan.settings
        data = as_sequences(recorded, model)
        self.train, self.held_out = split(data, self.config.held_out, seed)
        self.method: Method = METHODS[plan.method][0](model, self.config, self.train)
        self.epoch, self.best_epoch, self.best_loss = 0, 0, float("inf")
        self.best: dict[str, Tensor] = {}

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, or patience is at its end."""
        patience = getattr(self.config, "patience", self.config.epochs)
        return self.epoch >= self.config.epochs or self.epoch - self.best_epoch >= patience

    def learn_epoch(self) -> tuple[Metrics, dict[str, float]]:
        """One pass over the episodes; what was measured while learning, and on held-out episodes after it."""
        model, counters = self.model, self.model.learner.counters
        minibatches = [self._minibatch(rows) for rows in self._partition()]
        nothing: Measured = {"nonfinite": torch.zeros(())}
        metrics = summarize(minibatches, nothing, model.action_spec.heads, tuple(model.learner.optimizer.groups))
        self.epoch += 1
        counters.rollouts += 1
        counters.optimizer_steps += int(metrics["minibatches"])
        counters.env_steps += int(self.train.steps.sum())
        judged = self.method.judge(self.held_out) if self.held_out.count else {}
        self._keep_best(judged)
        return {**metrics, "learning_rate": model.learner.optimizer.learning_rate, **asdict(counters)}, judged

    def _partition(self) -> Sequence[Tensor]:
        order = torch.randperm(self.train.count, generator=self.model.learner.shuffle).to(self.model.device)
        return torch.split(order, self.config.minibatch)

    def _minibatch(self, rows: Tensor) -> Measured:
        optimizer, each = self.model.learner.optimizer, -(-self.train.count // self.config.minibatch)
        taken = self.model.learner.counters.optimizer_steps
        optimizer.learning_rate = self.config.learning_rate * max(0.0, 1 - taken / (each * self.config.epochs))
        return self.method.minibatch(self.train.select(rows))

    def _keep_best(self, judged: dict[str, float]) -> None:
        watched = self.method.watched
        if watched is None or not judged:
            self.best_epoch = self.epoch
        elif judged[watched] < self.best_loss:
            self.best_epoch, self.best_loss = self.epoch, judged[watched]
            self.best = {name: part.detach().clone() for name, part in self.model.policy.state_dict().items()}

    def conclude(self) -> None:
        """Give the agent the best policy."""
        if self.best:
            self.model.policy.load_state_dict(self.best)

    def events(self, metrics: Metrics) -> list[Event]:
        """What the detectors say about an epoch."""
        detectors = self.model.monitor.detectors.items()
        return [event for name, one in detectors if name not in ONLINE_ONLY for event in one.check(metrics)]

    def state_dict(self) -> State:
        """Everything that goes on exactly from here, also the agent's own state."""
        progress = {"epoch": self.epoch, "best_epoch": self.best_epoch, "best_loss": self.best_loss, "best": self.best}
        return {**self.model.state_dict(), "offline": {**progress, "method": self.method.state_dict()}}

    def load_state_dict(self, state: State) -> None:
        """Take over a saved state."""
        own = state["offline"]
        self.model.load_state_dict(state)
        self.epoch, self.best_epoch, self.best_loss = own["epoch"], own["best_epoch"], own["best_loss"]
        self.best = dict(own["best"])
        self.method.load_state_dict(own["method"])


def split(data: EpisodeBatch, share: float, seed: int) -> tuple[EpisodeBatch, EpisodeBatch]:
    """The episodes that are learnt from and those that are held out, at random; at least one is learnt from."""
    order = torch.randperm(data.count, generator=torch.Generator().manual_seed(seed)).to(data.steps.device)
    kept = max(1, data.count - round(share * data.count))
    return data.select(order[:kept].sort().values), data.select(order[kept:].sort().values)


def start_offline(
    run: RunDirectory,
    plan: OfflinePlan,
    config: RunConfig,
    report: Callable[[str], None],
    after_epoch: Callable[[OfflineLearning], None] = lambda _: None,
) -> None:
    """Learn from the beginning in a new run directory.

    Args:
        run: where.
        plan: what to do.
        config: seed, device, threads, and settings of the agent; environment and steps come from the dataset.
        report: takes a line about each epoch.
        after_epoch: is told of every epoch.

    Raises:
        RunError: when the directory is taken or cannot be written, or the dataset does not suit.
        Interrupted: after Ctrl-C, SIGTERM or SIGHUP, with the state saved.
    """
    recorded = load_recorded(plan.dataset)
    config = replace(config, env_id=recorded.env_id, env={**recorded.env, **config.env})
    model = build_model(config)
    learning = _learning(model, plan, recorded, config.seed)
    total = int(learning.train.steps.sum()) * plan.settings.epochs
    settings = describe(asdict(model.config))
    config = replace(config, n_envs=model.n_envs, total_timesteps=total, agent=settings)
    plan = replace(plan, sha256=recorded.about.get("sha256"))
    with explaining_failed_writes(run):
        run.create()
        with run.locked():
            run.create()
            replace_text(run.offline_file, json.dumps({**asdict(plan)}, indent=2) + "\n")
            run.write_config(config)
            _learn(run, config, learning, report, after_epoch)


def resume_offline(run: RunDirectory, method: str, report: Callable[[str], None]) -> None:
    """Continue from the newest checkpoint to the end.

    Args:
        run: where.
        method: what is to go on.
        report: takes a line about each epoch.

    Raises:
        RunError: when the directory holds no such run, or its dataset is another one now.
        CheckpointError: when the checkpoint cannot be read.
        Interrupted: after Ctrl-C, SIGTERM or SIGHUP, with the state saved.
    """
    config, plan = run.read_config(), read_plan(run)
    if plan.method != method:
        raise RunError(f"{run.path} holds a run of {plan.method}; continue it with esper-agent {plan.method} --resume")
    recorded = load_recorded(plan.dataset)
    if recorded.about.get("sha256") != plan.sha256:
        raise RunError(f"the dataset {plan.dataset} is not the one that {run.path} began with: its hash differs")
    with explaining_failed_writes(run), run.locked():
        learning = _learning(build_model(config), plan, recorded, config.seed)
        if run.checkpoints():
            restore_checkpoint(run.latest_checkpoint(), learning)
        run.sweep()
        _learn(run, config, learning, report)


def read_plan(run: RunDirectory) -> OfflinePlan:
    """What a run learns.

    Raises:
        RunError: when it learns from no dataset.
    """
    try:
        record = json.loads(run.offline_file.read_text(encoding="utf-8"))
        settings = METHODS[record["method"]][1](**record.pop("settings"))
        return OfflinePlan(settings=settings, **record)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise RunError(f"{run.path} holds no run that learns from a dataset ({error})") from error


def _learning(model: FactoredRecurrentPPO, plan: OfflinePlan, recorded: Recorded, seed: int) -> OfflineLearning:
    require_fit(recorded, model.tensor_env.env)
    return OfflineLearning(model, plan, recorded, seed)


class _Saving:
    """Checkpoints after every so many recorded steps, and the signal that asks for a stop."""

    def __init__(self, run: RunDirectory, config: RunConfig, learning: OfflineLearning) -> None:
        self.run, self.config, self.learning = run, config, learning
        self.stop_requested = 0
        self.next_save = learning.model.num_timesteps + config.checkpoint_every

    def save(self) -> Path:
        path = self.run.checkpoint_file(self.learning.model.num_timesteps)
        save_checkpoint(path, self.learning.state_dict())
        self.run.prune_checkpoints(self.config.keep_checkpoints)
        return path

    def after_epoch(self) -> None:
        if self.stop_requested:
            raise Interrupted(self.save(), self.stop_requested)
        if self.learning.model.num_timesteps >= self.next_save:
            self.next_save = self.learning.model.num_timesteps + self.config.checkpoint_every
            self.save()


def _learn(
    run: RunDirectory,
    config: RunConfig,
    learning: OfflineLearning,
    report: Callable[[str], None],
    after_epoch: Callable[[OfflineLearning], None] = lambda _: None,
) -> None:
    model, saving = learning.model, _Saving(run, config, learning)
    model.set_logger(run.logger(model.num_timesteps, config))
    try:
        with stopping_on_signals(saving, speaks=True), using_threads(config.threads):
            for metrics, judged in _epochs(learning):
                _log(learning, metrics, judged)
                report(_line(learning, metrics, judged))
                after_epoch(learning)
                saving.after_epoch()
            learning.conclude()
            saving.save()
    finally:
        model.logger.close()
        draw_learning_curve(run.metrics(), f"{config.env_id}, {learning.plan.dataset}", run.picture_file)


def _epochs(learning: OfflineLearning) -> Iterator[tuple[Metrics, dict[str, float]]]:
    model, began, before = learning.model, time.perf_counter(), learning.model.num_timesteps
    while not learning.finished:
        metrics, judged = learning.learn_epoch()
        seconds = time.perf_counter() - began
        model.logger.record("time/fps", int((model.num_timesteps - before) / seconds))
        model.logger.record("time/time_elapsed", seconds)
        yield metrics, judged


def _log(learning: OfflineLearning, metrics: Metrics, judged: dict[str, float]) -> None:
    record = learning.model.logger.record
    for name, value in metrics.items():
        record(f"train/{name}", float(value))
    for name, value in judged.items():
        record(f"held_out/{name}", value)
    if "explained_variance" in judged:
        record("train/explained_variance", judged["explained_variance"])
    events = learning.events(metrics)
    learning.model.events.extend(events)
    for event in events:
        record(f"diagnostics/{event.name}", event.value)
    if events:
        record(
            "diagnostics/events", [asdict(event) for event in events], exclude=("stdout", "log", "csv", "tensorboard")
        )
    learning.model.logger.dump(step=learning.model.num_timesteps)


def _line(learning: OfflineLearning, metrics: Metrics, judged: dict[str, float]) -> str:
    shown = {"loss": metrics["loss"]} | {f"held-out {name}": judged[name] for name in ("loss", "accuracy") if judged}
    numbers = ", ".join(f"{name} {value:.4f}" for name, value in shown.items())
    return f"epoch {learning.epoch} of {learning.config.epochs}: {numbers}"
