"""Training that is killed, again and again and at the worst moments, ends with the weights of training that was not."""

import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from esper_agent import cli
from esper_agent.runs.directory import RunDirectory
from mortal_commands import End, Fate, Mortals
from test_cli import ENV, ROLLOUT, SMALL, assert_same_run

TOY = [
    "train", ENV, "--total-timesteps", str(9 * ROLLOUT), "--checkpoint-every", str(2 * ROLLOUT), "--no-progress",
    *SMALL,
]  # fmt: skip
GROWTH = [
    "train", "Esper-v0", "--n-envs", "2", "--total-timesteps", "128", "--checkpoint-every", "32", "--no-progress",
    "--set", "n_steps=16", "--set", "sequence_length=16", "--set", "n_minibatches=2",
]  # fmt: skip


@pytest.fixture(scope="module")
def mortals() -> Iterator[Mortals]:
    process = Mortals()
    yield process
    process.close()


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Nine rollouts that were never interrupted."""
    run = RunDirectory(tmp_path_factory.mktemp("runs") / "straight")
    assert cli.main([*TOY, "--run-dir", str(run.path)]) == 0
    return run


def live(mortals: Mortals, run: RunDirectory, arguments: list[str], fate: Fate | None = None) -> End:
    """Train for the length of a life: from the start if there is nothing to resume."""
    begin = ["train", "--resume", "--trust", "--no-progress"] if run.config_file.exists() else arguments
    return mortals.run(run.path, *begin, "--run-dir", run.path, fate=fate)


def live_through(mortals: Mortals, run: RunDirectory, arguments: list[str], fates: list[Fate]) -> int:
    """Train through all these fates and then to the end; how many were deadly."""
    ends = [live(mortals, run, arguments, fate) for fate in [*fates, Fate()]]
    assert all(end.killed or (end.code, end.error) == (0, "") for end in ends)
    return sum(end.killed for end in ends)


@pytest.mark.ledger("X13")
def test_training_killed_before_any_file_operation_ends_as_if_it_had_not_been(
    mortals: Mortals, straight: RunDirectory, tmp_path: Path
) -> None:
    run, generator = RunDirectory(tmp_path / "run"), random.Random(0)
    operations = [*range(1, 9), *(generator.randint(9, 30) for _ in range(8))]  # from the first on, then anywhere
    deaths = live_through(mortals, run, TOY, [Fate(operation=number) for number in operations])
    assert deaths >= 12
    assert_same_run(run, straight)


@pytest.mark.ledger("X13")
def test_growth_killed_at_random_times_ends_as_if_it_had_not_been(mortals: Mortals, tmp_path: Path) -> None:
    run, untouched, generator = RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "untouched"), random.Random(0)
    assert live(mortals, untouched, GROWTH).code == 0
    # Lives grow until one is long enough: how busy the machine is decides how many die, not whether any does.
    seconds, deaths = 0.05, 0
    while (end := live(mortals, run, GROWTH, Fate(seconds=seconds))).killed:
        seconds, deaths = seconds * generator.uniform(1.1, 1.9), deaths + 1
    assert deaths > 0
    assert end == End(0, "")
    assert_same_run(run, untouched)


def assert_one_line(end: End, *named: str) -> None:
    assert end.code == 1
    assert len(end.error.splitlines()) == 1, end.error
    assert all(word in end.error for word in named), end.error


def half_done(mortals: Mortals, run: RunDirectory) -> tuple[Path, bytes]:
    """Train up to a checkpoint and die; the newest checkpoint and what is in it."""
    assert live(mortals, run, TOY, Fate(operation=22)).killed
    checkpoint = run.latest_checkpoint()
    return checkpoint, checkpoint.read_bytes()


@pytest.mark.ledger("X13")
@pytest.mark.parametrize("room", [0.01, 0.99])
def test_a_full_disk_is_one_error_and_the_previous_checkpoint_goes_on(
    mortals: Mortals, straight: RunDirectory, tmp_path: Path, room: float
) -> None:
    run = RunDirectory(tmp_path / "run")
    checkpoint, content = half_done(mortals, run)
    end = live(mortals, run, TOY, Fate(file_limit=int(room * len(content))))
    assert_one_line(end, "cannot write", "unchanged")
    assert run.latest_checkpoint() == checkpoint
    assert checkpoint.read_bytes() == content
    assert live(mortals, run, TOY) == End(0, "")
    assert_same_run(run, straight)


@pytest.fixture
def public_directory() -> Iterator[Path]:
    """A directory that other users can reach, since no permission stops root."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.mark.ledger("X13")
def test_a_read_only_directory_is_one_error_and_the_previous_checkpoint_stays(
    mortals: Mortals, public_directory: Path
) -> None:
    run = RunDirectory(public_directory / "run")
    checkpoint, content = half_done(mortals, run)
    for directory in (run.checkpoint_directory, run.path, public_directory):
        directory.chmod(0o555)
    nobody = Fate(unprivileged=True)
    assert_one_line(live(mortals, run, TOY, nobody), "cannot write", str(run.path), "Permission denied", "unchanged")
    assert_one_line(live(mortals, RunDirectory(public_directory / "new"), TOY, nobody), "cannot write", "new")
    assert checkpoint.read_bytes() == content
    assert sorted(public_directory.iterdir()) == [run.path]
