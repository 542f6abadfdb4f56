"""Timers wait for the device; the profiler records what the device allows, where it is told."""

import ast
import time
from pathlib import Path

import esper_agent
import pytest
import torch
from esper_agent import timing
from esper_agent.diagnostics import profiler
from esper_agent.timing import Stopwatch
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
    """Every string constant that is a parameter's or a field's default."""
    found = []
    for node in ast.walk(ast.parse(source)):
        defaults: list[ast.expr | None] = []
        if isinstance(node, ast.arguments):
            defaults = [*node.defaults, *node.kw_defaults]
        elif (isinstance(node, ast.keyword) and node.arg == "default") or isinstance(node, ast.AnnAssign):
            defaults = [node.value]
        found += [d.value for d in defaults if isinstance(d, ast.Constant) and isinstance(d.value, str)]
    return found


@pytest.mark.ledger("D8")
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
    watch = Stopwatch("cpu")
    for _ in range(2):
        with watch.measure("sleep"):
            time.sleep(0.01)
    assert 0.02 <= watch.seconds["sleep"] < 0.2


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
