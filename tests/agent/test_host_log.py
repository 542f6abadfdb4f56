"""The training log shows the hosts, as a replay of the rollout finds them."""

from pathlib import Path
from typing import Any

import esper_env  # noqa: F401 (registers the environments)
import gymnasium
import numpy as np
import pytest
import torch
from esper_agent import FactoredRecurrentPPO
from esper_agent.runs.directory import RunConfig, RunDirectory
from esper_agent.runs.training import start_run
from esper_env.mdp.actions import HEADS, Op
from esper_env.mdp.state import Stage
from stable_baselines3.common.logger import KVWriter, Logger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from toy_envs import MaskedHeads

SMALL: dict[str, Any] = {
    "n_steps": 16, "sequence_length": 8, "n_minibatches": 2, "n_epochs": 1, "encoder_sizes": (8,), "lstm_size": 8,
    "head_hidden": 8, "idle_bias": 0.0,
}  # fmt: skip
SETTINGS: dict[str, Any] = {"horizon": 7, "reward": "contribution", "churn_prunes": 1}
ROWS, SEED = 5, 11


class Capture(KVWriter):
    """Keeps everything that is logged."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:  # noqa: ARG002
        self.rows.append(dict(key_values))


def replay(actions: np.ndarray, mode: str) -> dict[str, float]:
    """What the log should say of actions [time, heads, rows], looked up step by step and host by host."""
    env = gymnasium.make_vec("Esper-v0", ROWS, autoreset_mode=mode, **SETTINGS)
    env.reset(seed=SEED)
    steps: list[dict[str, float]] = []
    ends: list[dict[str, float]] = []
    over = np.zeros(ROWS, dtype=bool)
    for chosen in actions:
        stages = env.state.stage.numpy()
        *_, terminated, _, infos = env.step(dict(zip(HEADS, chosen, strict=True)))
        shown = infos.get("final_info", infos)
        for row in np.flatnonzero(~over):
            op, legal = chosen[0, row], not shown["invalid_action"][row]
            seen = {name: float(shown[name][row]) for name in ("metric", "committed_metric", "added_parameters")}
            seen |= {f"seeds/{s.name.lower()}": float((stages[row] == s).sum()) for s in Stage if s != Stage.DORMANT}
            seen |= {"germinations": float(op == Op.GERMINATE and legal), "prunes": float(op == Op.PRUNE and legal)}
            seen |= {"rollbacks": float(shown["rolled_back"][row]), "illegal_share": float(not legal)}
            seen |= {f"gaming/{name}": float(flags[row]) for name, flags in shown["detectors"].items()}
            seen |= {f"reward/{name}": float(term[row]) for name, term in shown["reward_terms"].items()}
            steps.append(seen)
            if terminated[row]:
                ends.append(seen)
        over = terminated if mode == "next_step" else over
    counted = ("germinations", "prunes", "rollbacks")
    means = {f"hosts/{name}": sum(s[name] for s in steps) / (1 if name in counted else len(steps)) for name in steps[0]}
    last = ("metric", "committed_metric", "added_parameters")
    return means | {f"hosts/end/{name}": float(np.mean([end[name] for end in ends])) for name in last}


@pytest.mark.ledger("Y29")
@pytest.mark.parametrize(("mode", "output"), [("same_step", "torch"), ("same_step", "numpy"), ("next_step", "numpy")])
def test_the_log_agrees_with_a_replay(mode: str, output: str) -> None:
    env = gymnasium.make_vec("Esper-v0", ROWS, autoreset_mode=mode, output=output, **SETTINGS)
    model, capture = FactoredRecurrentPPO(env, seed=SEED, **SMALL), Capture()
    model.set_logger(Logger(None, [capture]))
    model.learn(ROWS * 16)
    (row,) = capture.rows
    logged = {key: value for key, value in row.items() if key.startswith("hosts/")}
    expected = replay(model.buffer.actions.numpy(), mode)
    assert logged.keys() == expected.keys()
    for key, value in expected.items():
        assert logged[key] == pytest.approx(value, abs=1e-9), key
    assert logged["hosts/germinations"] > 0
    assert logged["hosts/prunes"] > 0
    assert logged["hosts/gaming/churn"] > 0
    assert {"hosts/seeds/training", "hosts/seeds/fossilized", "hosts/illegal_share"} <= logged.keys()


@pytest.mark.ledger("Y29")
def test_illegal_actions_and_rollbacks_are_counted() -> None:
    env = gymnasium.make_vec("Esper-v0", ROWS, autoreset_mode="same_step", output="torch", **SETTINGS)
    model, capture = FactoredRecurrentPPO(env, seed=SEED, **SMALL), Capture()
    step = env.step

    def meddled(actions: Any) -> Any:
        observations, rewards, terminated, truncated, infos = step(actions)
        for each in (infos, infos.get("final_info", infos)):
            each["invalid_action"][:2] = True
            each["rolled_back"][3] = True
        return observations, rewards, terminated, truncated, infos

    env.step = meddled
    model.set_logger(Logger(None, [capture]))
    model.learn(ROWS * 16)
    assert capture.rows[0]["hosts/illegal_share"] == pytest.approx(0.4)
    assert capture.rows[0]["hosts/rollbacks"] == 16


@pytest.mark.ledger("Y29")
def test_other_environments_have_no_hosts() -> None:
    model, capture = FactoredRecurrentPPO(MaskedHeads(4), seed=0, **SMALL), Capture()
    model.set_logger(Logger(None, [capture]))
    model.learn(64)
    assert not [key for key in capture.rows[0] if key.startswith("hosts/")]


@pytest.mark.ledger("Y29")
def test_the_hosts_are_read_from_the_device_once_per_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    env = gymnasium.make_vec("Esper-v0", 3, output="torch", autoreset_mode="same_step", horizon=4)
    model = FactoredRecurrentPPO(env, seed=0, **SMALL)
    hosts, reads = model.collector.hosts, []
    steps = [model.collector.step(model.buffer) for _ in range(8)]
    assert len(steps) == 8
    tolist = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: (reads.append(tensor), tolist(tensor))[1])
    assert hosts.summary(model.ranks)
    assert len(reads) == 1
    assert hosts.summary(model.ranks) == {}


@pytest.mark.ledger("Y29")
def test_a_run_shows_the_hosts_in_its_metrics_and_in_tensorboard(tmp_path: Path) -> None:
    config = RunConfig("Esper-v0", n_envs=2, total_timesteps=60, agent={**SMALL, "n_steps": 30, "sequence_length": 30})
    run = RunDirectory(tmp_path / "run")
    start_run(run, config, progress_bar=False)
    (row,) = run.metrics()
    keys = {key for key in row if key.startswith("hosts/")}
    assert {"hosts/metric", "hosts/end/committed_metric", "hosts/reward/rent", "hosts/gaming/churn"} <= keys
    events = EventAccumulator(str(run.tensorboard_directory))
    events.Reload()
    assert keys <= set(events.Tags()["scalars"])
