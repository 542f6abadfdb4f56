"""A run survives what happens to runs: signals, a second writer, damaged files, foreign settings."""

import json
import os
import pty
import signal
import subprocess
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest
from esper_agent import cli
from esper_agent.runs.directory import RunDirectory
from esper_agent.runs.training import CheckpointRun
from patience import PATIENCE
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_cli import (
    ENV,
    ROLLOUT,
    SMALL,
    assert_same_run,
    command,
    cut_after,
    environment,
    resume,
    train,
    wait_for,
)

BAD_LINES = [b"not json", b'{"rollout/ep_rew_mean": 1.0}', b"[1, 2]", b"\xff\xfe\xfa", b"[" * 100_000, b""]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Nine rollouts that were never interrupted."""
    run = RunDirectory(tmp_path_factory.mktemp("runs") / "straight", trusted=True)
    assert train(run.path, 9) == 0
    return run


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1, error
    return error


def signal_after(monkeypatch: pytest.MonkeyPatch, rollouts: int, *numbers: int) -> None:
    """Send signals to this process in the middle of a rollout."""

    def step(callback: CheckpointRun) -> bool:
        if callback.num_timesteps == rollouts * ROLLOUT + ROLLOUT // 2:
            for number in numbers:
                os.kill(os.getpid(), number)
        return True

    monkeypatch.setattr(CheckpointRun, "_on_step", step)


@pytest.mark.ledger("Y3")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_and_the_run_continues_bit_for_bit(
    straight: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    run = RunDirectory(tmp_path / "run", trusted=True)
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with monkeypatch.context() as patched:
        signal_after(patched, 4, number)
        assert train(run.path, 9) == 128 + number
    assert run.latest_checkpoint() == run.checkpoint_file(5 * ROLLOUT)
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == handlers
    assert resume(run.path) == 0
    assert_same_run(run, straight)


@pytest.mark.ledger("Y3")
def test_a_cluster_may_repeat_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDirectory(tmp_path / "run")
    signal_after(monkeypatch, 1, signal.SIGTERM, signal.SIGTERM, signal.SIGHUP)
    assert train(run.path, 9) == 128 + signal.SIGTERM
    assert run.latest_checkpoint() == run.checkpoint_file(2 * ROLLOUT)


@pytest.mark.ledger("Y3")
def test_a_run_survives_its_terminal(tmp_path: Path) -> None:
    run, (master, slave) = RunDirectory(tmp_path / "run"), pty.openpty()
    arguments = ["train", ENV, "--run-dir", run.path, "--total-timesteps", 10**6, *SMALL]
    process = subprocess.Popen(
        command(*arguments), stdin=slave, stdout=slave, stderr=slave, env=environment(), start_new_session=True,
        preexec_fn=lambda: ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(slave)
    os.set_blocking(master, False)

    def trained() -> bool:
        try:
            while os.read(master, 1 << 16):  # or the terminal fills up
                pass
        except BlockingIOError:
            pass
        return len(run.metrics()) >= 2

    wait_for(trained)
    os.close(master)
    assert process.wait(timeout=PATIENCE) == 128 + signal.SIGHUP
    assert run.latest_checkpoint() == run.checkpoint_file(run.metrics()[-1]["time/total_timesteps"])


@pytest.mark.ledger("Y3")
def test_ctrl_c_before_there_is_a_run_promises_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("esper_agent.runs.training.build_model", stopped)
    assert train(tmp_path / "run", 1) == 130
    assert capsys.readouterr().out.strip() == "stopped at once"
    assert list(tmp_path.iterdir()) == []


INTERRUPT_AT_IMPORT = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.ledger("Y3", "Y12")
def test_ctrl_c_during_the_imports_leaves_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPT_AT_IMPORT)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    process = subprocess.run(
        command("train", ENV, "--run-dir", tmp_path / "run"),
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (process.returncode, process.stdout, process.stderr) == (-signal.SIGINT, "", "")


@contextmanager
def another_writer(run: RunDirectory) -> Iterator[int]:
    """A living process that holds the lock of a run."""
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        with run.locked():
            os.write(there, b"locked")
            signal.pause()
    try:
        assert os.read(here, 6) == b"locked"
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.ledger("Y4")
def test_a_run_has_one_writer_and_a_dead_ones_lock_is_taken_over(
    straight: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = cut_after(straight, tmp_path / "run", 384)
    with another_writer(run) as pid:
        before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
        assert resume(run.path) == 1
        assert f"process {pid} writes to it" in one_line(capsys)
        assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before
    assert resume(run.path) == 0
    assert run.lock_file.read_text() == str(os.getpid())
    assert_same_run(run, straight)


@pytest.mark.ledger("Y4")
def test_of_two_simultaneous_starts_the_second_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, write_config = RunDirectory(tmp_path / "run", trusted=True), RunDirectory.write_config
    seconds: list[int] = []

    def begin_another(self: RunDirectory, config: Any) -> None:
        if not seconds:  # the first has the directory, but nothing is in it yet
            seconds.append(-1)
            seconds[0] = train(run.path, 2)
        write_config(self, config)

    monkeypatch.setattr(RunDirectory, "write_config", begin_another)
    assert train(run.path, 1) == 0
    assert seconds == [1]
    assert f"process {os.getpid()} writes to it" in one_line(capsys)
    assert run.read_config().total_timesteps == ROLLOUT


@pytest.mark.ledger("Y4")
def test_a_start_that_was_overtaken_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, locked = RunDirectory(tmp_path / "run", trusted=True), RunDirectory.locked
    others: list[int] = []

    def overtaken(self: RunDirectory) -> Any:
        if not others:  # the first has seen an empty directory, and holds no lock yet
            others.append(-1)
            others[0] = train(run.path, 2)
        return locked(self)

    monkeypatch.setattr(RunDirectory, "locked", overtaken)
    assert train(run.path, 1) == 1
    assert others == [0]
    assert "not an empty directory" in one_line(capsys)
    assert run.read_config().total_timesteps == 2 * ROLLOUT


def damage_metrics(run: RunDirectory) -> None:
    first, *rest = run.metrics_file.read_bytes().splitlines(keepends=True)
    run.metrics_file.write_bytes(first + b"\n".join(BAD_LINES) + b"\n" + b"".join(rest))


@pytest.mark.ledger("Y7")
def test_lines_that_cannot_be_read_are_counted_and_stop_nothing(
    straight: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = cut_after(straight, tmp_path / "run", 384)
    damage_metrics(run)
    out = tmp_path / "page.html"
    assert cli.main(["report", str(run.path), "--out", str(out), "--episodes", "1", "--trust"]) == 0
    assert f"cannot be read and are left out: {len(BAD_LINES)}" in capsys.readouterr().out
    assert out.exists()
    assert resume(run.path) == 0
    assert f"cannot be read and are left out: {len(BAD_LINES)}" in capsys.readouterr().out
    assert_same_run(run, straight)
    assert run.unreadable_metrics() is None


@pytest.mark.ledger("Y8")
def test_a_damaged_newest_checkpoint_names_an_older_good_one(
    straight: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = cut_after(straight, tmp_path / "run", 576)
    for step in (384, 512):
        run.checkpoint_file(step).write_bytes(straight.checkpoint_file(step).read_bytes())
    for damaged in (run.checkpoint_file(576), run.checkpoint_file(512)):
        damaged.write_bytes(damaged.read_bytes()[:-2000])
    assert resume(run.path) == 1
    error = one_line(capsys)
    assert f"{run.checkpoint_file(576)} is damaged" in error
    assert f"move it away to go on from {run.checkpoint_file(384)}" in error
    for damaged in (run.checkpoint_file(576), run.checkpoint_file(512)):
        damaged.unlink()
    assert resume(run.path) == 0
    assert_same_run(run, straight)


@pytest.mark.ledger("Y2")
def test_a_run_whose_weights_are_gone_stops_and_keeps_its_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory(tmp_path / "run", trusted=True)

    def poison(callback: CheckpointRun) -> bool:
        if callback.num_timesteps == 3 * ROLLOUT:
            next(callback.model.policy.parameters()).data.fill_(float("nan"))
        return True

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointRun, "_on_step", poison)
        assert train(run.path, 9) != 0
    alarm, error = capsys.readouterr().err.splitlines()
    assert "critical: nonfinite" in alarm
    assert "not finite; nothing was written" in error
    assert run.latest_checkpoint() == run.checkpoint_file(2 * ROLLOUT)
    assert resume(run.path) == 0


@pytest.mark.ledger("Y14")
@pytest.mark.parametrize("arguments", [["train", "--resume", "--run-dir"], ["evaluate"], ["report"]])
def test_a_foreign_run_imports_nothing_without_trust(
    straight: RunDirectory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
) -> None:
    witness, module = tmp_path / "witness", f"foreign_{arguments[0]}"
    (tmp_path / f"{module}.py").write_text(f"open({str(witness)!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    run = cut_after(straight, tmp_path / "run", 384)
    settings = json.loads(run.config_file.read_text()) | {"env_id": f"{module}:Env-v0"}
    run.config_file.write_text(json.dumps(settings))
    assert cli.main([*arguments, str(run.path)]) == 1
    assert f"names the module {module!r}, whose code would run" in one_line(capsys)
    assert not witness.exists()
    cli.main([*arguments, str(run.path), "--trust"])
    assert witness.exists()


@pytest.mark.ledger("Y12")
@pytest.mark.parametrize("content", [b"[]", b"5", b"\xff", b"[" * 100_000, b'{"versions": {}, "env_id": 5}', b"{}"])
def test_settings_that_are_none_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    (tmp_path / "config.json").write_bytes(content)
    assert cli.main(["evaluate", str(tmp_path)]) == 1
    one_line(capsys)


def test_tensorboard_shows_every_step_once_after_a_crash(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run", trusted=True)
    assert train(run.path, 9) == 0
    for late in run.checkpoints()[1:]:
        late.unlink()
    assert resume(run.path) == 0
    events = EventAccumulator(str(run.tensorboard_directory)).Reload()
    for key in ("time/fps", "train/approx_kl"):
        assert [event.step for event in events.Scalars(key)] == [ROLLOUT * i for i in range(1, 10)]
