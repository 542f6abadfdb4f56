"""The rollout buffer, and advantages against a naive reference."""

import tracemalloc

import pytest
import torch
from esper_agent.algorithm.rollout_buffer import (
    EmptyRolloutError,
    RolloutBuffer,
    Step,
    generalized_advantages,
    next_values,
)
from esper_agent.algorithm.update import normalize_advantages
from esper_agent.networks.action_spec import ActionSpec
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

SPEC = ActionSpec("dict", ("op", "slot"), (3, 2), by_op=True, masked=True)


def make_buffer(n_steps: int = 12, n_envs: int = 3, length: int = 4, size: int = 5, layers: int = 2) -> RolloutBuffer:
    state = (torch.zeros(layers, n_envs, 6), torch.zeros(layers, n_envs, 6))
    return RolloutBuffer(n_steps, n_envs, length, size, SPEC, state)


def make_step(time: int, n_envs: int = 3, size: int = 5, **changes: Tensor | None) -> Step:
    generator = torch.Generator().manual_seed(time)
    no = torch.zeros(n_envs, dtype=torch.bool)
    fields: dict[str, Tensor | None] = {
        "observations": torch.randn(n_envs, size, generator=generator),
        "starts": torch.rand(n_envs, generator=generator) < 0.3,
        "decisions": ~no,
        "masks": torch.rand(SPEC.cells, SPEC.width, n_envs, generator=generator) < 0.5,
        "actions": torch.randint(0, 2, (2, n_envs), generator=generator),
        "rewards": torch.randn(n_envs, generator=generator),
        "terminated": no,
        "truncated": no,
        "bootstraps": None,
    }
    return Step(**{**fields, **changes})


def fill(buffer: RolloutBuffer, **changes: Tensor | None) -> list[Step]:
    steps = [make_step(time, buffer.n_envs, **changes) for time in range(buffer.n_steps)]
    for time, step in enumerate(steps):
        state = (torch.full_like(buffer.hidden[0], time), torch.full_like(buffer.cell[0], -time))
        buffer.add(step, state)
    return steps


def test_sequences_hold_every_step_once_in_order() -> None:
    buffer = make_buffer()
    steps = fill(buffer)
    batch = buffer.sequences()
    assert batch.count == 9
    assert batch.index.flatten().sort().values.tolist() == list(range(36))
    for sequence in range(9):
        chunk, env = divmod(sequence, 3)
        for offset in range(4):
            step, time = steps[chunk * 4 + offset], chunk * 4 + offset
            assert batch.index[sequence, offset] == time * 3 + env
            assert torch.equal(batch.observations[sequence, offset], step.observations[env])
            assert torch.equal(batch.actions[:, sequence, offset], step.actions[:, env])
            assert batch.starts[sequence, offset] == step.starts[env]
            legal = batch.legality.penalty[:, :, sequence, offset] == 0
            assert torch.equal(legal, step.masks[..., env])
        assert (batch.state[0][:, sequence] == chunk * 4).all()
        assert (batch.state[1][:, sequence] == -chunk * 4).all()
    assert batch.max_resets == batch.starts[:, 1:].sum(1).max()
    assert torch.equal(buffer.to_time(batch.index), torch.arange(36).view(12, 3))


def test_selected_sequences_are_those_sequences() -> None:
    buffer = make_buffer()
    fill(buffer)
    batch, rows = buffer.sequences(), torch.tensor([7, 2])
    part = batch.select(rows)
    assert torch.equal(part.observations, batch.observations[rows])
    assert torch.equal(part.legality.penalty, batch.legality.penalty[:, :, rows])
    assert torch.equal(part.state[1], batch.state[1][:, rows])


@pytest.mark.ledger("B1")
def test_states_are_kept_only_where_sequences_start() -> None:
    def bytes_of_states(n_steps: int, length: int) -> int:
        buffer = make_buffer(n_steps=n_steps, length=length)
        return buffer.hidden.nbytes + buffer.cell.nbytes

    assert bytes_of_states(12, 12) == bytes_of_states(120, 120)
    assert bytes_of_states(12, 4) == 3 * bytes_of_states(12, 12)


@pytest.mark.ledger("B3")
def test_adding_steps_allocates_nothing_that_stays() -> None:
    buffer, step = make_buffer(n_steps=4000, length=4000), make_step(0)
    state = (buffer.hidden[0], buffer.cell[0])
    for _ in range(1000):
        buffer.add(step, state)
    pointers = [getattr(buffer, name).data_ptr() for name in ("observations", "actions", "masks", "rewards")]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(2000):
        buffer.add(step, state)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 2000  # below one byte per step
    assert [getattr(buffer, n).data_ptr() for n in ("observations", "actions", "masks", "rewards")] == pointers


@pytest.mark.ledger("B6")
def test_a_step_beyond_the_capacity_is_refused() -> None:
    buffer = make_buffer()
    fill(buffer)
    with pytest.raises(IndexError, match="holds 12 steps"):
        buffer.add(make_step(0), (buffer.hidden[0], buffer.cell[0]))
    buffer.clear()
    fill(buffer)


@pytest.mark.ledger("U12")
def test_a_rollout_without_decisions_or_steps_cannot_be_learnt_from() -> None:
    buffer = make_buffer()
    with pytest.raises(EmptyRolloutError, match="0 of 12 steps"):
        buffer.sequences()
    fill(buffer, decisions=torch.zeros(3, dtype=torch.bool))
    with pytest.raises(EmptyRolloutError, match="0 decisions"):
        buffer.sequences()


@pytest.mark.ledger("B5", "U18")
def test_everything_of_a_rollout_lives_on_the_learners_device() -> None:
    state = (torch.zeros(1, 2, 4, device="meta"), torch.zeros(1, 2, 4, device="meta"))
    buffer = RolloutBuffer(4, 2, 2, 3, SPEC, state)
    tensors = [value for value in vars(buffer).values() if isinstance(value, Tensor)]
    assert len(tensors) == 12
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    values = torch.zeros(4, 2, device="meta")
    advantages = generalized_advantages(
        buffer.rewards, values, values, buffer.terminated, buffer.truncated, buffer.decisions, 0.99, 0.95
    )
    assert advantages.device.type == "meta"


@pytest.mark.ledger("B2")
@pytest.mark.parametrize(
    "spec",
    [
        ActionSpec("discrete", ("action",), (7,), by_op=False, masked=False),
        ActionSpec("multi_discrete", ("a", "b"), (2, 9), by_op=False, masked=True),
        SPEC,
    ],
)
def test_the_buffer_is_sized_from_the_spaces(spec: ActionSpec) -> None:
    buffer = RolloutBuffer(4, 2, 2, 3, spec, (torch.zeros(1, 2, 4), torch.zeros(1, 2, 4)))
    assert buffer.observations.shape == (4, 2, 3)
    assert buffer.actions.shape == (4, len(spec.heads), 2)
    assert (buffer.masks is not None) == spec.masked
    if buffer.masks is not None:
        assert buffer.masks.shape == (4, spec.cells, spec.width, 2)


def test_a_partly_filled_rollout_survives_saving() -> None:
    first, second = make_buffer(), make_buffer()
    steps = [make_step(time) for time in range(12)]
    for time, step in enumerate(steps):
        if time == 7:
            second.load_state_dict(first.state_dict())
        for buffer in (first, second) if time >= 7 else (first,):
            buffer.add(step, (torch.full_like(buffer.hidden[0], time), buffer.cell[0]))
    for name, tensor in first.state_dict().items():
        assert torch.equal(torch.as_tensor(tensor), torch.as_tensor(second.state_dict()[name])), name


def naive_advantages(
    rewards: Tensor, values: Tensor, next_value: Tensor, terminated: Tensor, truncated: Tensor, gamma: float, lam: float
) -> Tensor:
    """Lambda-weighted sums of n-step errors, one environment and one step at a time, O(T^2)."""
    steps, envs = rewards.shape
    result = torch.zeros(steps, envs, dtype=torch.float64)
    for env in range(envs):
        for start in range(steps):
            weight = 1.0
            for time in range(start, steps):
                after = 0.0 if terminated[time, env] else next_value[time, env].item()
                result[start, env] += weight * (rewards[time, env].item() + gamma * after - values[time, env].item())
                if terminated[time, env] or truncated[time, env]:
                    break
                weight *= gamma * lam
    return result


@pytest.mark.ledger("B7", "P1", "X19")
@given(
    st.integers(0, 10_000),
    st.integers(1, 15),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.2, 0.6]),
    st.sampled_from([0.0, 0.2, 0.6]),
    st.floats(0.0, 1.0),
    st.floats(0.0, 1.0),
)
@settings(max_examples=100, deadline=None)
def test_advantages_equal_the_naive_reference(
    seed: int, steps: int, envs: int, terminate: float, truncate: float, gamma: float, lam: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    buffer = make_buffer(n_steps=steps, n_envs=envs, length=steps)
    terminated = torch.rand(steps, envs, generator=generator) < terminate
    truncated = (torch.rand(steps, envs, generator=generator) < truncate) & ~terminated
    values = torch.randn(steps, envs, generator=generator)
    last, finals = torch.randn(envs, generator=generator), torch.randn(steps, envs, generator=generator)
    for time in range(steps):
        flags = {"terminated": terminated[time], "truncated": truncated[time]}
        finals_now = finals[time] if truncated[time].any() else None
        buffer.add(make_step(time, envs, **flags, bootstraps=finals_now), (buffer.hidden[0], buffer.cell[0]))
    next_value = next_values(buffer, values, last)
    for time in range(steps):
        for env in range(envs):
            after = values[time + 1, env] if time + 1 < steps else last[env]
            assert next_value[time, env] == (finals[time, env] if truncated[time, env] else after)
    ours = generalized_advantages(
        buffer.rewards, values, next_value, terminated, truncated, buffer.decisions, gamma, lam
    )
    expected = naive_advantages(buffer.rewards, values, next_value, terminated, truncated, gamma, lam)
    torch.testing.assert_close(ours.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.ledger("P1")
def test_environments_do_not_leak_into_each_other() -> None:
    torch.manual_seed(0)
    rewards, values, next_value = torch.randn(3, 9, 4).unbind()
    ended = torch.rand(9, 4) < 0.2
    no = torch.zeros_like(ended)
    together = generalized_advantages(rewards, values, next_value, ended, no, ~no, 0.9, 0.8)
    for env in range(4):
        alone = generalized_advantages(
            *(part[:, env : env + 1] for part in (rewards, values, next_value, ended, no, ~no)), 0.9, 0.8
        )
        assert torch.equal(together[:, env : env + 1], alone)


@pytest.mark.ledger("U11", "U12")
def test_a_tiny_spread_of_advantages_is_not_blown_up() -> None:
    everywhere, floor = torch.arange(64), torch.tensor(1e-4)
    constant = torch.full((8, 8), 3.7)
    assert normalize_advantages(constant, everywhere, floor).abs().max() == 0
    tiny = constant + 1e-9 * torch.randn(8, 8, dtype=torch.float64)
    assert normalize_advantages(tiny, everywhere, floor.double()).abs().max() <= 1e-8 / 1e-4
    assert normalize_advantages(torch.randn(1, 1), torch.tensor([0]), floor).isfinite().all()


@pytest.mark.ledger("U11")
def test_only_decision_steps_set_the_scale() -> None:
    advantages = torch.randn(6, 4, dtype=torch.float64)
    advantages[0] = 1e6
    decided = torch.arange(4, 24)
    scaled = normalize_advantages(advantages, decided, torch.tensor(1e-4).double()).flatten()[decided]
    assert scaled.mean().item() == pytest.approx(0, abs=1e-12)
    assert scaled.std(correction=0).item() == pytest.approx(1, abs=1e-12)


@pytest.mark.ledger("U23")
def test_advantages_are_computed_without_touching_their_inputs() -> None:
    rewards, values, next_value = torch.randn(3, 5, 2).unbind()
    flags = torch.zeros(5, 2, dtype=torch.bool)
    before = [(part.data_ptr(), part._version) for part in (rewards, values, next_value)]
    advantages = generalized_advantages(rewards, values, next_value, flags, flags, ~flags, 0.9, 0.9)
    version = advantages._version
    normalize_advantages(advantages, torch.arange(10), torch.tensor(1e-4))
    assert [(part.data_ptr(), part._version) for part in (rewards, values, next_value)] == before
    assert advantages._version == version
