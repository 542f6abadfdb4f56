"""A critical event names the layer, head, steps and actions, and leaves in the run directory what is asked for next."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from esper_agent import FactoredRecurrentPPO
from esper_agent.diagnostics import DetectorConfig, Severity
from stable_baselines3.common.logger import Logger
from update_tools import SMALL, make_model

QUICK = DetectorConfig(warmup_rollouts=0, patience=1, escalate_after=1)
ONE_BATCH: dict[str, Any] = {"learning_rate": 0.0, "target_kl": 1e9, "n_epochs": 1, "n_minibatches": 1}


def dossiers(path: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted((path / "critical").glob(f"{name}_*.json"))]


def train(model: FactoredRecurrentPPO, path: Path, rollouts: int) -> None:
    model.set_logger(Logger(str(path), []))
    model.learn(6 * SMALL["n_steps"] * rollouts)


@pytest.mark.ledger("Y30")
def test_a_broken_layer_is_named_and_every_layer_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_model()
    with torch.no_grad():
        model.policy.decoder.heads["slot"].weight[2, 3] = math.nan
    train(model, tmp_path, 3)
    (found, *_) = dossiers(tmp_path, "nonfinite")
    assert found["event"]["severity"] == "critical"
    assert found["first_nonfinite"]["parameter"] == "decoder.heads.slot.weight"
    assert found["first_nonfinite"]["output"] == "logits"
    assert found["layers"].keys() == dict(model.policy.named_parameters()).keys()
    assert found["layers"]["decoder.heads.slot.weight"] | {"gradient_norm": 0} == {
        "norm": "nan", "largest": "nan", "gradient_norm": 0, "nonfinite": 1,
    }  # fmt: skip
    bias = model.policy.decoder.actor.weight.norm().item()
    assert found["layers"]["decoder.actor.weight"]["norm"] == pytest.approx(bias, rel=1e-5)
    console = capsys.readouterr().err
    assert console.count("esper-agent: critical: nonfinite") == 1
    assert "first non-finite layer decoder.heads.slot.weight" in console
    assert str(tmp_path / "critical") in console


@pytest.mark.ledger("Y30")
def test_the_worst_ratios_come_with_their_steps_actions_and_probabilities(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_model(detectors=QUICK, **ONE_BATCH)
    old_policy, actions = model.learner.old_policy, []

    def tampered(*args: Any) -> Any:
        old = old_policy(*args)
        old.head_log_probs[1, 2, 3] -= 9.0  # [head, sequence, time]
        actions.append((model.buffer.sequences().actions[:, 2, 3].tolist(), old.head_log_probs[:, 2, 3].exp()))
        return old

    model.learner.old_policy = tampered
    train(model, tmp_path, 4)
    events = [event for event in model.events if event.name == "ratio_explosion" and event.head == "slot"]
    assert [event.severity for event in events] == [Severity.WARNING, Severity.CRITICAL]
    (found,) = dossiers(tmp_path, "ratio_explosion_slot")
    worst = found["worst_ratios"][0]
    acted, before = actions[1]
    assert worst["step"] == 3 * 6 + 2
    assert worst["head"] == "slot"
    assert list(worst["action"].values()) == acted
    assert worst["log_ratio"]["slot"] == pytest.approx(9.0, rel=1e-4)
    assert list(worst["old_probability"].values()) == pytest.approx(before.tolist(), rel=1e-4)
    assert worst["new_probability"]["slot"] == pytest.approx(before[1].item() * math.exp(9), rel=1e-3)
    assert len(found["worst_ratios"]) == 5
    console = capsys.readouterr().err
    assert console.count("esper-agent: critical: ratio_explosion") == 2  # jointly, and of the head, once each
    assert f"head slot; rollout steps 20 (op={acted[0]} slot={acted[1]} blueprint={acted[2]})" in console
    assert "steepest layer" in console


@pytest.mark.ledger("Y30")
def test_what_is_not_critical_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(make_model(), tmp_path, 2)
    assert not (tmp_path / "critical").exists()
    assert "critical" not in capsys.readouterr().err
