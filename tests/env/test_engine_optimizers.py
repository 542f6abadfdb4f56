"""Row optimisers equal torch.optim in a loop, each row with its own learning rate, birth and gradient norm."""

import pytest
import torch
from engine_tools import plain_optimizer
from esper_env.fused.optimizers import SGD, AdamW, Optimizer, clip_factors
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

SIZE = 5
OPTIMIZERS = [SGD(0.0), SGD(0.9), SGD(0.9, 0.1), AdamW(), AdamW(0.8, 0.95, 1e-5, 0.1), AdamW(weight_decay=0.0)]


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.integers(0, 1000))
def test_rows_born_at_different_times_follow_torch(optimizer: Optimizer, births: list[int], seed: int) -> None:
    n, steps = len(births), 8
    start, grads = drawn(seed, n, SIZE), drawn(seed + 1, steps, n, SIZE)
    lr = torch.linspace(0.01, 0.3, n, dtype=torch.float64)
    plain = [start[i].clone().requires_grad_() for i in range(n)]
    loops = [plain_optimizer(optimizer, [plain[i]], lr[i].item()) for i in range(n)]
    values, state = start[:0].clone(), optimizer.initial(start[:0])
    members: list[int] = []
    for step in range(steps):
        newborn = [i for i in range(n) if births[i] == step]
        members += newborn
        values = torch.cat([values, start[newborn]])
        state = tuple(torch.cat(pair) for pair in zip(state, optimizer.initial(start[newborn]), strict=True))
        optimizer.step(values, grads[step, members], state, lr[members].unsqueeze(1))
        for i in members:
            plain[i].grad = grads[step, i].clone()
            loops[i].step()
    expected = torch.stack([plain[i].detach() for i in members])
    torch.testing.assert_close(values, expected, rtol=1e-12, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.floats(0.01, 10.0), st.integers(0, 1000))
def test_clipping_is_per_row(n: int, max_norm: float, seed: int) -> None:
    grad = drawn(seed, n, SIZE) * torch.logspace(-3, 2, n, dtype=torch.float64).unsqueeze(1)
    clipped = grad * clip_factors(grad.norm(dim=1), max_norm).unsqueeze(1)
    for i in range(n):
        parameter = torch.zeros(SIZE, dtype=torch.float64, requires_grad=True)
        parameter.grad = grad[i].clone()
        nn.utils.clip_grad_norm_([parameter], max_norm)
        torch.testing.assert_close(clipped[i], parameter.grad, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("optimizer", [SGD(0.9, 0.1), AdamW()], ids=str)
def test_a_step_works_in_place_on_a_window(optimizer: Optimizer) -> None:
    values, grad = drawn(0, 4, SIZE), drawn(1, 2, SIZE)
    before, state = values.clone(), optimizer.initial(values)
    optimizer.step(values[1:3], grad, tuple(part[1:3] for part in state), torch.full((2, 1), 0.1).double())
    assert torch.equal(values[[0, 3]], before[[0, 3]])
    assert not torch.isclose(values[1:3], before[1:3]).any()
    assert all(bool((part[[0, 3]] == 0).all()) and bool((part[1:3] != 0).all()) for part in state)


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (SGD, "momentum", -0.1),
        (SGD, "momentum", 1.5),
        (SGD, "weight_decay", -1.0),
        (AdamW, "beta1", 1.0),
        (AdamW, "beta2", 1.0),
        (AdamW, "beta2", float("nan")),
        (AdamW, "epsilon", 0.0),
        (AdamW, "weight_decay", 2.0),
    ],
)
def test_bad_settings_are_named(kind: type, field: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"{kind.__name__}.{field} is {value}; allowed: "):
        kind(**{field: value})
