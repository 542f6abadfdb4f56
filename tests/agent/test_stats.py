"""The statistics of an update are complete, correctly weighted, and cost one transfer."""

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from esper_agent.diagnostics.metrics import (
    AdvantageStats,
    MinibatchStats,
    RolloutStats,
    UpdateContext,
    UpdateStats,
    advantage_stats,
    collect_update_stats,
)
from torch import Tensor

CONTEXT = UpdateContext(
    heads=("op", "slot"),
    groups=("trunk", "critic"),
    minibatches_per_epoch=2,
    learning_rate=3e-4,
    env_steps=640,
    rollouts=2,
    optimizer_steps_before=8,
)


def minibatch(**changes: Any) -> MinibatchStats:
    scalar = torch.tensor
    usual = MinibatchStats(
        active=scalar(True),
        stepped=scalar(True),
        steps=scalar(100),
        policy_loss=scalar(1.0),
        value_loss=scalar(2.0),
        entropy=scalar([0.5, 0.0]),
        choices=scalar([100, 0]),
        approx_kl=scalar(0.01),
        exact_kl=scalar(0.02),
        clip_fraction=scalar(0.1),
        joint_log_ratio=scalar(0.3),
        head_log_ratio=scalar([0.2, 0.1]),
        head_log_ratio_index=scalar([7, 9]),
        grad_norm_pre=scalar(4.0),
        grad_norm_post=scalar(0.5),
        grad_norms=scalar([3.0, 1.0]),
        nonfinite=scalar(0),
    )
    return replace(usual, **{name: scalar(value) for name, value in changes.items()})


def rollout() -> RolloutStats:
    spread = advantage_stats(torch.tensor([-1.0, 0.0, 3.0, 2.0]))
    values = {field.name: torch.tensor(0.5) for field in fields(RolloutStats)}
    return RolloutStats(**values | {"advantage": spread, "normalized_advantage": spread, "nonfinite": torch.tensor(0)})  # type: ignore[arg-type]


def collect(*minibatches: MinibatchStats) -> UpdateStats:
    return collect_update_stats(minibatches, rollout(), CONTEXT)


@pytest.mark.ledger("T1")
def test_every_field_is_a_plain_number_of_its_declared_type() -> None:
    stats = collect(minibatch(), minibatch())
    declared = {"float": float, "int": int, "bool": bool, "str": str}
    for field in fields(UpdateStats):
        value = getattr(stats, field.name)
        if isinstance(value, dict):
            assert value
            assert all(type(number) is float for number in value.values())
        elif isinstance(value, AdvantageStats):
            assert all(type(getattr(value, part.name)) is float for part in fields(value))
        else:
            name = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", "")
            assert type(value) is declared[name], field.name


@pytest.mark.ledger("D5")
def test_advantages_are_described_before_and_after_normalisation() -> None:
    stats = collect(minibatch())
    for spread in (stats.advantage, stats.normalized_advantage):
        assert (spread.mean, spread.min, spread.max, spread.positive_share) == (1.0, -1.0, 3.0, 0.5)
        assert spread.std == pytest.approx(2.5**0.5)


def test_the_advantage_spread_of_one_step_is_finite() -> None:
    spread = advantage_stats(torch.tensor([2.0]))
    assert [float(getattr(spread, part.name)) for part in fields(spread)] == [2.0, 0.0, 2.0, 2.0, 1.0]


def test_means_count_each_step_once() -> None:
    stats = collect(minibatch(steps=300, policy_loss=1.0), minibatch(steps=100, policy_loss=5.0))
    assert stats.policy_loss == pytest.approx(2.0)


def test_entropy_is_averaged_where_the_head_had_a_choice() -> None:
    stats = collect(minibatch(entropy=[1.0, 0.5], choices=[100, 30]), minibatch(entropy=[0.0, 0.9], choices=[100, 10]))
    assert stats.entropy == pytest.approx({"op": 0.5, "slot": 0.6})
    assert stats.entropy_available == pytest.approx({"op": 1.0, "slot": 0.2})


@pytest.mark.ledger("T4")
def test_the_worst_ratio_names_its_head_and_step() -> None:
    stats = collect(minibatch(), minibatch(head_log_ratio=[0.2, 5.0], head_log_ratio_index=[7, 42]))
    assert (stats.ratio_worst_head, stats.ratio_worst_index) == ("slot", 42)
    assert stats.head_log_ratios == pytest.approx({"op": 0.2, "slot": 5.0})


def test_counters_follow_the_steps_that_were_taken() -> None:
    stats = collect(minibatch(), minibatch(), minibatch(), minibatch(stepped=False, approx_kl=0.2))
    assert (stats.minibatches, stats.epochs, stats.optimizer_steps, stats.stopped_early) == (3, 2, 11, True)
    assert stats.approx_kl_max == pytest.approx(0.2)


def test_minibatches_after_the_stop_do_not_count() -> None:
    garbage = minibatch(active=False, stepped=False, policy_loss=float("nan"), grad_norm_pre=float("nan"))
    stats = collect(minibatch(), minibatch(stepped=False), garbage)
    assert stats.policy_loss == 1.0
    assert stats.grad_norm_pre == 4.0


def test_an_update_without_a_step_has_no_gradient_norm() -> None:
    stats = collect(minibatch(stepped=False))
    assert stats.grad_norm_pre != stats.grad_norm_pre
    assert stats.minibatches == 0


@pytest.mark.ledger("U17")
def test_all_measurements_cross_to_the_host_in_one_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    transfers: list[str] = []

    def counted(name: str) -> Any:
        original = getattr(Tensor, name)
        return lambda self, *args: transfers.append(name) or original(self, *args)

    for name in ("item", "tolist", "numpy", "__float__", "__int__", "__bool__"):
        monkeypatch.setattr(Tensor, name, counted(name))
    collect(*[minibatch() for _ in range(16)])
    assert transfers == ["numpy"]
