"""Searching the settings of agents: shared by processes, pruned, repeated when killed, written down whole."""

import io
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from esper_agent import cli
from esper_agent.baselines.agents import AGENTS
from esper_agent.comparison import tuning
from esper_agent.comparison.tuning import AgentSearch, Terms, search
from esper_agent.runs.directory import RunError

TERMS = Terms("Esper-v0", trials=6, evaluations=3)
Told = Callable[[Mapping[str, float]], None]


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Trainings are pretended: the more epochs, the better."""
    plans.clear()
    monkeypatch.setattr(tuning, "train", pretend)
    monkeypatch.setattr(tuning, "make_env", lambda _: io.StringIO())  # something to close
    return f"sqlite:///{tmp_path / 'trials.db'}"


plans: list[Any] = []


def pretend(_spec: Any, plan: Any, _env: Any, told: Told) -> None:
    plans.append(plan)
    for part in range(plan.evaluations + 1):
        told({"discounted_return": plan.settings["n_epochs"] * part})


def own_search(storage: str, terms: Terms = TERMS) -> AgentSearch:
    return AgentSearch("ours", terms, storage)


def test_a_search_begins_with_the_defaults_and_stays_in_its_space(storage: str) -> None:
    found = search(("ours", "ppo"), TERMS, storage, print)
    for name, one in found.items():
        spec, settings = AGENTS[name], [trial["settings"] for trial in one["trials"]]
        assert settings[0] == spec.defaults
        assert len(settings) == TERMS.trials
        assert all(each[key] in values for each in settings for key, values in spec.search_space.items())
        assert one["return"] == max(trial["return"] for trial in one["trials"] if trial["state"] == "complete")
        assert one["search_space"] == {key: list(values) for key, values in spec.search_space.items()}
    assert {plan.instances for plan in plans} == {"validation"}
    assert {plan.seed for plan in plans} == {tuning.FIRST_SEED}


def test_processes_that_share_a_storage_search_together(storage: str) -> None:
    first, second = own_search(storage), own_search(storage)
    while first.step() and second.step():
        pass
    assert len(plans) == TERMS.trials
    assert first.found() == second.found()
    other = Terms("Esper-v0", steps=1)
    with pytest.raises(RunError, match="holds a search for ours on other terms"):
        own_search(storage, other)


def test_a_trial_without_prospects_is_pruned(storage: str) -> None:
    many = own_search(storage, Terms("Esper-v0", trials=12, evaluations=3))
    while many.step():
        pass
    trials = many.found()["trials"]
    pruned = [trial for trial in trials if trial["state"] == "pruned"]
    assert 0 < len(pruned) < 12
    best = max(trial["settings"]["n_epochs"] for trial in trials)
    assert all(trial["settings"]["n_epochs"] < best for trial in pruned)
    assert len(trials) == 12


def test_a_killed_trial_is_repeated(storage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "HEARTBEAT", 1)
    killed = own_search(storage)
    trial = killed.study.ask()  # and then its process is gone
    begun = killed._settings(trial)
    killed.study._storage.record_heartbeat(trial._trial_id)
    time.sleep(2.5)
    survivor = own_search(storage)
    survivor.step()
    survivor.step()
    assert begun in [plan.settings for plan in plans]


def test_the_command_tunes_continues_and_writes_all_trials(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "tuned.json"

    def tune(trials: int, *more: str) -> int:
        numbers = {"trials": trials, "steps": 1, "rows": 4, "episodes": 2, "evaluations": 1}
        flags = [part for name, number in numbers.items() for part in (f"--{name}", str(number))]
        given = ["--env", "Esper-v0", "--agents", "ours", "--env-set", "horizon=6", "--out", str(out)]
        return cli.main(["tune", *given, *flags, *more])

    assert tune(1) == 0
    before = json.loads(out.read_text())
    assert before["instances"] == "validation"
    assert before["agents"]["ours"]["settings"] == AGENTS["ours"].defaults
    assert tune(2) == 0
    after = json.loads(out.read_text())["agents"]["ours"]["trials"]
    assert after[0] == before["agents"]["ours"]["trials"][0]  # was not repeated
    assert len(after) == 2
    assert tune(2, "--agents", "ours,plateau") == 1
    assert "agent is 'plateau'; allowed: ours, ppo" in capsys.readouterr().err
