"""The metrics of an update are complete, correctly weighted, and cost one transfer."""

from typing import Any

import pytest
import torch
from esper_agent.diagnostics.metrics import Measured, Metrics, by_label, spread, summarize
from torch import Tensor
from update_tools import collect, make_model

HEADS, GROUPS = ("op", "slot"), ("trunk", "head_op", "head_slot", "critic")


def minibatch(**changes: Any) -> Measured:
    usual = {
        "active": True, "minibatches": True, "steps": 100, "policy_loss": 1.0, "entropy": [0.5, 0.0],
        "entropy_available": [1.0, 0.0], "approx_kl": 0.01, "exact_kl_max": 0.01, "max_abs_log_ratio": 0.3,
        "head_log_ratios": [0.2, 0.1], "ratio_worst_index": 7, "grad_norm_pre": 4.0,
        "grad_norms": [3.0, 1.0, 1.0, 2.0], "nonfinite": 0,
    }  # fmt: skip
    return {name: torch.tensor(value) for name, value in (usual | changes).items()}


def metrics_of(*minibatches: Measured) -> Metrics:
    advantages = spread("advantage", torch.tensor([-1.0, 0.0, 3.0, 2.0]))
    return summarize(minibatches, {**advantages, "nonfinite": torch.tensor(2)}, HEADS, GROUPS)


@pytest.mark.ledger("T1")
def test_every_metric_is_a_plain_number() -> None:
    metrics = metrics_of(minibatch(), minibatch())
    assert all(type(value) is float for value in metrics.values())
    assert set(by_label(metrics, "entropy")) == set(HEADS)
    assert set(by_label(metrics, "grad_norms")) == set(GROUPS)


def test_a_new_metric_needs_nothing_but_its_name_where_it_is_measured() -> None:
    metrics = metrics_of(minibatch(steps=300, surplus=1.0), minibatch(surplus=5.0))
    assert metrics["surplus"] == pytest.approx(2.0)


def test_a_metric_measured_in_a_minibatch_reaches_the_log() -> None:
    model = make_model()
    measure = model.learner.minibatch
    model.learner.minibatch = lambda *args: measure(*args) | {"surplus": torch.tensor(3.0)}  # type: ignore[method-assign]
    model.learn(6 * 24, log_interval=None)
    assert model.logger.name_to_value["train/surplus"] == 3.0


@pytest.mark.ledger("D5")
def test_advantages_are_described_before_and_after_normalisation() -> None:
    parts = by_label(metrics_of(minibatch()), "advantage")
    assert (parts["mean"], parts["min"], parts["max"], parts["positive_share"]) == (1.0, -1.0, 3.0, 0.5)
    assert parts["std"] == pytest.approx(2.5**0.5)
    model = make_model()
    collect(model)
    metrics = model.update()
    for name in ("advantage", "normalized_advantage"):
        assert set(by_label(metrics, name)) == set(parts)
    assert metrics["normalized_advantage/std"] == pytest.approx(1.0, rel=1e-4)


def test_the_advantage_spread_of_one_step_is_finite() -> None:
    assert [float(part) for part in spread("advantage", torch.tensor([2.0])).values()] == [2.0, 0.0, 2.0, 2.0, 1.0]


def test_means_count_each_step_once() -> None:
    metrics = metrics_of(minibatch(steps=300, policy_loss=1.0), minibatch(steps=100, policy_loss=5.0))
    assert metrics["policy_loss"] == pytest.approx(2.0)


def test_entropy_is_averaged_where_the_head_had_a_choice() -> None:
    metrics = metrics_of(
        minibatch(entropy=[1.0, 0.5], entropy_available=[1.0, 0.3]),
        minibatch(entropy=[0.0, 0.9], entropy_available=[1.0, 0.1]),
    )
    assert by_label(metrics, "entropy") == pytest.approx({"op": 0.5, "slot": 0.6})
    assert by_label(metrics, "entropy_available") == pytest.approx({"op": 1.0, "slot": 0.2})
    assert by_label(metrics_of(minibatch()), "entropy")["slot"] == 0.0


@pytest.mark.ledger("T4")
def test_the_worst_ratio_names_its_head_and_step() -> None:
    metrics = metrics_of(minibatch(), minibatch(head_log_ratios=[0.2, 5.0], ratio_worst_index=42))
    assert metrics["ratio_worst_index"] == 42
    assert by_label(metrics, "head_log_ratios") == pytest.approx({"op": 0.2, "slot": 5.0})


def test_extremes_and_sums_are_over_all_minibatches() -> None:
    metrics = metrics_of(minibatch(), minibatch(minibatches=False, exact_kl_max=0.2, nonfinite=1))
    assert (metrics["minibatches"], metrics["nonfinite"]) == (1, 3)
    assert metrics["exact_kl_max"] == pytest.approx(0.2)


def test_minibatches_after_the_stop_do_not_count() -> None:
    garbage = minibatch(active=False, minibatches=False, policy_loss=float("nan"), grad_norm_pre=float("nan"))
    metrics = metrics_of(minibatch(), minibatch(minibatches=False, grad_norm_pre=9.0), garbage)
    assert metrics["policy_loss"] == 1.0
    assert metrics["grad_norm_pre"] == 4.0


def test_counters_follow_the_steps_that_were_taken() -> None:
    model = make_model(learning_rate=0.05, target_kl=0.01, n_epochs=5)
    for rollouts in (1, 2):
        before = model.learner.counters.optimizer_steps
        collect(model)
        metrics = model.update()
        assert metrics["rollouts"] == rollouts
        assert metrics["optimizer_steps"] == before + metrics["minibatches"]
        assert metrics["stopped_early"] == (metrics["minibatches"] < 15)
        assert metrics["epochs"] == -(-metrics["minibatches"] // 3)


def test_an_update_without_a_step_has_no_gradient_norm() -> None:
    metrics = metrics_of(minibatch(minibatches=False))
    assert metrics["grad_norm_pre"] != metrics["grad_norm_pre"]
    assert metrics["minibatches"] == 0


@pytest.mark.ledger("U17")
def test_all_measurements_cross_to_the_host_in_one_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    transfers: list[str] = []

    def counted(name: str) -> Any:
        original = getattr(Tensor, name)
        return lambda self, *args: transfers.append(name) or original(self, *args)

    rows = [minibatch() for _ in range(16)]
    for name in ("item", "tolist", "numpy", "__float__", "__int__", "__bool__"):
        monkeypatch.setattr(Tensor, name, counted(name))
    metrics_of(*rows)
    assert transfers == ["numpy"]
