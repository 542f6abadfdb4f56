"""Gradient norms by group and group-wise clipping agree with plain torch."""

import pytest
import torch
from esper_agent.diagnostics.gradients import clip_gradients, group_norms
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn


def parameter(*gradient: float, device: str = "cpu") -> nn.Parameter:
    made = nn.Parameter(torch.zeros(len(gradient), device=device))
    made.grad = torch.tensor(gradient, device=device)
    return made


GRADIENT = st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=5)


@pytest.mark.ledger("U13", "D3")
@settings(deadline=None)
@given(GRADIENT, GRADIENT, st.floats(0.01, 100))
def test_the_total_limit_equals_plain_torch(first: list[float], second: list[float], limit: float) -> None:
    ours, plain = ([parameter(*first), parameter(*second)] for _ in range(2))
    report = clip_gradients({"first": ours[:1], "second": ours[1:]}, None, limit)
    total = nn.utils.clip_grad_norm_(plain, limit)
    torch.testing.assert_close(report.pre, total)
    for mine, theirs in zip(ours, plain, strict=True):
        # torch divides by (norm + 1e-6), we by the norm itself
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-6)
    after = torch.cat([p.grad for p in ours if p.grad is not None]).norm()
    torch.testing.assert_close(report.post, after, rtol=1e-5, atol=1e-6)
    assert report.post <= report.pre


@pytest.mark.ledger("U13")
@settings(deadline=None)
@example([0.0], [1e-45])  # a subnormal norm
@given(GRADIENT, GRADIENT)
def test_a_huge_limit_changes_nothing(first: list[float], second: list[float]) -> None:
    parameters = [parameter(*first), parameter(*second)]
    report = clip_gradients({"first": parameters[:1], "second": parameters[1:]}, 1e9, 1e9)
    assert report.pre == report.post
    assert not report.clipped
    assert parameters[0].grad is not None
    assert parameters[0].grad.tolist() == torch.tensor(first).tolist()


@pytest.mark.ledger("U14")
def test_an_explosion_in_one_group_leaves_the_others_alone() -> None:
    calm, wild = parameter(0.3, 0.4), parameter(1e6)
    report = clip_gradients({"calm": [calm], "wild": [wild]}, max_group_norm=0.5, max_norm=10.0)
    assert calm.grad is not None
    assert wild.grad is not None
    torch.testing.assert_close(calm.grad, torch.tensor([0.3, 0.4]))
    torch.testing.assert_close(wild.grad, torch.tensor([0.5]))
    assert bool(report.clipped)
    assert {name: float(norm) for name, norm in report.per_group.items()} == pytest.approx({"calm": 0.5, "wild": 1e6})


def test_the_total_limit_holds_after_the_group_limits() -> None:
    parameters = [parameter(10.0) for _ in range(9)]
    report = clip_gradients({str(i): [p] for i, p in enumerate(parameters)}, 1.0, 1.5)
    assert float(report.post) == pytest.approx(1.5)


def test_zero_and_missing_gradients_stay_as_they_are() -> None:
    silent, missing = parameter(0.0, 0.0), nn.Parameter(torch.zeros(2))
    report = clip_gradients({"silent": [silent], "missing": [missing]}, 1.0, 1.0)
    assert silent.grad is not None
    assert silent.grad.tolist() == [0.0, 0.0]
    assert missing.grad is None
    assert float(report.pre) == float(report.post) == 0.0


@pytest.mark.ledger("TG4")
def test_gradients_on_two_devices_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"one device.*cpu, meta"):
        group_norms({"here": [parameter(1.0)], "there": [parameter(1.0, device="meta")]})


@pytest.mark.ledger("D6")
def test_clipping_never_reads_from_the_device() -> None:
    # On the meta device any read of a value raises.
    report = clip_gradients({"a": [parameter(1.0, device="meta")]}, 0.5, 0.5)
    assert report.post.device.type == "meta"
