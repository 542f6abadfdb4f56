"""Training on several ranks is that of one process with all environments, and it ends well when a rank dies."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import ranked_envs
import torch
from esper_agent import FactoredRecurrentPPO, cli
from esper_agent.algorithm.checkpoint import load_checkpoint
from esper_agent.algorithm.environments import make_vector_env
from esper_agent.algorithm.loss import Counts, Loss, ppo_loss
from esper_agent.distributed import Ranks
from esper_agent.runs.directory import RunDirectory
from gymnasium.vector import AutoresetMode
from mortal_commands import End, Mortals
from patience import PATIENCE
from test_cli import ENV, ROLLOUT, SMALL, TIMES, assert_same_run, environment, resume, untimed, wait_for
from torch.distributed import TCPStore
from toy_envs import MaskedHeads

RANKS = 2
ROLLOUTS = 5
SETTINGS = [
    *SMALL,
    "--set",
    "n_minibatches=2",
    "--checkpoint-every",
    str(ROLLOUT),
    "--keep-checkpoints",
    "9",
    "--no-progress",
]
TRAIN = ["train", ENV, "--total-timesteps", str(ROLLOUTS * ROLLOUT), *SETTINGS]
ONE_MINIBATCH = ["--n-envs", "4", "--set", "n_minibatches=1", "--no-progress"]


class Job:
    """Two ranks as torchrun starts them, in processes that have imported everything before."""

    def __init__(self) -> None:
        self.processes = [Mortals() for _ in range(RANKS)]

    def run(self, directory: Path, *arguments: object) -> list[End]:
        """Run a command on all ranks and see it end."""
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        common = {
            "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port),
            "TORCHELASTIC_RUN_ID": "test", "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0",
        }  # fmt: skip

        def live(rank: int) -> End:
            variables = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            return self.processes[rank].run(directory, *arguments, "--run-dir", directory, variables=variables)

        with ThreadPoolExecutor(RANKS) as pool:
            return list(pool.map(live, range(RANKS)))

    def close(self) -> None:
        """End the processes."""
        for process in self.processes:
            process.close()


@pytest.fixture(scope="module")
def job() -> Iterator[Job]:
    ranks = Job()
    yield ranks
    ranks.close()


@pytest.fixture(scope="module")
def straight(job: Job, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Five rollouts on two ranks that were never interrupted."""
    run = RunDirectory(tmp_path_factory.mktemp("runs") / "straight")
    assert job.run(run.path, *TRAIN) == [End(0, "")] * RANKS
    return run


def torchrun(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    command += ["-m", "esper_agent", *map(str, arguments)]
    paths = os.pathsep.join(filter(None, [environment()["PYTHONPATH"], os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment() | {"PYTHONPATH": paths}
    )


def assert_same_update(one: RunDirectory, other: RunDirectory) -> None:
    """All that was learnt and measured in the first update is the same up to rounding."""
    (ours,), (theirs,) = one.metrics(), other.metrics()
    assert set(ours) == set(theirs)
    numbers = set(ours) - TIMES - {"diagnostics/events"}
    assert {key: ours[key] for key in numbers} == pytest.approx({key: theirs[key] for key in numbers}, abs=1e-5)
    states = [load_checkpoint(run.latest_checkpoint()) for run in (one, other)]
    assert states[0]["counters"] == states[1]["counters"]
    assert torch.equal(*(state["generators"]["actions"] for state in states))
    for name, value in states[0]["policy"].items():
        torch.testing.assert_close(value, states[1]["policy"][name], rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.slow
def test_two_ranks_learn_from_growing_networks_what_one_process_with_all_of_them_does(tmp_path: Path) -> None:
    run, alone = RunDirectory(tmp_path / "ranks"), RunDirectory(tmp_path / "alone")
    sizes = ["--total-timesteps", "120", "--set", "n_steps=30", "--set", "sequence_length=30"]
    train = ["train", "Esper-v0", *ONE_MINIBATCH, *sizes]
    process = torchrun(*train, "--run-dir", run.path)
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    assert output.count("finished") == 1
    assert cli.main([*train, "--run-dir", str(alone.path)]) == 0
    assert_same_update(run, alone)


@pytest.mark.slow
@pytest.mark.parametrize("target_kl", [1.0, 1e-5])
def test_ranks_with_different_numbers_of_decisions_take_the_steps_of_one_process(
    job: Job, tmp_path: Path, target_kl: float
) -> None:
    run, alone = RunDirectory(tmp_path / "ranks"), RunDirectory(tmp_path / "alone")
    sizes = ["--total-timesteps", "256", "--set", "n_steps=64", "--set", "sequence_length=16"]
    train = ["train", ranked_envs.ENV, *ONE_MINIBATCH, *sizes, "--set", f"target_kl={target_kl}"]
    assert job.run(run.path, *train) == [End(0, "")] * RANKS
    assert cli.main([*train, "--run-dir", str(alone.path)]) == 0
    assert_same_update(run, alone)
    assert run.metrics()[0]["train/stopped_early"] == (target_kl < 1)
    state = load_checkpoint(run.latest_checkpoint())
    lengths = [part["collector"]["lengths"] for part in (state, *state["other_ranks"])]
    assert torch.equal(torch.cat(lengths), load_checkpoint(alone.latest_checkpoint())["collector"]["lengths"])


def cut_after(straight: RunDirectory, directory: Path, step: int) -> RunDirectory:
    """What a job that died after a checkpoint leaves."""
    run = RunDirectory(directory)
    shutil.copytree(straight.path, run.path)
    for late in run.checkpoints():
        if int(late.stem[5:]) > step:
            late.unlink()
    return run


@pytest.mark.slow
def test_ranks_resume_bit_for_bit(job: Job, straight: RunDirectory, tmp_path: Path) -> None:
    run = cut_after(straight, tmp_path / "cut", 2 * ROLLOUT)
    assert job.run(run.path, "train", "--resume", "--trust", "--no-progress") == [End(0, "")] * RANKS
    assert_same_run(run, straight)
    state = load_checkpoint(run.latest_checkpoint())
    (other,) = state["other_ranks"]
    assert other["env"]["generator"] != state["env"]["generator"]


@pytest.mark.slow
def test_another_number_of_ranks_goes_on_with_a_note(
    straight: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = cut_after(straight, tmp_path / "cut", 2 * ROLLOUT)
    assert resume(run.path) == 0
    assert "ranks of the checkpoint: 2, of this run: 1; " in capsys.readouterr().out
    assert untimed(run)[:2] == untimed(straight)[:2]
    assert [row["time/total_timesteps"] for row in run.metrics()] == [ROLLOUT * i for i in range(1, ROLLOUTS + 1)]
    assert json.loads(run.config_file.read_text())["ranks"] == RANKS
    assert cli.main(["evaluate", str(straight.latest_checkpoint()), "--episodes", "4", "--trust"]) == 0


def rank_process(launcher: int, rank: int) -> int:
    """The process of a rank."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    variable = f"RANK={rank}".encode()
    return next(
        int(child) for child in children if variable in Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
    )


@pytest.mark.slow
@pytest.mark.parametrize("victim", range(RANKS))
def test_a_killed_rank_is_one_clear_error_and_the_job_resumes_bit_for_bit(
    job: Job, straight: RunDirectory, tmp_path: Path, victim: int
) -> None:
    run = RunDirectory(tmp_path / "killed")
    process = torchrun("train", ENV, "--run-dir", run.path, "--total-timesteps", 100_000 * ROLLOUT, *SETTINGS)
    wait_for(lambda: len(run.metrics()) >= 3)
    os.kill(rank_process(process.pid, victim), signal.SIGKILL)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    (line,) = [line for line in errors.splitlines() if line.startswith("esper-agent: error: ")]
    assert f"rank {1 - victim} lost the other ranks" in line
    assert "--resume" in line
    for late in [path for path in run.checkpoints() if int(path.stem[5:]) >= ROLLOUTS * ROLLOUT]:
        late.unlink()
    run.config_file.write_bytes(straight.config_file.read_bytes())
    assert job.run(run.path, "train", "--resume", "--trust", "--no-progress") == [End(0, "")] * RANKS
    assert_same_run(run, straight)


@pytest.mark.slow
@pytest.mark.ledger("Y4")
def test_ranks_that_outlive_their_launcher_keep_their_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunDirectory(tmp_path / "orphaned")
    process = torchrun("train", ENV, "--run-dir", run.path, "--total-timesteps", 100_000 * ROLLOUT, *SETTINGS)
    wait_for(lambda: len(run.metrics()) >= 1)
    orphans = [rank_process(process.pid, rank) for rank in range(RANKS)]
    try:
        process.kill()
        process.wait()
        assert resume(run.path) == 1
        assert f"process {orphans[0]} writes to it" in capsys.readouterr().err
    finally:
        for orphan in orphans:
            os.kill(orphan, signal.SIGKILL)
    process.communicate(timeout=PATIENCE)  # both ranks have let go of what the launcher gave them
    with run.locked():
        assert run.lock_file.read_text() == str(os.getpid())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "named"),
    [(["--n-envs", "3"], "a multiple of 2, the number of ranks"), ([], "is not an empty directory")],
)
def test_what_cannot_be_trained_is_one_line_for_all_ranks(
    job: Job, straight: RunDirectory, more: list[str], named: str
) -> None:
    ends = job.run(straight.path, *TRAIN, *more)
    assert [end.code for end in ends] == [1] * RANKS
    (line,) = "".join(end.error for end in ends).splitlines()
    assert named in line


def test_the_draws_of_all_ranks_are_those_of_one_process() -> None:
    device = torch.device("cpu")
    generators = [torch.Generator().manual_seed(0) for _ in range(RANKS + 1)]
    for _ in range(2):
        whole = Ranks().uniform((3, 1, 8), generators[0], device)
        parts = [Ranks(rank, RANKS).uniform((3, 1, 4), generators[1 + rank], device) for rank in range(RANKS)]
        assert torch.equal(torch.cat(parts, -1), whole)


def test_shares_of_the_loss_sum_to_the_loss_of_all_sequences() -> None:
    env, sizes = MaskedHeads(4, mode=AutoresetMode.NEXT_STEP), {"n_steps": 16, "sequence_length": 8}
    # A policy far from uniform, and heads with a choice in some steps only: no two means have the same weights.
    model = FactoredRecurrentPPO(env, seed=0, policy_gain=3.0, ent_coef=1.0, **sizes)
    while not model.buffer.full:
        model.collector.step(model.buffer)
    learner, batch = model.learner, model.buffer.sequences()
    targets, _ = learner.targets(
        model.buffer, batch, learner.old_policy(batch, learner.partition(batch.count)), model.collector.last_values()
    )

    def loss_of(rows: list[int]) -> Loss:
        chosen = torch.tensor(rows)
        part = batch.select(chosen)
        return ppo_loss(learner.evaluate(part), part, targets.select(chosen), learner.settings(1.0), counts)

    counts, whole = Counts.of(batch), [*range(batch.count)]
    own = Counts.of(batch.select(torch.tensor(whole[:3])))
    assert (own.choices / counts.choices - own.steps / counts.steps).abs().max() > 0.01
    expected, shares = loss_of(whole), [loss_of(rows) for rows in (whole[:3], whole[3:])]
    for name, value in expected.metrics.items():
        torch.testing.assert_close(sum(share.metrics[name] for share in shares), value)
    gradients = [torch.autograd.grad(share.total, [*model.policy.parameters()]) for share in shares]
    summed = [sum(pair) for pair in zip(*gradients, strict=True)]
    torch.testing.assert_close(summed, [*torch.autograd.grad(expected.total, [*model.policy.parameters()])])


class ObjectingRanks(Ranks):
    """Another rank has met a callback that wants to stop, after 999 steps."""

    def gather(self, value: Any) -> list[Any]:
        return [value, (False, 999)]


def test_a_callback_on_one_rank_ends_the_training_of_all() -> None:
    model = FactoredRecurrentPPO(MaskedHeads(4), seed=0, n_steps=16, sequence_length=8)
    model.ranks = ObjectingRanks()
    model.learn(1000)
    assert model.num_timesteps == 999
    assert model.learner.counters.rollouts == 0


def test_an_environment_that_can_choose_computes_where_the_agent_is() -> None:
    asked: list[str] = []

    def creator(num_envs: int, device: str = "cpu", **_options: Any) -> MaskedHeads:
        asked.append(device)
        return MaskedHeads(num_envs)

    gymnasium.register("ChoosesDevice-v0", entry_point=None, vector_entry_point=creator)
    make_vector_env("ChoosesDevice-v0", 2, "cuda:1")
    FactoredRecurrentPPO("ChoosesDevice-v0", n_envs=2, seed=0)
    assert asked == ["cuda:1", "cpu"]
