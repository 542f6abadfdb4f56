"""The most extreme ratios are found at the right step and head, also in degenerate batches."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from esper_agent import diagnostics
from esper_agent.diagnostics.ratios import ratio_extremes
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.ledger("TG1", "T4")
@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 5), st.integers(0, 2**31))
def test_every_extreme_is_the_one_that_a_search_finds(steps: int, heads: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    log_ratios = torch.randn(steps, heads, generator=generator)
    index = torch.randperm(1000, generator=generator)[:steps]
    found = ratio_extremes(log_ratios, index)
    assert float(found.joint) == max(abs(float(row.sum())) for row in log_ratios)
    for head in range(heads):
        worst = max(range(steps), key=lambda step: abs(float(log_ratios[step, head])))
        assert float(found.head[head]) == abs(float(log_ratios[worst, head]))
        assert int(found.head_index[head]) == int(index[worst])


@pytest.mark.ledger("TG1")
def test_no_steps_have_no_extreme() -> None:
    found = ratio_extremes(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))
    assert (float(found.joint), found.head.tolist(), found.head_index.tolist()) == (0.0, [0.0] * 3, [-1] * 3)


@pytest.mark.ledger("TG1")
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_non_finite_ratio_is_infinitely_bad_where_it_stands(poison: float) -> None:
    log_ratios = torch.zeros(4, 2)
    log_ratios[0, 1], log_ratios[2, 1] = 50.0, poison
    found = ratio_extremes(log_ratios, torch.arange(10, 14))
    assert found.head.tolist() == [0.0, math.inf]
    assert int(found.head_index[1]) == 12
    assert float(found.joint) == math.inf


@pytest.mark.ledger("TG1")
def test_the_report_stays_the_same_size_when_every_step_is_bad() -> None:
    found = ratio_extremes(torch.full((10_000, 2), -60.0), torch.arange(10_000))
    assert found.head.shape == found.head_index.shape == (2,)
    assert found.head.tolist() == [60.0, 60.0]
    assert float(found.joint) == 120.0


@pytest.mark.ledger("T3")
def test_no_diagnostic_takes_an_argument_that_it_does_not_use() -> None:
    lint = [sys.executable, "-m", "ruff", "check", "--isolated", "--ignore-noqa", "--select", "ARG"]
    result = subprocess.run([*lint, str(Path(diagnostics.__file__).parent)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
