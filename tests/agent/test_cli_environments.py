"""The command line and the environment: its settings, which instances are played, and beside whom."""

import dataclasses
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from esper_agent import cli
from esper_agent.algorithm.checkpoint import load_checkpoint
from esper_agent.baselines.scripted import NeverGrow
from esper_agent.comparison.run import EVALUATION_SEED
from esper_agent.config import FIELD_NAMES, PPOConfig
from esper_agent.evaluation.paired import make_test_env, play
from esper_agent.runs.directory import RunConfig, RunDirectory, RunError
from esper_agent.runs.settings import MANAGED
from esper_agent.runs.training import build_model, load_agent
from esper_env.config import EsperConfig
from test_checkpoint import assert_same

ENV = "Esper-v0"
HORIZON = 16  # the oracle needs time for its plantings
SMALL = ["--n-envs", "2", "--no-progress", "--set", "n_steps=16", "--set", "sequence_length=16"]
SMALL += ["--set", "n_minibatches=1", "--set", "lstm_size=8", "--env-set", f"horizon={HORIZON}", "rent=0.1"]
ROLLOUT = 32


def train(directory: Path, *more: str, rollouts: int = 4) -> RunDirectory:
    steps = ["--total-timesteps", str(rollouts * ROLLOUT), "--checkpoint-every", str(ROLLOUT)]
    assert cli.main(["train", ENV, "--run-dir", str(directory), *SMALL, *steps, *more]) == 0
    return RunDirectory(directory)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A short run that was evaluated on the way."""
    return train(tmp_path_factory.mktemp("runs") / "run", "--eval-every", str(ROLLOUT), "--threads", "1")


def evaluate(run: RunDirectory, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    capsys.readouterr()
    assert cli.main(["evaluate", str(run.path), "--episodes", "4", "--json", *more]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_settings_of_the_environment_are_written_down_and_used(run: RunDirectory) -> None:
    config = run.read_config()
    assert config.env == {"horizon": HORIZON, "rent": 0.1}
    settings = load_checkpoint(run.latest_checkpoint())["env"]["simulation"]["settings"]
    assert (settings["horizon"], settings["rent"], settings["instances"]) == (HORIZON, 0.1, "train")
    assert {row["rollout/ep_len_mean"] for row in run.metrics()} == {HORIZON}


@pytest.mark.ledger("Y35")
@pytest.mark.parametrize(("more", "instances"), [([], "validation"), (["--instances", "test"], "test")])
def test_evaluate_plays_instances_that_no_training_saw_beside_the_references(
    run: RunDirectory, capsys: pytest.CaptureFixture[str], more: list[str], instances: str
) -> None:
    result = evaluate(run, capsys, *more)
    assert (result["instances"], result["episodes"]) == (instances, 4)
    env = make_test_env(ENV, 4, **run.read_config().env, instances=instances)
    agent = load_agent(run.read_config(), run.latest_checkpoint())
    # The same episodes and the same measures as in a comparison.
    for name, policy in (("agent", agent), ("never", NeverGrow(env))):
        played = play(policy, env, EVALUATION_SEED).means()
        assert result[name] == pytest.approx(played, rel=1e-6)
    assert {"discounted_return", "test_accuracy", "added_parameters"} <= set(result["oracle"])
    assert cli.main(["evaluate", str(run.path), "--episodes", "4", *more]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"4 {instances} instances" in lines[0]
    assert [line.split()[0] for line in lines[2:]] == ["agent", "never", "oracle"]
    assert f"{result['agent']['discounted_return']:.3f}" in lines[2].split()


def test_evaluate_changes_the_environment_on_request(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    cheap, costly = (
        evaluate(run, capsys, "--env-set", f"rent={rent}", "reward=sparse", "--device", "cpu") for rent in (0, 50)
    )
    assert costly["oracle"]["discounted_return"] < cheap["oracle"]["discounted_return"] - 0.1
    assert costly["never"]["discounted_return"] == pytest.approx(cheap["never"]["discounted_return"])


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("horizon=many", "horizon is 'many'; allowed: integers from 1"),
        ("horizont=3", "argument 'horizont'"),
        ("reward=golden", "reward"),
        ("op_costs=[1,2]", "op_costs is (1, 2); allowed: 5 numbers"),
    ],
)
def test_a_wrong_setting_of_the_environment_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], setting: str, named: str
) -> None:
    assert cli.main(["train", ENV, "--run-dir", str(tmp_path / "run"), "--env-set", setting]) == 1
    compared = ["compare", "--env", ENV, "--agents", "never", "--out", str(tmp_path / "out"), "--env-set", setting]
    assert cli.main(compared) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all(named in line for line in lines)


@pytest.mark.parametrize(
    ("setting", "named"), [("horizon", "NAME=VALUE"), ("device=cuda", "device"), ("task=x", "task")]
)
def test_what_is_no_setting_of_the_environment_alone_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], setting: str, named: str
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["train", ENV, "--run-dir", str(tmp_path / "run"), "--env-set", setting])
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert named in error


def test_compare_takes_settings_of_the_environment(tmp_path: Path) -> None:
    returns = []
    for rent in (0, 50):
        out = tmp_path / str(rent)
        terms = ["--episodes", "4", "--env-set", f"rent={rent}", "reward=sparse", f"horizon={HORIZON}"]
        assert cli.main(["compare", "--env", ENV, "--agents", "never,oracle", "--out", str(out), *terms]) == 0
        result = json.loads((out / "oracle_seed0.json").read_text())
        assert result["plan"]["env"] == {"rent": rent, "reward": "sparse", "horizon": HORIZON}
        returns.append(np.mean(result["episodes"]["discounted_return"]))
    assert returns[1] < returns[0] - 0.1


def test_the_best_agent_on_validation_instances_is_kept(run: RunDirectory) -> None:
    key = "eval/discounted_return"
    evaluated = {row["time/total_timesteps"]: row[key] for row in run.metrics() if row.get(key) is not None}
    assert list(evaluated) == [2 * ROLLOUT, 3 * ROLLOUT, 4 * ROLLOUT]  # each in the row of the update after it
    best = load_checkpoint(run.path / "best_model.ckpt")["counters"]["env_steps"]
    config = run.read_config()
    env = make_test_env(ENV, 64, **config.env, instances="validation")
    played = play(load_agent(config, run.path / "best_model.ckpt"), env, 10_000).means()
    assert played["discounted_return"] == pytest.approx(max(played["discounted_return"], *evaluated.values()), rel=1e-6)
    assert best in {ROLLOUT, 2 * ROLLOUT, 3 * ROLLOUT, 4 * ROLLOUT}


def test_a_run_that_is_evaluated_resumes_bit_for_bit(run: RunDirectory, tmp_path: Path) -> None:
    again = RunDirectory(tmp_path / "again")
    again.checkpoint_directory.mkdir(parents=True)
    again.config_file.write_bytes(run.config_file.read_bytes())
    again.metrics_file.write_bytes(run.metrics_file.read_bytes())
    first = run.checkpoints()[0]
    (again.checkpoint_directory / first.name).write_bytes(first.read_bytes())
    assert cli.main(["train", "--run-dir", str(again.path), "--resume", "--no-progress", "--threads", "1"]) == 0
    for name in ("eval/discounted_return", "eval/test_accuracy", "rollout/ep_rew_mean"):
        assert [row.get(name) for row in again.metrics()] == [row.get(name) for row in run.metrics()]
    assert_same(load_checkpoint(again.latest_checkpoint()), load_checkpoint(run.latest_checkpoint()))


def test_threads_are_torchs_own_again_after_a_command(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    before = torch.get_num_threads()
    assert run.read_config().threads == 1
    evaluate(run, capsys, "--threads", "2")
    assert torch.get_num_threads() == before


JUNK: list[Any] = [5, -1, "x", "", [], [1, "a"], {}, {"schedule": "linear"}, {"a": {"b": 1}}, None, 1e999, True]


@pytest.mark.ledger("Y12")
@pytest.mark.parametrize("name", FIELD_NAMES)
def test_no_setting_of_the_agent_gives_a_traceback(name: str) -> None:
    for value in JUNK:
        agent = {"n_steps": 8, "sequence_length": 8, "n_minibatches": 1, "compile": False, name: value}
        config = RunConfig("CartPole-v1", n_envs=1, agent=agent)
        with suppress(RunError):  # which the command prints as one line
            build_model(config)


@pytest.mark.parametrize("name", ["train", "evaluate", "compare", "record", "imitate"])
def test_help_lists_what_may_be_set_with_defaults(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main([name, "--help"])
    told = capsys.readouterr().out
    lists = {"--set NAME": dataclasses.fields(PPOConfig), "--env-set NAME": dataclasses.fields(EsperConfig)}
    for flag, fields in lists.items():
        for field in fields:
            default = "" if field.default in (dataclasses.MISSING, True) else re.escape(str(field.default))
            listed = re.search(rf"^  {field.name} \(.?{default}.*", told, flags=re.MULTILINE)
            assert bool(listed) == (flag in told and field.name not in MANAGED), field.name
