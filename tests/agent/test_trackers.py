"""The log of a run goes where `--logger` says, and a resumed run goes on there."""

import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from esper_agent import cli
from esper_agent.runs import trackers
from esper_agent.runs.directory import RunDirectory
from test_cli import ENV, ROLLOUT, resume, train

BOTH = ("--logger", "wandb", "--logger", "mlflow")


class Service(ModuleType):
    """What we call of both services, written down."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)
        self.begun: list[dict[str, Any]] = []
        self.rows: dict[int, dict[str, float]] = {}
        self.open = 0

    def init(self, **settings: Any) -> Any:
        self.begun.append(settings)
        self.open += 1
        return SimpleNamespace(id=settings["id"] or "drawn")

    def start_run(self, run_id: str | None, run_name: str) -> Any:
        self.init(id=run_id, name=run_name)
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id or "given"))

    def log(self, numbers: dict[str, float], step: int) -> None:
        assert all(type(value) is float for value in numbers.values())
        self.rows[step] = numbers

    def log_params(self, settings: dict[str, Any]) -> None:
        self.settings = settings

    def finish(self) -> None:
        self.open -= 1

    log_metrics, end_run = log, finish


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Service]]:
    found = {name: Service(name) for name in ("wandb", "mlflow")}
    for name, service in found.items():
        monkeypatch.setitem(sys.modules, name, service)
    yield found
    assert all(service.open == 0 for service in found.values())


def test_services_get_every_number_of_the_log_and_a_resumed_run_goes_on_there(
    services: dict[str, Service], tmp_path: Path
) -> None:
    run = RunDirectory(tmp_path / "mine")
    assert train(run.path, 3, *BOTH) == 0
    logged = {row["time/total_timesteps"]: row for row in run.metrics()}
    for service in services.values():
        assert list(service.rows) == list(logged) == [ROLLOUT, 2 * ROLLOUT, 3 * ROLLOUT]
        shared = service.rows[ROLLOUT].keys() & logged[ROLLOUT].keys()
        assert {"train/loss", "rollout/ep_rew_mean", "train/entropy_loss"} <= shared
        assert {key: logged[ROLLOUT][key] for key in shared} == {key: service.rows[ROLLOUT][key] for key in shared}
    assert not run.tensorboard_directory.exists()
    assert services["wandb"].begun[0]["config"]["env_id"] == ENV
    assert services["mlflow"].settings["env_id"] == f'"{ENV}"'
    run.checkpoint_file(3 * ROLLOUT).unlink()  # as if it had been killed before the end
    assert resume(run.path) == 0
    assert [begun["id"] for begun in services["wandb"].begun] == [None, "drawn"]
    assert [begun["id"] for begun in services["mlflow"].begun] == [None, "given"]
    assert {begun["name"] for service in services.values() for begun in service.begun} == {"mine"}


def test_a_service_that_is_not_installed_is_said_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda _: None)
    assert train(tmp_path / "run", 1, "--logger", "mlflow") == 1
    assert "pip install 'esper-agent[mlflow]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_tensorboard_is_the_default_and_others_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    parsed = cli.build_parser().parse_args(["train", ENV, "--run-dir", "x", "--logger", "tensorboard"])
    assert parsed.loggers == ["tensorboard"]
    with pytest.raises(SystemExit, match="2"):
        cli.main(["train", ENV, "--run-dir", "x", "--logger", "comet"])
    assert "invalid choice: 'comet'" in capsys.readouterr().err
