"""Timers wait for the device; the profiler records what the device allows, where it is told, and then is gone."""

import ast
import gzip
import json
import time
from contextlib import closing
from pathlib import Path

import esper_agent
import esper_env
import pytest
import torch
from esper_agent import FactoredRecurrentPPO, cli
from esper_agent.algorithm.checkpoint import CheckpointError
from esper_agent.diagnostics import profiler
from esper_agent.runs import profiling, timing
from esper_agent.runs.timing import Stopwatch
from esper_env.mdp.phases import unmeasured
from stable_baselines3.common.callbacks import BaseCallback
from torch.profiler import ProfilerActivity

PACKAGE = Path(esper_agent.__file__).parent
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.ledger("D7")
@pytest.mark.parametrize(("device", "activity"), [("cuda", "CUDA"), ("xpu", "XPU"), ("mtia", "MTIA")])
def test_an_available_device_is_recorded_beside_the_cpu(
    device: str, activity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(getattr(torch, device), "is_available", lambda: True)
    assert profiler.activities(f"{device}:0") == [ProfilerActivity.CPU, getattr(ProfilerActivity, activity)]


@pytest.mark.ledger("D7")
@pytest.mark.parametrize("device", ["cuda", "xpu", "mps", "meta"])
def test_a_device_that_cannot_be_recorded_falls_back_to_the_cpu_and_says_so(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device in profiler.DEVICE_ACTIVITIES:
        monkeypatch.setattr(getattr(torch, device), "is_available", lambda: False)
    with pytest.warns(UserWarning, match=device):
        assert profiler.activities(device) == [ProfilerActivity.CPU]


@pytest.mark.ledger("D8")
def test_traces_go_to_the_given_directory(tmp_path: Path) -> None:
    with profiler.trace(tmp_path / "traces", "cpu", wait=0, warmup=1, active=1) as running:
        for _ in range(2):
            torch.ones(8).sum()
            running.step()
    assert len(list((tmp_path / "traces").glob("*.pt.trace.json.gz"))) == 1


def string_defaults(source: str) -> list[str]:
    """Every string constant that is a parameter's or a field's default, or is made a path where it stands."""
    found = []
    for node in ast.walk(ast.parse(source)):
        defaults: list[ast.expr | None] = []
        if isinstance(node, ast.arguments):
            defaults = [*node.defaults, *node.kw_defaults]
        elif (isinstance(node, ast.keyword) and node.arg == "default") or isinstance(node, ast.AnnAssign):
            defaults = [node.value]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Path":
            found += [f"./{each.value}" for each in node.args if isinstance(each, ast.Constant)]
        found += [d.value for d in defaults if isinstance(d, ast.Constant) and isinstance(d.value, str)]
    return found


@pytest.mark.ledger("D8", "Z15")
def test_no_default_in_the_package_is_a_relative_path() -> None:
    suspicious = {
        (path.name, text)
        for path in PACKAGE.rglob("*.py")
        for text in string_defaults(path.read_text(encoding="utf-8"))
        if "/" in text or text.startswith(".") or text in ("runs", "logs", "checkpoints", "output", "results")
    }
    assert not suspicious


def test_the_search_for_relative_defaults_finds_one() -> None:
    assert string_defaults("def f(where='./runs', *, again='logs/x'): ...") == ["./runs", "logs/x"]
    assert string_defaults("profiler = ProfileRun(Path('profile'))") == ["./profile"]


@pytest.mark.ledger("B8")
def test_the_stopwatch_synchronises_before_it_reads_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: log.append(str(device)))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: float(log.append("clock") or len(log)))
    watch = Stopwatch("meta")
    with watch.measure("update"):
        log.append("work")
    assert log == ["meta", "clock", "work", "meta", "clock"]
    assert watch.seconds["update"] == 3.0


@pytest.mark.ledger("B8")
def test_on_the_cpu_there_is_nothing_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.accelerator, "synchronize")
    watch, begin = Stopwatch("cpu"), time.perf_counter()
    for _ in range(2):
        with watch.measure("sleep"):
            time.sleep(0.01)
    assert 0.02 <= watch.seconds["sleep"] <= time.perf_counter() - begin


@pytest.mark.ledger("B8")
def test_the_benchmarks_measure_with_the_stopwatch_only() -> None:
    sources = {path.name: path.read_text(encoding="utf-8") for path in BENCHMARKS.glob("agent_*.py")}
    assert "Stopwatch" in sources["agent_throughput.py"]
    for name, source in sources.items():
        imported = {
            alias.name if isinstance(node, ast.Import) else node.module
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        assert not imported & {"time", "timeit", "datetime"}, name


SMALL_RUN = ["--n-envs=2", "--set=n_steps=8", "--set=sequence_length=8", "--set=n_minibatches=1", "--no-progress"]


def measured(model: FactoredRecurrentPPO) -> list[bool]:
    """Whether somebody measures the phases of the agent, of its collector, and of its environment."""
    owners = (model, model.collector, model.get_env().unwrapped.simulation)  # type: ignore[attr-defined]
    return [owner.phase is not unmeasured for owner in owners]


class Watcher(BaseCallback):
    """Sees at the start of each rollout whether phases are measured."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[bool]] = []

    def _on_rollout_start(self) -> None:
        self.seen.append(measured(self.model))  # type: ignore[arg-type]

    def _on_step(self) -> bool:
        return True


def test_phases_are_measured_only_while_there_is_a_profile(tmp_path: Path) -> None:
    model = FactoredRecurrentPPO(
        "Esper-v0", n_envs=1, seed=0, n_steps=4, sequence_length=4, n_minibatches=1, n_epochs=1
    )
    watcher = Watcher()
    model.learn(4 * (profiling.UPDATES + 2), [profiling.ProfileRun(tmp_path / "profile"), watcher])
    no, yes = [False] * 3, [True] * 3
    assert watcher.seen == [no] * profiling.SKIPPED + [yes] * (profiling.UPDATES - profiling.SKIPPED) + [no, no]
    assert measured(model) == no


def test_an_interrupted_profile_measures_no_more(tmp_path: Path) -> None:
    class Trip(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps == 12:
                assert all(measured(self.model))  # type: ignore[arg-type]
                raise CheckpointError("no room")
            return True

    model = FactoredRecurrentPPO("Esper-v0", n_envs=1, seed=0, n_steps=4, sequence_length=4, n_minibatches=1)
    with closing(profiling.ProfileRun(tmp_path)) as profile, pytest.raises(CheckpointError):
        model.learn(40, [profile, Trip()])
    assert not any(measured(model))


def test_no_shipped_code_or_benchmark_replaces_functions_of_others() -> None:
    folders = (PACKAGE, Path(esper_env.__file__).parent, BENCHMARKS)
    sources = [path for folder in folders for path in folder.rglob("*.py")]
    assert not [path.name for path in sources if "unittest" in path.read_text(encoding="utf-8")]


def test_phases_sum_to_the_whole() -> None:
    measured = {"environment": 6.0, "host training": 3.0, "evaluation": 2.0, "policy": 1.5, "update": 2.0}
    table = profiling.phases(measured, total=10.0)
    assert table == {
        "host training": 3.0, "evaluation": 2.0, "bookkeeping": 1.0, "policy": 1.5, "update": 2.0, "rest": 0.5,
    }  # fmt: skip
    assert sum(table.values()) == 10.0


def test_the_command_writes_phases_and_a_trace_with_the_phases_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    steps = f"--total-timesteps={16 * profiling.UPDATES}"
    assert cli.main(["train", "Esper-v0", f"--run-dir={run}", "--profile", steps, *SMALL_RUN]) == 0
    record = json.loads((run / "profile" / "phases.json").read_text())
    assert record["env_steps"] == 16 * profiling.TIMED
    assert all(record["seconds"][name] > 0 for name in ("host training", "evaluation", "policy", "update"))
    (trace,) = (run / "profile").glob("*.pt.trace.json.gz")
    names = {event.get("name") for event in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]}
    assert {"environment", "host training", "evaluation", "policy", "update"} <= names
    printed = capsys.readouterr().out
    assert str(trace) in printed
    assert [line.split("  ")[0] for line in printed.splitlines()[:6]] == list(record["seconds"])


def test_a_run_too_short_for_a_profile_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "resumable_env:Resumable-v0", f"--run-dir={tmp_path / 'run'}", "--total-timesteps=32"]
    assert cli.main([*command, "--profile", *SMALL_RUN]) == 0
    assert f"it takes {profiling.UPDATES} updates" in capsys.readouterr().out
