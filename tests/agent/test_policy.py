"""The network: memory that resets exactly, shapes that are checked, initialisation that is what it says."""

import inspect
import math

import pytest
import torch
from action_cases import random_mask, specs
from esper_agent import PPOConfig
from esper_agent.algorithm.acting import act
from esper_agent.networks.action_spec import ActionSpec
from esper_agent.networks.distribution import Legality
from esper_agent.networks.gru import ResettingGRU
from esper_agent.networks.lstm import ResettingLSTM, set_forget_bias
from esper_agent.networks.policy import Policy
from esper_agent.networks.recurrence import ResettingRecurrence
from hypothesis import given, settings
from hypothesis import strategies as st
from precision import in_float64
from torch import nn

GROWTH = ActionSpec("dict", ("op", "slot", "blueprint"), (3, 2, 4), by_op=True, masked=True)
PLAIN = ActionSpec("discrete", ("action",), (4,), by_op=False, masked=False)
OBSERVATION = 5


def make_policy(spec: ActionSpec = GROWTH, **changes: object) -> Policy:
    torch.manual_seed(0)
    return Policy(OBSERVATION, spec, PPOConfig(**{"policy_gain": 1.0, **changes}))


def penalty(spec: ActionSpec) -> torch.Tensor:
    return Legality.of(spec, spec.padding_mask()[..., None, None]).penalty


MEMORIES = (ResettingLSTM, ResettingGRU)


def unrolled(memory: ResettingRecurrence, inputs, state, starts) -> torch.Tensor:
    """The reference: torch's own layers, one step at a time, with the state set to zero at every start."""
    hidden, cell = state
    outputs = []
    for time in range(inputs.shape[1]):
        keep = (~starts[:, time]).to(inputs.dtype)[None, :, None]
        hidden, cell = hidden * keep, cell * keep
        step = inputs[:, time : time + 1]
        for index, layer in enumerate(memory.layers):
            h, c = hidden[index : index + 1], cell[index : index + 1]
            if isinstance(layer, nn.LSTM):
                step, (h, c) = layer(step, (h, c))
            else:
                step, h = layer(step, h)
            hidden = torch.cat([hidden[:index], h, hidden[index + 1 :]])
            cell = torch.cat([cell[:index], c, cell[index + 1 :]])
        outputs.append(step)
    return torch.cat(outputs, 1)


@pytest.mark.ledger("U2")
@pytest.mark.parametrize("kind", MEMORIES)
@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(1, 9), st.sampled_from([0.0, 0.1, 0.5, 1.0]))
@settings(max_examples=60, deadline=None)
@in_float64()
def test_one_call_with_resets_equals_step_by_step(
    kind: type[ResettingRecurrence], seed: int, layers: int, time: int, share: float
) -> None:
    torch.manual_seed(seed)
    lstm = kind(3, 6, layers, forget_bias=1.0)
    for name, parameter in lstm.named_parameters():
        if "bias" in name:
            nn.init.normal_(parameter)
    inputs = torch.randn(4, time, 3, requires_grad=True)
    starts = torch.rand(4, time) < share
    state = tuple(torch.randn(layers, 4, width) for width in lstm.widths)
    ours = lstm(inputs, state, starts, int(starts[:, 1:].sum(1).max()) if time > 1 else 0)
    reference = unrolled(lstm, inputs, state, starts)
    torch.testing.assert_close(ours, reference, atol=1e-12, rtol=1e-12)
    weights = torch.randn_like(ours)
    leaves = [inputs, *lstm.parameters()]
    for got, expected in zip(
        torch.autograd.grad((ours * weights).sum(), leaves),
        torch.autograd.grad((reference * weights).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(got, expected, atol=1e-11, rtol=1e-9)


@pytest.mark.parametrize("kind", MEMORIES)
def test_nothing_passes_an_episode_start(kind: type[ResettingRecurrence]) -> None:
    lstm = kind(3, 6, 2, forget_bias=1.0)
    inputs = torch.randn(1, 8, 3, requires_grad=True)
    starts = torch.zeros(1, 8, dtype=torch.bool)
    starts[0, 5] = True
    state = tuple(part.requires_grad_() for part in lstm.initial_state(1))
    output = lstm(inputs, state, starts, 1)
    gradients = torch.autograd.grad(output[0, 5:].sum(), [inputs, *state], materialize_grads=True)
    assert gradients[0][0, :5].abs().max() == 0.0
    assert not any(part.any() for part in gradients[1:])


@in_float64()
def test_spare_room_for_resets_changes_nothing() -> None:
    lstm = ResettingLSTM(3, 6, 1, forget_bias=1.0)
    inputs, starts = torch.randn(2, 7, 3), torch.zeros(2, 7, dtype=torch.bool)
    starts[0, 3] = True
    state = (torch.randn(1, 2, 6), torch.randn(1, 2, 6))
    exact, roomy = lstm(inputs, state, starts, 1), lstm(inputs, state, starts, 5)
    torch.testing.assert_close(exact, roomy, atol=1e-12, rtol=1e-12)


@pytest.mark.ledger("P8", "N7", "Y33")
@pytest.mark.parametrize("spec", [PLAIN, GROWTH], ids=["discrete", "growth"])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("memory", ["lstm", "gru", "none"])
@pytest.mark.parametrize("skip", [False, True])
@in_float64()
def test_acting_step_by_step_equals_evaluating_the_sequence(
    spec: ActionSpec, layers: int, memory: str, skip: bool
) -> None:
    policy = make_policy(spec, lstm_layers=layers, lstm_size=16, memory=memory, memory_skip=skip)
    generator = torch.Generator().manual_seed(0)
    steps, envs = 12, 3
    observations = torch.randn(envs, steps, OBSERVATION, generator=generator)
    starts = torch.rand(envs, steps, generator=generator) < 0.3
    masks = random_mask(spec, generator, envs, steps)
    state = first = policy.initial_state(envs)
    actions, log_probs = [], []
    for time in range(steps):
        chosen = act(policy, "float32", observations[:, time], state, starts[:, time], masks[..., time], generator)
        state = chosen.state
        actions.append(chosen.actions)
        log_probs.append(chosen.distribution.log_prob(chosen.actions))
        assert not chosen.actions.is_inference()
    legality = Legality.of(spec, masks)
    evaluation = policy(observations, first, starts, steps, legality.penalty)
    evaluated = evaluation.distribution.log_prob(torch.stack(actions, -1))
    torch.testing.assert_close(torch.stack(log_probs, 1), evaluated.detach(), atol=1e-11, rtol=1e-11)
    assert evaluated.requires_grad


@pytest.mark.ledger("U15")
def test_values_do_not_depend_on_masks() -> None:
    policy, generator = make_policy(), torch.Generator().manual_seed(0)
    observations, starts = torch.randn(2, 4, OBSERVATION), torch.zeros(2, 4, dtype=torch.bool)
    values = [
        policy(observations, policy.initial_state(2), starts, 0, Legality.of(GROWTH, masks).penalty).values
        for masks in (random_mask(GROWTH, generator, 2, 4), random_mask(GROWTH, generator, 2, 4))
    ]
    assert torch.equal(*values)
    assert list(inspect.signature(policy.value).parameters) == ["observations", "state", "starts"]


@pytest.mark.ledger("N1", "P10")
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_the_initial_state_fits_the_modules(layers: int) -> None:
    policy = make_policy(lstm_layers=layers, lstm_size=7)
    state = policy.initial_state(4)
    assert [tuple(part.shape) for part in state] == [(layers, 4, 7)] * 2
    observations, starts = torch.randn(4, 2, OBSERVATION), torch.zeros(4, 2, dtype=torch.bool)
    policy(observations, state, starts, 0, penalty(GROWTH))
    for wrong in (policy.initial_state(3), (state[0][:, :, :5], state[1][:, :, :5])):
        with pytest.raises(ValueError, match=rf"allowed: \[layers, batch, size\] = \({layers}, 4, 7\)"):
            policy(observations, wrong, starts, 0, penalty(GROWTH))


@pytest.mark.ledger("N7")
@pytest.mark.parametrize("shape", [(4, OBSERVATION), (4, 2, OBSERVATION + 1), (1, 4, 2, OBSERVATION)])
def test_observations_are_batch_time_features(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"allowed: \[batch, time, 5\]"):
        make_policy().encode(torch.zeros(shape))


@pytest.mark.ledger("N2")
def test_both_norms_can_be_switched_off_and_the_choice_is_written_down() -> None:
    def norms(policy: Policy) -> int:
        return sum(isinstance(module, nn.LayerNorm) for module in policy.modules())

    assert norms(make_policy()) == 2
    assert norms(make_policy(encoder_norm=False)) == norms(make_policy(recurrent_norm=False)) == 1
    assert norms(make_policy(encoder_norm=False, recurrent_norm=False)) == 0
    assert "LayerNorm stands on the encoder's output and on the memory's output" in inspect.getdoc(PPOConfig)


@pytest.mark.ledger("N3")
@pytest.mark.parametrize("value", [-2.0, 0.0, 1.0, 3.0])
def test_the_forget_bias_retains_what_it_says(value: float) -> None:
    lstm = nn.LSTM(2, 3, batch_first=True)
    set_forget_bias(lstm, value)
    nn.init.zeros_(lstm.weight_ih_l0)
    nn.init.zeros_(lstm.weight_hh_l0)
    cell = torch.full((1, 1, 3), 0.7)
    _, (_, after) = lstm(torch.randn(1, 1, 2), (torch.randn(1, 1, 3), cell))
    torch.testing.assert_close(after, cell / (1 + math.exp(-value)))


@pytest.mark.ledger("N4")
def test_the_first_policy_is_nearly_uniform_and_the_trunk_still_learns() -> None:
    policy = make_policy(policy_gain=PPOConfig().policy_gain)
    observations, starts = torch.randn(8, 16, OBSERVATION), torch.zeros(8, 16, dtype=torch.bool)
    legality = Legality.of(GROWTH, GROWTH.padding_mask()[..., None, None])
    evaluation = policy(observations, policy.initial_state(8), starts, 0, legality.penalty)
    assert evaluation.distribution.head_entropy(legality.inverse_capacity).min() >= 0.99
    evaluation.distribution.log_prob(torch.zeros(3, 8, 16, dtype=torch.long)).mean().backward()
    assert torch.stack([p.grad.norm() for p in policy.encoder.parameters()]).min() > 0


def test_a_new_policy_prefers_idling_to_each_other_op_by_its_bias() -> None:
    policy = make_policy(policy_gain=1e-9, idle_bias=2.0)
    observations, starts = torch.randn(2, 3, OBSERVATION), torch.zeros(2, 3, dtype=torch.bool)
    p = policy(observations, policy.initial_state(2), starts, 0, penalty(GROWTH)).distribution.p
    torch.testing.assert_close(p[0, 0], math.exp(2.0) * p[0, 1])
    torch.testing.assert_close(p[0, 1], p[0, 2])
    torch.testing.assert_close(p[1, 0], p[1, 1])  # the other heads start uniform


@pytest.mark.ledger("P9")
def test_initial_weights_are_orthogonal_with_their_gains() -> None:
    policy = make_policy(policy_gain=0.01, value_gain=1.0, head_hidden=32, lstm_size=32)
    for layer, gain in (
        (policy.encoder[2], 2**0.5),
        (policy.decoder.actor, 2**0.5),
        (policy.decoder.critic, 2**0.5),
        (policy.decoder.value, 1.0),
        (policy.decoder.heads["op"], 0.01),
        (policy.decoder.heads["blueprint"], 0.01),
    ):
        weight = layer.weight.detach()
        torch.testing.assert_close(weight @ weight.T, torch.eye(len(weight)) * gain**2, atol=1e-5, rtol=0)
        assert layer.bias.abs().max() == 0


@pytest.mark.ledger("N5", "N6")
@pytest.mark.parametrize("head_hidden", [7, 32, 256])
@pytest.mark.parametrize("sizes", [(9,), (8, 6), (4, 5, 6)])
def test_widths_and_depth_come_from_the_config(head_hidden: int, sizes: tuple[int, ...]) -> None:
    policy = make_policy(head_hidden=head_hidden, encoder_sizes=sizes)
    assert policy.decoder.actor.out_features == policy.decoder.critic.out_features == head_hidden
    assert tuple(layer.out_features for layer in policy.encoder if isinstance(layer, nn.Linear)) == sizes


@pytest.mark.ledger("X17")
def test_later_heads_see_the_op_unless_told_otherwise() -> None:
    for condition_on_op in (True, False):
        policy = make_policy(condition_on_op=condition_on_op)
        logits, _ = policy.decoder(torch.randn(1, 1, policy.decoder.norm.normalized_shape[0]))
        rows = logits[1:].view(3, 2, 4, 1, 1)
        assert torch.allclose(rows[0], rows[1]) != condition_on_op


@pytest.mark.ledger("U21")
@given(specs(), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
@in_float64()
def test_padded_logits_hold_every_heads_own_layer(spec: ActionSpec, seed: int) -> None:
    torch.manual_seed(seed)
    policy = Policy(OBSERVATION, spec, PPOConfig(policy_gain=1.0, lstm_size=6, head_hidden=8))
    features = torch.randn(2, 3, 6)
    logits, _ = policy.decoder(features)
    actor = policy.decoder.actor(policy.decoder.norm(features))
    for row in range(spec.rows):
        for head, (name, size) in enumerate(zip(spec.heads, spec.sizes, strict=True)):
            shift = policy.decoder.op_embedding[row] if head and policy.decoder.op_embedding is not None else 0.0
            expected = policy.decoder.heads[name](torch.tanh(actor + shift)).movedim(-1, 0)
            cell = 0 if head == 0 else 1 + row * spec.arguments + head - 1
            torch.testing.assert_close(logits[cell, :size], expected, atol=1e-12, rtol=1e-12)


def test_parameter_groups_cover_every_parameter_once() -> None:
    policy = make_policy()
    groups = policy.parameter_groups()
    assert list(groups) == ["trunk", "head_op", "head_slot", "head_blueprint", "critic"]
    grouped = [id(p) for group in groups.values() for p in group]
    assert sorted(grouped) == sorted(id(p) for p in policy.parameters())


def values_of(policy: Policy, observations: torch.Tensor) -> torch.Tensor:
    steps = observations.shape[1]
    starts = torch.zeros(len(observations), steps, dtype=torch.bool)
    state = policy.initial_state(len(observations))
    return policy(observations, state, starts, 0, penalty(policy.actions)).values


@pytest.mark.parametrize(("memory", "remembers"), [("lstm", True), ("gru", True), ("none", False)])
def test_only_a_policy_without_memory_forgets_the_step_before(memory: str, remembers: bool) -> None:
    policy, observations = make_policy(memory=memory), torch.randn(1, 2, OBSERVATION)
    before = values_of(policy, observations)[0, 1]
    observations[0, 0] += 1.0
    assert bool(values_of(policy, observations)[0, 1] != before) is remembers


@pytest.mark.parametrize("size", [16, 24], ids=["the encoder's width", "another width"])
def test_a_silent_memory_hides_the_step_unless_there_is_a_path_around_it(size: int) -> None:
    first, second = torch.randn(2, 1, 1, OBSERVATION)
    for skip in (False, True):
        policy = make_policy(encoder_sizes=(16,), lstm_size=size, memory_skip=skip)
        for parameter in policy.memory.parameters():
            nn.init.zeros_(parameter)
        assert bool(values_of(policy, first) != values_of(policy, second)) is skip


def test_a_policy_without_memory_has_no_weights_for_one() -> None:
    def count(**changes: object) -> int:
        return sum(
            part.numel() for part in make_policy(**{"encoder_sizes": (16,), "lstm_size": 16, **changes}).parameters()
        )

    gate = 16 * 16 + 16 * 16 + 16 + 16
    assert count(memory="lstm") - count(memory="gru") == gate
    assert count(memory="gru") - count(memory="none") == 3 * gate + 2 * 16  # its gates and its LayerNorm
    assert count(memory="none", memory_skip=True, lstm_size=24) == count(memory="none")
