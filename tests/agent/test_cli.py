"""The command line as a user meets it: training, resuming, stopping, evaluating, and its errors."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from esper_agent import cli
from esper_agent.algorithm.checkpoint import load_checkpoint
from esper_agent.runs.directory import RunDirectory
from patience import PATIENCE
from test_checkpoint import assert_same

ENV = "resumable_env:Resumable-v0"
SMALL = ["--n-envs", "4", "--set", "n_steps=16", "--set", "sequence_length=16", "--set", "lstm_size=8"]
ROLLOUT = 64
TIMES = {"time/fps", "time/time_elapsed"}


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "esper_agent", *map(str, arguments)]


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}


def esper(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, env=environment(), timeout=PATIENCE)


def train(directory: Path, rollouts: int, *more: str) -> int:
    return cli.main(
        [
            "train", ENV, "--run-dir", str(directory), "--total-timesteps", str(rollouts * ROLLOUT),
            "--checkpoint-every", str(2 * ROLLOUT), "--no-progress", *SMALL, *more,
        ]
    )  # fmt: skip


def resume(directory: Path) -> int:
    return cli.main(["train", "--run-dir", str(directory), "--resume", "--no-progress", "--trust"])


def untimed(run: RunDirectory) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key not in TIMES} for row in run.metrics()]


def assert_same_run(one: RunDirectory, other: RunDirectory) -> None:
    assert one.latest_checkpoint().name == other.latest_checkpoint().name
    assert_same(load_checkpoint(one.latest_checkpoint()), load_checkpoint(other.latest_checkpoint()))
    assert untimed(one) == untimed(other)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run of nine rollouts that was never interrupted."""
    run = RunDirectory(tmp_path_factory.mktemp("runs") / "straight")
    assert train(run.path, 9) == 0
    return run


def test_a_run_directory_holds_everything(straight: RunDirectory) -> None:
    config = json.loads(straight.config_file.read_text())
    assert (config["env_id"], config["agent"]["lstm_size"], config["versions"]["torch"][:2]) == (ENV, 8, "2.")
    assert [row["time/total_timesteps"] for row in straight.metrics()] == [64 * i for i in range(1, 10)]
    assert [int(path.stem[5:]) for path in straight.checkpoints()] == [384, 512, 576]
    assert list(straight.tensorboard_directory.glob("events.out.tfevents.*"))
    assert straight.picture_file.read_bytes()[:4] == b"\x89PNG"
    assert not list(straight.path.rglob("*.partial"))


def cut_after(straight: RunDirectory, directory: Path, step: int) -> RunDirectory:
    """What a crash some time after a checkpoint would have left of a run."""
    run = RunDirectory(directory)
    run.checkpoint_directory.mkdir(parents=True)
    run.config_file.write_bytes(straight.config_file.read_bytes())
    kept = straight.checkpoint_file(step)
    (run.checkpoint_directory / kept.name).write_bytes(kept.read_bytes())
    lines = straight.metrics_file.read_text().splitlines(keepends=True)
    run.metrics_file.write_text("".join(lines[: step // ROLLOUT + 1]) + '{"train/half a li')
    return run


@pytest.mark.ledger("X13")
@pytest.mark.parametrize("step", [384, 512])
def test_a_crashed_run_resumes_bit_for_bit(straight: RunDirectory, tmp_path: Path, step: int) -> None:
    run = cut_after(straight, tmp_path / "crashed", step)
    (run.checkpoint_directory / ".step_000000000640.ckpt.1.partial").write_bytes(b"half a checkpoint")
    assert resume(run.path) == 0
    assert not list(run.path.rglob("*.partial"))
    assert_same_run(run, straight)


@pytest.mark.ledger("X13")
def test_growing_networks_resume_bit_for_bit(tmp_path: Path) -> None:
    run, crashed = RunDirectory(tmp_path / "straight"), RunDirectory(tmp_path / "crashed")
    sizes = ["--n-envs", "2", "--set", "n_steps=16", "--set", "sequence_length=16", "--set", "n_minibatches=2"]
    steps = ["--total-timesteps", "96", "--checkpoint-every", "32", "--no-progress"]
    assert cli.main(["train", "Esper-v0", "--run-dir", str(run.path), *sizes, *steps]) == 0
    crashed.checkpoint_directory.mkdir(parents=True)
    shutil.copy(run.config_file, crashed.config_file)
    shutil.copy(run.checkpoint_file(32), crashed.checkpoint_file(32))
    shutil.copy(run.metrics_file, crashed.metrics_file)
    assert resume(crashed.path) == 0
    assert_same_run(crashed, run)


@pytest.mark.ledger("X13")
def test_a_run_that_died_before_its_first_checkpoint_starts_again(straight: RunDirectory, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "early")
    run.checkpoint_directory.mkdir(parents=True)
    run.config_file.write_bytes(straight.config_file.read_bytes())
    assert resume(run.path) == 0
    assert_same_run(run, straight)


def wait_for(condition: Any, seconds: float = PATIENCE) -> None:
    for _ in range(int(seconds * 100)):
        if condition():
            return
        time.sleep(0.01)
    raise TimeoutError


def start(directory: Path, rollouts: int) -> subprocess.Popen[str]:
    arguments = command(
        "train", ENV, "--run-dir", directory, "--total-timesteps", rollouts * ROLLOUT,
        "--checkpoint-every", 2 * ROLLOUT, "--no-progress", *SMALL,
    )  # fmt: skip
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())


@pytest.mark.ledger("X13")
def test_a_killed_run_resumes_bit_for_bit(straight: RunDirectory, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "killed")
    process = start(run.path, 100_000)
    wait_for(lambda: len(run.metrics()) >= 5)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    shorter = json.loads(run.config_file.read_text()) | {"total_timesteps": 9 * ROLLOUT}
    if len(run.metrics()) >= 9:  # the machine was too fast: go back to before the end
        for late in [path for path in run.checkpoints() if int(path.stem[5:]) >= 9 * ROLLOUT]:
            late.unlink()
    run.config_file.write_text(json.dumps(shorter))
    assert resume(run.path) == 0
    assert_same_run(run, straight)


@pytest.mark.ledger("X13")
def test_ctrl_c_saves_says_where_and_the_run_continues_exactly(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "stopped")
    process = start(run.path, 100_000)
    wait_for(lambda: len(run.metrics()) >= 3)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert str(run.latest_checkpoint()) in output
    assert "Traceback" not in errors
    assert run.picture_file.exists()
    stopped = load_checkpoint(run.latest_checkpoint())
    assert stopped["counters"]["env_steps"] == run.metrics()[-1]["time/total_timesteps"]

    total = stopped["counters"]["env_steps"] + 2 * ROLLOUT
    run.config_file.write_text(json.dumps(json.loads(run.config_file.read_text()) | {"total_timesteps": total}))
    assert resume(run.path) == 0
    never_stopped = RunDirectory(tmp_path / "never")
    assert train(never_stopped.path, total // ROLLOUT) == 0
    assert untimed(run) == untimed(never_stopped)


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "stopped")
    process = start(run.path, 100_000)
    wait_for(lambda: len(run.metrics()) >= 3)
    process.send_signal(signal.SIGSTOP)  # both arrive before the process can finish its update
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "Traceback" not in errors
    load_checkpoint(run.latest_checkpoint())


def test_evaluate_reports_whole_episodes(straight: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (straight.path, straight.checkpoints()[0]):
        assert cli.main(["evaluate", str(path), "--episodes", "20", "--json", "--trust"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert (result["episodes"], result["instances"], result["env_id"]) == (20, None, ENV)
        assert result["agent"]["length"] == 7.0
        assert 0 <= result["agent"]["discounted_return"] <= result["agent"]["episode_return"] <= 6
    cli.main(["evaluate", str(straight.path), "--episodes", "20", "--json", "--trust"])
    again = json.loads(capsys.readouterr().out)
    cli.main(["evaluate", str(straight.path), "--episodes", "20", "--trust"])
    assert f"discounted return {again['agent']['discounted_return']:.3f}" in capsys.readouterr().out


@pytest.mark.ledger("Y12")
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["train", ENV], "--run-dir"),
        (["train", "--run-dir", "x"], "name an environment, such as Esper-v0"),
        (["train", ENV, "--run-dir", "x", "--seeds", "1"], "--seeds"),
        (["train", ENV, "--run-dir", "x", "--n-envs", "many"], "--n-envs"),
        (["train", ENV, "--run-dir", "x", "--set", "lstm_sise=8"], "lstm_sise"),
        (["train", ENV, "--run-dir", "x", "--set", "lstm_size"], "NAME=VALUE"),
        (["train", "--run-dir", "x", "--resume", "--seed", "3"], "leave out --seed"),
        (["evaluate", "x", "--episodes", "0"], "--episodes"),
        (["evaluate", "x", "--seed", "-5"], "--seed"),
        (["evaluate", "x", "--instances", "train"], "--instances"),
        (["fly"], "fly"),
        ([], "train"),
    ],
)
def test_a_wrong_flag_is_one_clear_line(
    arguments: list[str],
    named: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    error = capsys.readouterr().err
    assert left.value.code == 2
    assert len(error.splitlines()) == 1
    assert named in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.ledger("Y12")
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["train", "NoSuchEnv-v0", "--run-dir", "x"], "NoSuchEnv"),
        (["train", "no_such_module:Env-v0", "--run-dir", "x"], "no_such_module"),
        (["train", "Pendulum-v1", "--run-dir", "x"], "Pendulum"),
        (["train", "Esper-CIFAR10-v0", "--run-dir", "x"], "`esper-env data fetch cifar10`"),
        (["train", ENV, "--run-dir", "x", "--n-envs", "0"], "n_envs is 0"),
        (["train", ENV, "--run-dir", "x", "--set", "gae_lambda=2"], "gae_lambda is 2"),
        (["train", ENV, "--run-dir", "x", "--set", "detectors=5"], "detectors is 5"),
        (["train", ENV, "--run-dir", "x", "--seed", "-5"], "seed is -5"),
        (["train", "--run-dir", "x", "--resume"], "holds no run"),
        (["evaluate", "x"], "holds no run"),
        (["upgrade", "x"], "does not exist"),
    ],
)
def test_an_impossible_request_is_one_clear_line_and_leaves_nothing(
    arguments: list[str],
    named: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ESPER_DATA", str(tmp_path / "none"))
    assert cli.main(arguments) == 1
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert named in error
    assert list(tmp_path.iterdir()) == []


def test_a_directory_in_use_is_not_overwritten(straight: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    before = straight.config_file.read_bytes()
    assert train(straight.path, 1) == 1
    assert "--resume" in capsys.readouterr().err
    assert straight.config_file.read_bytes() == before


def test_a_damaged_checkpoint_is_one_clear_line(
    straight: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = cut_after(straight, tmp_path / "damaged", 384)
    whole = run.latest_checkpoint().read_bytes()
    run.latest_checkpoint().write_bytes(whole[: len(whole) // 2])
    assert resume(run.path) == 1
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert "damaged" in error


def test_upgrade_leaves_a_current_checkpoint_as_it_is(
    straight: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    before = straight.latest_checkpoint().read_bytes()
    assert cli.main(["upgrade", str(straight.latest_checkpoint())]) == 0
    assert "is current" in capsys.readouterr().out
    assert straight.latest_checkpoint().read_bytes() == before


def test_python_m_is_the_same_command() -> None:
    result = esper("--help")
    assert result.returncode == 0
    assert all(word in result.stdout for word in ("train", "evaluate", "upgrade"))
