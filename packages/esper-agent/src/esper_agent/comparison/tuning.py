"""The search for agents' settings on validation instances: Optuna's TPE, with pruning and a storage that is shared."""

import json
import time
import warnings
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import Any

import esper_env  # noqa: F401  (registers its environments)
import gymnasium
import numpy as np
import torch

from esper_agent.baselines.agents import AGENTS, AgentSpec
from esper_agent.comparison.run import Plan, make_env, train
from esper_agent.runs.directory import RunError

FIRST_SEED = 1_000  # of trainings, which no comparison uses
HEARTBEAT = 60  # seconds; a trial whose process is silent for twice that is taken for killed and repeated
UNPRUNED = 4  # trials before the first one may be pruned
TUNABLE = tuple(name for name, spec in AGENTS.items() if spec.tuned_as is None)


@dataclass(frozen=True)
class Terms:
    """On which terms settings are searched, the same for all agents.

    Attributes:
        env_id: the environment.
        trials: settings that are tried for each agent, pruned ones among them.
        steps: environment steps of a training.
        seeds: trainings of each trial.
        rows: environments side by side while training.
        episodes: validation instances that a trial is scored by.
        evaluations: how often a trial may be pruned.
        env: arguments of the environment.
    """

    env_id: str
    trials: int = 16
    steps: int = 60_000
    seeds: int = 1
    rows: int = 64
    episodes: int = 128
    evaluations: int = 4
    env: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("trials", "steps", "seeds", "rows", "episodes", "evaluations"):
            if getattr(self, name) < 1:
                raise RunError(f"{name} is {getattr(self, name)}; allowed: integers from 1 on")

    def plan(self, agent: str, settings: Mapping[str, Any], number: int) -> Plan:
        """One training of a trial: at least a rollout."""
        rollout = self.rows * settings["n_steps"]
        steps = max(self.steps // rollout, 1) * rollout
        terms = (steps, self.rows, self.episodes, self.evaluations, dict(settings), "validation", self.env)
        return Plan(self.env_id, agent, FIRST_SEED + number, *terms)


class AgentSearch:
    """The search for one agent's settings, in which any number of processes may take part at a time.

    Args:
        agent: whose.
        terms: of the search.
        storage: where Optuna keeps trials, as a URL; the same one continues a search.
    """

    def __init__(self, agent: str, terms: Terms, storage: str) -> None:
        self.agent, self.terms, self.spec, self.optuna = agent, terms, AGENTS[agent], load_optuna()
        self.study = self._study(storage)
        own = {name: value for name, value in json.loads(json.dumps(asdict(terms))).items() if name != "trials"}
        if self.study.user_attrs.get("terms", own) != own:
            raise RunError(f"{storage} holds a search for {agent} on other terms; choose another --storage")
        self.study.set_user_attr("terms", own)
        if not self.study.trials:
            first = {name: values.index(self.spec.defaults[name]) for name, values in self.spec.search_space.items()}
            self.study.enqueue_trial(first, skip_if_exists=True)

    def _study(self, storage: str) -> Any:
        self.optuna.logging.set_verbosity(self.optuna.logging.WARNING)  # it would print every trial
        storages, name = self.optuna.storages, f"{self.terms.env_id} {self.agent}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that heartbeats are experimental, and renamed in some versions
            repeated = storages.RetryFailedTrialCallback()
            shared = storages.RDBStorage(storage, heartbeat_interval=HEARTBEAT, failed_trial_callback=repeated)
        pruner = self.optuna.pruners.MedianPruner(n_startup_trials=UNPRUNED)
        study = self.optuna.create_study(
            storage=shared, study_name=name, direction="maximize", pruner=pruner, load_if_exists=True
        )
        # What is drawn differs between processes that begin one after the other.
        seed = zlib.crc32(f"{name} {len(study.trials)}".encode())
        study.sampler = self.optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        return study

    def finished(self) -> list[Any]:
        """The first trials that were completed or pruned, no more than asked for, by their number."""
        states = (self.optuna.trial.TrialState.COMPLETE, self.optuna.trial.TrialState.PRUNED)
        return self.study.get_trials(states=states)[: self.terms.trials]  # type: ignore[no-any-return]

    def step(self) -> bool:
        """Carry out one more trial; False when there are enough."""
        if len(self.finished()) >= self.terms.trials:
            return False
        self.study.optimize(self._objective, n_trials=1)
        return True

    def _objective(self, trial: Any) -> float:
        begun, torch_threads = time.perf_counter(), torch.get_num_threads()
        torch.set_num_threads(1)  # so that no agent gains by having more
        try:
            settings = self._settings(trial)
            scores: list[float] = []
            for number in range(self.terms.seeds):
                scores.append(self._train(trial, self.terms.plan(self.agent, settings, number), scores))
        finally:
            torch.set_num_threads(torch_threads)
            trial.set_user_attr("seconds", round(time.perf_counter() - begun, 1))
        return float(np.mean(scores))

    def _settings(self, trial: Any) -> dict[str, Any]:
        """Values by their places in the lists, since Optuna stores numbers and words but no mappings."""
        space = self.spec.search_space
        places = {name: trial.suggest_categorical(name, range(len(values))) for name, values in space.items()}
        return settings_of(self.spec, places)

    def _train(self, trial: Any, plan: Plan, before: list[float]) -> float:
        """The return at the end, unless the trial is pruned on the way."""
        returns: list[float] = []

        def told(means: Mapping[str, float]) -> None:
            returns.append(means["discounted_return"])
            trial.report(float(np.mean([*before, returns[-1]])), len(before) * plan.evaluations + len(returns))
            if 1 < len(returns) <= plan.evaluations and trial.should_prune():
                raise self.optuna.TrialPruned

        train(self.spec, plan, make_env(plan), told)
        return returns[-1]

    def found(self) -> dict[str, Any]:
        """The best settings, where they were looked for, and all trials."""
        trials = [self._told(trial) for trial in self.finished()]
        best = max((one for one in trials if one["state"] == "complete"), key=lambda one: one["return"])
        space = {name: list(values) for name, values in self.spec.search_space.items()}
        return {"settings": best["settings"], "return": best["return"], "search_space": space, "trials": trials}

    def _told(self, trial: Any) -> dict[str, Any]:
        last = trial.value if trial.value is not None else trial.intermediate_values[max(trial.intermediate_values)]
        return {
            "settings": settings_of(self.spec, trial.params),
            "return": round(last, 4),
            "state": trial.state.name.lower(),
            "seconds": trial.user_attrs["seconds"],
        }


def settings_of(spec: AgentSpec, places: Mapping[str, int]) -> dict[str, Any]:
    """All settings of an agent from the places of those that are searched."""
    return {**spec.defaults, **{name: spec.search_space[name][place] for name, place in places.items()}}


def search(agents: tuple[str, ...], terms: Terms, storage: str, report: Callable[[str], None]) -> dict[str, Any]:
    """Search the settings of agents, trial by trial, so that a change of the machine's load meets all alike.

    Raises:
        RunError: for an agent that is not searched, an environment that cannot be made, or another search's storage.
    """
    if unknown := [name for name in agents if name not in TUNABLE]:
        raise RunError(f"agent is {unknown[0]!r}; allowed: {', '.join(TUNABLE)}")
    try:
        make_env(terms.plan(agents[0], AGENTS[agents[0]].defaults, 0)).close()
        for name in agents:
            AGENTS[name].require()
    except (ValueError, TypeError, RuntimeError, OSError, ImportError, gymnasium.error.Error) as error:
        raise RunError(f"cannot tune agents in {terms.env_id}: {error}") from error
    searches = {name: AgentSearch(name, terms, storage) for name in agents}
    going = True
    while going:
        going = any(list(map(AgentSearch.step, searches.values())))
        report(", ".join(f"{name} {len(one.finished())} of {terms.trials}" for name, one in searches.items()))
    return {name: one.found() for name, one in searches.items()}


def load_optuna() -> Any:
    """Optuna, which is an optional package.

    Raises:
        RunError: when it is missing; it names the command that installs it.
    """
    try:
        return import_module("optuna")
    except ImportError as error:
        raise RunError("tuning needs Optuna: pip install 'esper-agent[tune]'") from error
