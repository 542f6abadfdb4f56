"""Comparing agents: runs that resume, statistics over seeds, a report from the files of the runs alone."""

import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from esper_agent import cli, evaluate
from esper_agent.baselines.agents import AGENTS
from esper_agent.baselines.tuned import TUNABLE
from esper_agent.baselines.tuning import constants_to_try
from esper_agent.comparison import outcome, processes
from esper_agent.comparison.arms import parse_arm
from esper_agent.comparison.command import names
from esper_agent.comparison.participants import tuned_baseline
from esper_agent.comparison.report import standing, write_report
from esper_agent.comparison.results import read_results
from esper_agent.comparison.run import EVALUATION_SEED, Plan, carry_out
from esper_agent.comparison.study import Study, run_study
from esper_agent.evaluation import callback, statistics
from esper_agent.evaluation.callback import TrainingClock
from esper_agent.evaluation.paired import make_test_env, play
from esper_agent.runs.directory import RunConfig, RunDirectory, RunError
from esper_agent.runs.training import load_agent, start_run

ENV, ROWS, EPISODES = "Esper-v0", 2, 3
TINY = {"n_steps": 15, "n_epochs": 1, "n_minibatches": 2}
OURS = Plan(
    ENV, "ours", 0, 4 * 15 * ROWS, ROWS, EPISODES, 2, {**AGENTS["ours"].defaults, **TINY, "sequence_length": 15}
)


@pytest.fixture(autouse=True)
def few_replications(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "REPLICATIONS", 200)


# One run


def test_a_run_is_evaluated_before_on_the_way_and_at_the_end() -> None:
    result = json.loads(json.dumps(carry_out(OURS)))  # plain data
    assert Plan(**result["plan"]) == OURS
    assert [point["step"] for point in result["curve"]] == [0, 60, 120]
    assert result["curve"][0]["seconds"] == 0
    assert 0 < result["curve"][1]["seconds"] < result["curve"][2]["seconds"]
    assert len(result["episodes"]["test_accuracy"]) == EPISODES
    for measure, values in result["episodes"].items():
        assert result["curve"][-1][measure] == pytest.approx(np.mean(values), abs=2e-6)


def test_the_final_scores_are_those_of_paired_play() -> None:
    settings = {**AGENTS["ppo"].defaults, **TINY}
    plan = replace(OURS, agent="ppo", steps=15 * ROWS, settings=settings, evaluations=1)
    agent = AGENTS["ppo"].build(ENV, ROWS, plan.seed, **settings)
    agent.train(plan.steps)
    expected = play(agent, make_test_env(ENV, EPISODES), EVALUATION_SEED)
    np.testing.assert_allclose(carry_out(plan)["episodes"]["episode_return"], expected.episode_return, atol=1e-6)


def test_settings_are_chosen_on_other_instances_than_scores() -> None:
    baseline = Plan(ENV, "never", 0, 0, ROWS, EPISODES, 1)
    scores, choice = (carry_out(replace(baseline, instances=instances)) for instances in ("test", "train"))
    assert scores["episodes"]["test_accuracy"] != choice["episodes"]["test_accuracy"]


def test_evaluations_do_not_count_as_training_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(callback.time, "perf_counter", lambda: now[0])
    clock = TrainingClock()
    for training, evaluation in ((3.0, 100.0), (4.0, 100.0)):
        clock.start()
        now[0] += training / 2
        clock.start()  # a rollout that begins without an evaluation
        now[0] += training / 2
        clock.stop()
        now[0] += evaluation
    clock.stop()
    assert clock.seconds == 7.0


# A study


def test_agents_have_all_seeds_and_baselines_one() -> None:
    plans = Study(ENV, ("ours", "never"), steps=5_000, seeds=3).plans()
    assert [(plan.agent, plan.seed) for plan in plans] == [("ours", 0), ("never", 0), ("ours", 1), ("ours", 2)]
    rollout = 64 * AGENTS["ours"].settings(ENV)["n_steps"]
    assert {plan.steps for plan in plans if plan.agent == "ours"} == {5_000 // rollout * rollout}


def test_a_result_of_another_plan_is_not_taken_for_finished(tmp_path: Path) -> None:
    (tmp_path / "never_seed0.json").write_text(json.dumps({"plan": asdict(replace(OURS, agent="never", steps=0))}))
    with pytest.raises(RunError, match=r"never_seed0.json has episodes 3, not 5"):
        run_study(Study(ENV, ("never",), rows=ROWS, episodes=5, evaluations=2), tmp_path, 1)


def pretend(monkeypatch: pytest.MonkeyPatch, do: Callable[[Path], None]) -> None:
    """Let runs do something with the file of their result instead of training."""

    def finish(_plan: Any, file: Any) -> tuple[bool, str]:  # nothing here lets a process import torch
        do(file)
        return True, file.stem

    monkeypatch.setattr(processes, "finish", finish)


def files(directory: Path, *names: str) -> dict[Path, Any]:
    return {directory / f"{name}.json": None for name in names}


def test_a_run_writes_its_result_or_what_went_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = {"plan": asdict(OURS), "curve": [{"step": 8, "seconds": 2, "discounted_return": 0.5, "test_accuracy": 1}]}
    monkeypatch.setattr(outcome, "carry_out", lambda plan: result if plan.seed else {}["too bad"])
    monkeypatch.setattr(outcome.torch, "set_num_threads", lambda _: None)
    good = processes.finish(replace(OURS, seed=1), tmp_path / "good.json")
    assert good == (True, "good: return 0.500, test accuracy 1.000, 4 steps per second")
    assert json.loads((tmp_path / "good.json").read_text()) == result
    succeeded, line = processes.finish(OURS, tmp_path / "bad.json")
    assert not succeeded
    assert line == f"bad: KeyError: 'too bad' (see {tmp_path / 'bad.log'})"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["bad.log", "good.json"]


def test_a_failed_run_is_named_and_the_others_are_carried_out(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "study"
    never = replace(OURS, agent="never", steps=0, settings={})
    plans = {directory / "good.json": never, directory / "bad.json": replace(never, agent="nobody")}
    lines: list[str] = []
    with pytest.raises(RunError, match="1 of 2 runs failed: bad: RunError: agent is 'nobody'"):
        processes.run_plans(plans, 1, lines.append)
    assert [line[:5] for line in lines[1:]] == ["[1/2]", "[2/2]"]
    assert sorted(file.name for file in directory.iterdir()) == ["bad.log", "good.json"]
    assert json.loads((directory / "good.json").read_text())["threads"] == 1


def test_a_killed_run_is_repeated_and_does_not_keep_others_from_finishing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def live_and_die(file: Path) -> None:
        begun = len(list(file.parent.glob(f"{file.stem}.begun*")))
        file.with_suffix(f".begun{begun}").touch()
        file.with_suffix(".log").touch()
        if file.stem == "doomed" or (file.stem == "mortal" and not begun):
            os.kill(os.getpid(), signal.SIGKILL)

    pretend(monkeypatch, live_and_die)
    monkeypatch.setattr(processes, "ATTEMPTS", 2)
    lines: list[str] = []
    with pytest.raises(RunError, match="1 of 4 runs failed: doomed: its process was killed 2 times"):
        processes.run_plans(files(tmp_path, "first", "mortal", "doomed", "last"), 1, lines.append)
    assert sorted(line.split()[-1] for line in lines[1:]) == ["first", "last", "mortal"]
    begun = sorted(file.name for file in tmp_path.glob("*.begun*"))
    twice = [f"{name}.begun{number}" for name in ("doomed", "mortal") for number in (0, 1)]
    assert begun == sorted(["first.begun0", "last.begun0", *twice])


def test_never_more_runs_at_a_time_than_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def note_who_else_runs(file: Path) -> None:
        running = file.with_suffix(".running")
        running.touch()
        file.with_suffix(".seen").write_text(str(len(list(file.parent.glob("*.running")))))
        time.sleep(0.1)
        running.unlink()

    pretend(monkeypatch, note_who_else_runs)
    processes.run_plans(files(tmp_path, *"abcdef"), 2)
    seen = [int(file.read_text()) for file in tmp_path.glob("*.seen")]
    assert len(seen) == 6
    assert max(seen) <= 2


def test_a_stopped_study_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep_for_ever(file: Path) -> None:
        file.with_suffix(".pid").write_text(str(os.getpid()))
        time.sleep(1000)

    def stop_when_begun() -> None:
        while len([file for file in tmp_path.glob("*.pid") if file.read_text()]) < 2:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    pretend(monkeypatch, sleep_for_ever)
    threading.Thread(target=stop_when_begun, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        processes.run_plans(files(tmp_path, "one", "two"), 2)
    for file in tmp_path.glob("*.pid"):
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.read_text()), 0)
    assert not list(tmp_path.glob("*.json"))


# Settings in the name of an arm


def test_settings_in_the_name_take_the_place_of_tuned_ones() -> None:
    labels = names('ours,ours:memory=none:ent_coef={"op": 0.1, "slot": 0},maskable_ppo:net_arch=[8],plateau:patience=5')
    plans = {plan.agent: plan for plan in Study(ENV, labels, seeds=1).plans()}
    assert tuple(plans) == labels
    usual, own = plans[labels[0]].settings, plans[labels[1]].settings
    assert own == {**usual, "memory": "none", "ent_coef": {"op": 0.1, "slot": 0}}
    assert plans[labels[2]].settings == {**AGENTS["maskable_ppo"].settings(ENV), "net_arch": [8]}
    assert plans[labels[3]].settings == {"patience": 5}


def test_agents_are_made_with_the_settings_in_their_names() -> None:
    def made(label: str) -> Any:
        plan = Study(ENV, (label,), rows=4).plans()[0]
        return AGENTS[label.split(":")[0]].make(ENV, plan.rows, 0, plan.settings, {})

    assert made("ours:memory=none:ent_coef=0.2").model.config.memory == "none"
    assert made("ours:ent_coef=0.2").model.config.ent_coef(0.5) == pytest.approx(0.1)  # annealed, too
    model = made("maskable_ppo:net_arch=[8]:clip_range=0.3").model
    assert (model.clip_range(1), model.policy.action_net.in_features) == (0.3, 8)


def test_baselines_play_with_the_settings_in_their_names() -> None:
    env = make_test_env(ENV, 2, horizon=8)
    assert tuned_baseline("plateau:ceiling=0.3", ENV, env).ceiling == 0.3  # type: ignore[attr-defined]
    for name in TUNABLE:
        assert set(constants_to_try(name, env)) <= set(parse_arm(name).allowed)


# The report


def record(
    agent: str, seed: int, curve: Sequence[tuple[float, float, float]], scores: Sequence[float]
) -> dict[str, Any]:
    """A made-up run: (step, seconds, return) on the way, and returns of the instances at the end."""
    learns = len(curve) > 1
    names = ("test_accuracy", "val_accuracy", "added_parameters", "episode_return", "compute")
    steps = int(curve[-1][0])
    settings = {"n_steps": 30} if learns else {}
    return {
        "plan": asdict(Plan(ENV, agent, seed, steps if learns else 0, 8, len(scores), 2, settings)),
        "curve": [
            {"step": step, "seconds": seconds, "cpu_seconds": seconds, "discounted_return": score}
            for step, seconds, score in curve
        ],
        "episodes": {"discounted_return": list(scores), **{name: [value / 2 for value in scores] for name in names}},
        "threads": 1,
        "versions": {"torch": "2.0"},
    }


@pytest.fixture
def made_up(tmp_path: Path) -> Path:
    """Ours learns at once and slowly by the clock, ppo late but quickly; the oracle is twice never's gain away."""
    directory = tmp_path / "runs"
    directory.mkdir()
    runs = [record("never", 0, [(0, 0, 0.2)], [0.1, 0.3]), record("oracle", 0, [(0, 0, 1.0)], [0.9, 1.1])]
    for seed in range(4):
        luck = 0.01 * seed
        ours = [(0, 0, 0.2), (400, 80, 0.6 + luck), (800, 160, 0.6 + luck)]
        theirs = [(0, 0, 0.2), (400, 10, 0.2), (800, 20, 0.5 + luck / 2)]
        runs += [record("ours", seed, ours, [0.5 + luck, 0.7 + luck])]
        runs += [record("ppo", seed, theirs, [0.4 + luck / 2, 0.6 + luck / 2])]
    for made in runs:
        (directory / f"{made['plan']['agent']}_seed{made['plan']['seed']}.json").write_text(json.dumps(made))
    return directory


def test_the_report_has_the_interquartile_means(made_up: Path, tmp_path: Path) -> None:
    write_report(made_up, tmp_path / "report", "made up")
    lines = (tmp_path / "report.md").read_text().splitlines()
    ours = next(line for line in lines if line.startswith("| ours | 4 |"))
    assert "| 0.615 [" in ours  # returns 0.60 to 0.63 without the lowest and the highest
    assert "| 0.307 [" in ours
    assert ours.endswith("| 52% | 52% | 800 | 5 | 5 | 2.7 |")
    never, oracle = (next(line for line in lines if line.startswith(f"| {name} |")) for name in ("never", "oracle"))
    assert never == "| never | - | 0.200 [0.100, 0.300] | 0.100 [0.050, 0.150] | 10% | 0% | 0% | - | - | - | - |"
    assert "| 100% | 100% |" in oracle
    assert (tmp_path / "report.png").read_bytes()[:4] == b"\x89PNG"


def test_the_report_shows_every_seed_and_names_the_worst(made_up: Path, tmp_path: Path) -> None:
    write_report(made_up, tmp_path / "report", "made up")
    text = (tmp_path / "report.md").read_text()
    assert "| ours | 0.600, seed 0, 50% | 0.600, 0.610, 0.620, 0.630 |" in text
    assert "instances of the\ntest set" in text
    assert "no final results" not in text


def test_the_report_has_a_column_for_every_stratum(made_up: Path, tmp_path: Path) -> None:
    for file in made_up.glob("*.json"):
        run = json.loads(file.read_text())
        run["traits"], run["plan"]["instances"] = {"lesions": [0, 2]}, "validation"
        file.write_text(json.dumps(run))
    write_report(made_up, tmp_path / "report", "made up")
    text = (tmp_path / "report.md").read_text()
    assert "| agent | lesions 0 (1) | lesions 2 (1) |" in text
    assert "| ours | 0.515, 52% | 0.715, 52% |" in text
    assert "validation set" in text
    assert "no final results" in text


def test_runs_that_played_other_instances_are_not_reported_together(made_up: Path, tmp_path: Path) -> None:
    file = made_up / "never_seed0.json"
    run = json.loads(file.read_text())
    run["plan"]["instances"] = "validation"
    file.write_text(json.dumps(run))
    with pytest.raises(RunError, match="holds runs whose instances is 'validation' and 'test'; allowed: the same"):
        write_report(made_up, tmp_path / "report", "made up")


def test_ours_stands_against_the_others_at_the_end(made_up: Path, tmp_path: Path) -> None:
    write_report(made_up, tmp_path / "report", "made up")
    text = (tmp_path / "report.md").read_text().partition("## ours minus the others")[2]
    ppo, never = (
        next(line for line in text.splitlines() if line.startswith(f"| {name} | 0.")) for name in ("ppo", "never")
    )
    middle, low, high = (float(number) for number in re.findall(r"[\d.]+", ppo)[:3])
    assert middle == pytest.approx(0.1075, abs=1e-3)
    assert 0.1 <= low < middle < high <= 0.115  # of the differences of the four seeds
    assert "ahead" in ppo
    assert ppo.endswith("| 1.000 [1.000, 1.000] |")
    assert never.split("|")[2].strip().startswith("0.415 [")


def test_without_ours_as_it_is_the_others_stand_against_ours_with_other_settings(made_up: Path, tmp_path: Path) -> None:
    for file in made_up.glob("ours_*.json"):
        run = json.loads(file.read_text())
        run["plan"]["agent"] = "ours:memory=none"
        file.write_text(json.dumps(run))
    write_report(made_up, tmp_path / "report", "made up")
    text = (tmp_path / "report.md").read_text()
    assert "## ours:memory=none minus the others" in text
    assert "| ours:memory=none minus | return |" in text


def test_who_is_ahead_depends_on_steps_or_time(made_up: Path) -> None:
    results = read_results(made_up)
    by_steps = [standing(results, "ppo", "step", budget) for budget in (0.25, 0.5, 0.75, 1.0)]
    by_time = [standing(results, "ppo", "seconds", budget) for budget in (0.25, 0.5, 0.75, 1.0)]
    luck = 0.015  # of our seeds on average
    np.testing.assert_allclose(
        [one.point for one in by_steps], [0.2 + luck / 2, 0.4 + luck, 0.25 + 0.75 * luck, 0.1 + luck / 2]
    )
    assert [one.verdict for one in by_steps] == ["ahead"] * 4
    # In ppo's 20 seconds we only come to a quarter of our first 80.
    assert by_time[0].point == pytest.approx((0.4 + luck) / 16)
    assert by_time[3].point == pytest.approx(0.2 + (0.4 + luck) / 4 - 0.5 - luck / 2)
    assert [one.verdict for one in by_time] == ["ahead", "ahead", "behind", "behind"]


def test_the_share_of_the_oracles_gain(made_up: Path) -> None:
    results = read_results(made_up)
    own = results.iqm("ours", "discounted_return").point
    assert results.share(own, "discounted_return") == pytest.approx((0.615 - 0.2) / 0.8)


def test_unfinished_studies_compare_the_seeds_that_both_have(made_up: Path, tmp_path: Path) -> None:
    (made_up / "ppo_seed0.json").unlink()
    (made_up / "oracle_seed0.json").unlink()
    results = read_results(made_up)
    assert results.pairs("ours", "ppo") == ([1, 2, 3], [0, 1, 2])
    assert results.pairs("ours", "never") == ([0, 1, 2, 3], [0, 0, 0, 0])
    write_report(made_up, tmp_path / "report", "made up")
    assert "oracle" not in (tmp_path / "report.md").read_text()


# The command


def compare(directory: Path, agents: str, *more: str) -> int:
    steps = 8 * AGENTS["ours"].settings(ENV)["n_steps"]
    numbers = {"seeds": 1, "rows": 8, "episodes": EPISODES, "evaluations": 1, "steps": steps}
    flags = [part for name, number in numbers.items() for part in (f"--{name}", str(number))]
    return cli.main(["compare", "--env", ENV, "--agents", agents, "--out", str(directory), *flags, *more])


def test_the_command_resumes_and_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(tmp_path, "ours") == 0
    ours = tmp_path / "ours_seed0.json"
    before, result = ours.stat(), json.loads(ours.read_text())
    assert result["threads"] == 1
    assert result["episodes"] == carry_out(Plan(**result["plan"]))["episodes"]
    assert compare(tmp_path, "ours,never") == 0
    assert "2 runs, 1 of them finished before" in capsys.readouterr().out
    assert ours.stat() == before
    report = (tmp_path / "report.md").read_text()
    assert all(f"| {agent} |" in report for agent in ("ours", "never"))
    monkeypatch.setattr(processes, "finish", None)  # whatever runs again now, fails
    assert compare(tmp_path, "never,ours") == 0
    assert compare(tmp_path, "ours,ppo", "--report-only") == 0
    assert compare(tmp_path, "ours", "--instances", "validation") == 1
    assert "ours_seed0.json has instances test, not validation" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"--agents": "ours,alphazero"}, "agent is 'alphazero'; allowed: ours, ppo, maskable_ppo"),
        ({"--agents": "ours,ours"}, "allowed: each only once"),
        ({"--agents": 'ours:memory=none,ours:memory="none"'}, "allowed: each only once"),
        ({"--agents": "ours:memry=none"}, "ours:memry=none sets 'memry'; allowed for ours: learning_rate, n_steps"),
        ({"--agents": "ours:memory=rnn"}, "ours:memory=rnn: memory is 'rnn'; allowed: one of ('lstm', 'gru', 'none')"),
        ({"--agents": "ours:n_steps=0"}, "ours:n_steps=0 sets n_steps to 0; allowed: integers from 1 on"),
        ({"--agents": "ppo:decay=3"}, "ppo:decay=3 sets decay to 3; allowed: true, false"),
        ({"--agents": "ppo:net_arch=x:seed=3"}, "sets 'seed'; allowed for ppo: learning_rate"),
        ({"--agents": "ppo:n_minibatches=7"}, "ppo:n_minibatches=7: n_minibatches is 7; allowed: divisors of"),
        ({"--agents": "plateau:patience=often"}, "plateau:patience=often sets patience to 'often'; allowed: numbers"),
        ({"--agents": "plateau:blueprint=99"}, "plateau:blueprint=99: blueprint is 99; allowed: 0 to "),
        ({"--agents": "oracle:table=1"}, "oracle:table=1 sets 'table'; allowed for oracle: no settings"),
        ({"--env": "NoSuchEnv-v0"}, "cannot compare agents in NoSuchEnv-v0"),
        ({"--env": "Esper-CIFAR10-v0"}, "`esper-env data fetch cifar10`"),
        ({"--steps": "10"}, "steps is 10; allowed: at least one rollout"),
        ({"--agents": "never", "--env-set": "horizon=0"}, "horizon is 0; allowed: integers from 1 to 100000"),
        ({"--seeds": "0"}, "seeds is 0; allowed: integers from 1 on"),
        ({"--jobs": "0"}, "jobs is 0; allowed: integers from 1 on"),
    ],
)
def test_an_impossible_comparison_is_one_clear_line(
    change: dict[str, str],
    named: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ESPER_DATA", str(tmp_path / "none"))
    given = {"--env": ENV, "--agents": "ours", "--out": str(tmp_path), **change}
    assert cli.main(["compare", *(part for pair in given.items() for part in pair)]) == 1
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert named in error
    assert list(tmp_path.iterdir()) == []


def test_nothing_to_report_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compare", "--env", ENV, "--agents", "ours", "--out", str(tmp_path), "--report-only"]
    assert cli.main(arguments) == 1
    assert f"{tmp_path} holds no finished runs" in capsys.readouterr().err


@pytest.mark.ledger("N10")
def test_a_missing_package_is_named_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "sb3_contrib", None)
    assert compare(tmp_path, "ours,maskable_ppo") == 1
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert "pip install 'esper-agent[sb3]'" in error
    assert list(tmp_path.iterdir()) == []


# Policies of one's own

OWN = """
class Never:
    def __init__(self, env):
        self.rows = env.num_envs
    def predict(self, observation, state, episode_start, deterministic):
        assert len(observation) == self.rows
        zeros = [0] * self.rows
        return dict.fromkeys(("op", "slot", "blueprint", "blend", "tempo"), zeros), state
nothing = 3
"""


def test_policies_of_ones_own_and_arms_with_settings_stand_beside_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_policies.py").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    agents = ("own_policies:Never", "never", "plateau:patience=5:blueprint=1")
    study = Study(ENV, agents, episodes=EPISODES, env={"horizon": 8})
    run_study(study, tmp_path / "study", 1, lambda _: None)
    results = read_results(tmp_path / "study")
    own, never = (results.final(name, "discounted_return") for name in agents[:2])
    assert np.array_equal(own, never)
    write_report(tmp_path / "study", tmp_path / "report", "test")
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert all(f"| {agent} | - |" in report for agent in agents)
    assert '| plateau:patience=5:blueprint=1 | `{"patience": 5, "blueprint": 1}` |' in report
    files = ("own_policies+Never_seed0.json", "plateau+patience=5+blueprint=1_seed0.json")
    assert all((tmp_path / "study" / file).exists() for file in files)
    for name in ("own_policies:Absent", "no_such_module:Never", "own_policies:nothing"):
        with pytest.raises(RunError, match=f"^agent is '{name}'; allowed: "):
            Study(ENV, (name,))


def test_a_run_that_was_trained_before_stands_beside_the_others(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    agent = {"n_steps": 8, "sequence_length": 8}
    start_run(run, RunConfig(ENV, n_envs=2, total_timesteps=16, env={"horizon": 8}, agent=agent), progress_bar=False)
    name, out = str(run.path), tmp_path / "study"
    study = Study(ENV, (name, "never"), episodes=EPISODES, env={"horizon": 8})
    run_study(study, out, 1, lambda _: None)
    found = read_results(out).final(name, "discounted_return")[0]
    model = load_agent(run.read_config(), run.latest_checkpoint())
    env = make_test_env(ENV, EPISODES, horizon=8)
    np.testing.assert_allclose(found, play(model, env, EVALUATION_SEED).discounted_return, atol=1e-6)
    run.latest_checkpoint().rename(run.checkpoint_file(24))  # as if it had been trained further
    with pytest.raises(RunError, match=r"has settings .*step_"):
        run_study(study, out, 1, lambda _: None)
    with pytest.raises(RunError, match="was trained in Esper-v0; allowed: an agent of Esper-Deep-v0"):
        run_study(replace(study, env_id="Esper-Deep-v0"), tmp_path / "other", 1)
    with pytest.raises(RunError, match="was trained with other observations"):
        run_study(replace(study, env={"horizon": 8, "rent": [0.01, 0.05]}), tmp_path / "other", 1)


def test_evaluate_plays_the_instances_of_the_command() -> None:
    env = make_test_env(ENV, EPISODES, instances="validation", horizon=8)
    never = tuned_baseline("never", ENV, env)
    assert evaluate(never, ENV, EPISODES, horizon=8) == play(never, env, EVALUATION_SEED).means()
