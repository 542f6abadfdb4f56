"""The health of a recurrent state, at the edges too."""

import math
from typing import Any

import pytest
import torch
from esper_agent.diagnostics.lstm import LstmHealth, lstm_health
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

LEVEL = 0.9


def health(hidden: Tensor) -> LstmHealth:
    judged = lstm_health(hidden, LEVEL)
    assert judged is not None
    return judged


@pytest.mark.ledger("TG3")
def test_no_state_has_no_health() -> None:
    assert lstm_health(None, LEVEL) is None
    assert lstm_health(torch.zeros(1, 0, 4), LEVEL) is None


@pytest.mark.ledger("TG3")
def test_zeros_are_silent() -> None:
    assert health(torch.zeros(2, 3, 4)) == LstmHealth(rms=0.0, max_abs=0.0, saturation=0.0, nonfinite=0.0)


@pytest.mark.ledger("TG3")
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_non_finite_units_are_counted_and_never_hidden(poison: float) -> None:
    hidden = torch.full((1, 2, 4), 0.5)
    hidden[0, 0, 0] = poison
    judged = health(hidden)
    assert judged.nonfinite == 1 / 8
    assert not math.isfinite(judged.rms)
    assert not math.isfinite(judged.max_abs)


@pytest.mark.ledger("TG3")
@settings(deadline=None)
@given(st.lists(st.floats(-1, 1, width=32), min_size=4, max_size=4), st.integers(1, 50))
def test_health_does_not_depend_on_the_number_of_environments(units: list[float], environments: int) -> None:
    one = torch.tensor(units).view(1, 1, 4)
    single, many = health(one), health(one.expand(1, environments, 4))
    assert many.rms == pytest.approx(single.rms, rel=1e-5)
    assert (many.max_abs, many.nonfinite) == (single.max_abs, single.nonfinite)
    assert many.saturation == pytest.approx(single.saturation, rel=1e-5)


def test_saturation_is_the_share_of_units_beyond_the_level() -> None:
    assert health(torch.tensor([0.95, -0.95, 0.9, 0.0])).saturation == 0.5


@pytest.mark.ledger("D6")
def test_health_takes_one_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    transfers: list[str] = []

    def counted(name: str) -> Any:
        original = getattr(Tensor, name)
        return lambda self, *args: transfers.append(name) or original(self, *args)

    for name in ("item", "tolist", "numpy", "__float__", "__bool__"):
        monkeypatch.setattr(Tensor, name, counted(name))
    health(torch.rand(2, 8, 16))
    assert transfers == ["tolist"]
