"""The update: ratios to the old policy, whole sequences, joint KL, bounded steps, honest metrics."""

import copy
import inspect
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from esper_agent import FactoredRecurrentPPO, PPOConfig
from esper_agent.algorithm.acting import act
from esper_agent.algorithm.loss import Counts, LossSettings, Targets, k3, mean_entropies, surrogate, value_loss
from esper_agent.diagnostics.gradients import clip_gradients
from esper_agent.diagnostics.metrics import by_label
from gymnasium.vector import AutoresetMode
from precision import ulps
from stable_baselines3.common.callbacks import CallbackList
from torch import Tensor
from toy_envs import MaskedHeads, OpDependentSlot, hidden_cartpole_vector
from update_tools import FEW_ULPS, collect, deviation, loss_of, make_model, with_targets

ENVS = {
    "same step": lambda: MaskedHeads(6),
    "next step": lambda: MaskedHeads(6, mode=AutoresetMode.NEXT_STEP),
    "torch": lambda: MaskedHeads(6, output="torch"),
    "cartpole": lambda: hidden_cartpole_vector(6),
}


@pytest.mark.ledger("U2", "P8")
@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize("length", [1, 4, 12, 24])
@pytest.mark.parametrize("layers", [1, 2])
def test_the_first_ratio_is_one_for_any_chunking_with_masks_and_resets(env: str, length: int, layers: int) -> None:
    model = make_model(ENVS[env](), sequence_length=length, lstm_layers=layers)
    model.learn(6 * 24 * 2)  # a policy that has moved, normalisers with statistics
    batch, targets, partition = with_targets(model)
    assert batch.starts[:, 1:].any() or length == 1
    for rows in partition:
        assert deviation(model, batch.select(rows), targets.select(rows)) < FEW_ULPS
    assert deviation(model, batch, targets) < FEW_ULPS  # other minibatches than the old policy's


@pytest.mark.ledger("U3", "P8")
@pytest.mark.parametrize("env", ENVS)
def test_the_old_policy_is_the_one_that_acted(env: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(ENVS[env]())
    model.learn(6 * 24 * 2)
    taken: list[Tensor] = []

    def watched(*args: Any) -> Any:
        chosen = act(*args)
        taken.append(chosen.distribution.log_prob(chosen.actions))
        return chosen

    monkeypatch.setattr("esper_agent.algorithm.collector.act", watched)
    batch, targets, _ = with_targets(model)
    acted = model.buffer.to_sequences(torch.stack(taken))
    assert ulps((targets.head_log_probs.sum(0) - acted)[batch.decisions], acted[batch.decisions]) < 2 * FEW_ULPS


@pytest.mark.ledger("U3")
def test_statistics_are_frozen_in_a_rollout_and_take_in_each_rollout_once() -> None:
    model = make_model()
    moments = model.policy.normalizer.moments
    seen = []
    for rollout in range(3):
        before = copy.deepcopy(model.policy.normalizer.state_dict())
        collect(model)
        assert all(torch.equal(before[name], value) for name, value in model.policy.normalizer.state_dict().items())
        assert moments.updates == rollout
        seen.append(model.buffer.observations.flatten(0, 1).double().clone())
        model.update()
        assert moments.updates == rollout + 1
        torch.testing.assert_close(moments.mean, torch.cat(seen).mean(0), rtol=1e-9, atol=1e-12)


@pytest.mark.ledger("U2", "U6")
def test_learning_at_rate_zero_leaves_the_policy_and_its_kl_at_zero() -> None:
    model = make_model(learning_rate=0.0)
    collect(model)
    metrics = model.update()
    assert metrics["approx_kl"] < 1e-10  # the square of a log-ratio
    assert abs(metrics["exact_kl"]) < 1e-5
    assert metrics["max_abs_log_ratio"] < 1e-5
    assert not metrics["stopped_early"]


@pytest.mark.ledger("U1", "B4")
def test_every_epoch_visits_every_sequence_once_in_a_seeded_order() -> None:
    first, second = make_model(), make_model()
    orders = []
    for _ in range(4):
        ours, theirs = first.learner.partition(18), second.learner.partition(18)
        assert [len(part) for part in ours] == [6, 6, 6]
        order = torch.cat(ours).tolist()
        assert sorted(order) == list(range(18))
        assert order == torch.cat(theirs).tolist()
        orders.append(tuple(order))
    assert len(set(orders)) == 4


@pytest.mark.ledger("U1")
def test_one_minibatch_gives_the_full_batch_gradient_and_equal_ones_average_to_it() -> None:
    model = make_model()
    batch, targets, _ = with_targets(model)
    parameters = list(model.policy.parameters())

    def gradient(rows: Tensor) -> Tensor:
        loss = loss_of(model.learner, batch.select(rows), targets.select(rows), entropy_coefs=torch.zeros(3))
        grads = torch.autograd.grad(loss.total, parameters, allow_unused=True)
        return torch.cat([g.flatten() for g in grads if g is not None])

    full = gradient(torch.arange(batch.count))
    shuffled = gradient(torch.randperm(batch.count))
    rounding = 1e-5 * full.abs().max().item()
    torch.testing.assert_close(full, shuffled, atol=rounding, rtol=0)
    parts = torch.stack([gradient(rows) for rows in torch.randperm(batch.count).chunk(3)]).mean(0)
    torch.testing.assert_close(full, parts, atol=rounding, rtol=0)


def test_the_loss_does_not_depend_on_the_order_of_environments_or_on_padding() -> None:
    model = make_model()
    batch, targets, _ = with_targets(model)
    loss = loss_of(model.learner, batch, targets)
    order = torch.randperm(batch.count)
    shuffled = loss_of(model.learner, batch.select(order), targets.select(order))
    roomy = replace(batch.select(order), max_resets=batch.max_resets + 5)
    padded = loss_of(model.learner, roomy, targets.select(order))
    for other in (shuffled, padded):
        torch.testing.assert_close(other.total, loss.total, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(other.metrics, loss.metrics, atol=1e-5, rtol=1e-5)


@pytest.mark.ledger("P4")
def test_steps_that_only_reset_count_for_nothing() -> None:
    model = make_model(ENVS["next step"]())
    batch, targets, _ = with_targets(model)
    idle = ~batch.decisions
    assert 0 < idle.sum() < idle.numel()
    loss = loss_of(model.learner, batch, targets)
    poisoned = replace(
        targets, advantages=targets.advantages.masked_fill(idle, 1e6), returns=targets.returns + idle * 1e6
    )
    other = loss_of(model.learner, batch, poisoned)
    assert torch.equal(loss.total, other.total)
    assert Counts.of(batch).steps == batch.decisions.sum()
    nothing = replace(batch, decisions=torch.zeros_like(batch.decisions))
    assert loss_of(model.learner, nothing, targets).total == 0.0


@pytest.mark.ledger("U4", "TG7", "X6")
def test_waiting_steps_do_not_dilute_a_heads_entropy() -> None:
    model = make_model()
    batch, _, _ = with_targets(model)
    heads = model.learner.evaluate(batch).distribution.head_entropy(batch.legality.inverse_capacity)
    choices = Counts.of(batch).choices
    before = mean_entropies(heads, batch.decisions, choices)
    waiting = batch.decisions.clone()
    mask = batch.legality.inverse_capacity[1:].view(3, 2, *waiting.shape)[:, 1].sum(0) > 0  # blueprint has a choice
    chosen = replace(batch, decisions=waiting & mask)
    same = Counts.of(chosen).choices
    after = mean_entropies(heads, chosen.decisions, same)
    assert mask.sum() < mask.numel()
    torch.testing.assert_close(before[2], after[2])
    assert choices[2] == same[2]


@pytest.mark.ledger("U5")
def test_the_loss_falls_by_exactly_the_coefficient_per_unit_of_entropy() -> None:
    coefs = {"op": 0.3, "slot": 0.05, "blueprint": 0.7}
    model = make_model(ent_coef=coefs)
    batch, targets, _ = with_targets(model)
    assert model.learner.entropy.coefs(0.4) == coefs
    base = loss_of(model.learner, batch, targets)
    for index, (_head, coef) in enumerate(coefs.items()):
        shifted = torch.tensor(list(coefs.values()))
        shifted[index] += 1.0
        moved = loss_of(model.learner, batch, targets, entropy_coefs=shifted)
        assert (base.total - moved.total).item() == pytest.approx(base.metrics["entropy"][index].item(), rel=1e-4)
        rest = torch.tensor([value if at != index else 0.0 for at, value in enumerate(coefs.values())])
        none = loss_of(model.learner, batch, targets, entropy_coefs=rest)
        paid = coef * base.metrics["entropy"][index].item()
        assert (none.total - base.total).item() == pytest.approx(paid, rel=1e-3)


@pytest.mark.ledger("U5")
def test_entropies_in_nats_are_paid_without_the_divisor_and_reported_with_it() -> None:
    model = make_model(entropy_unit="nats", ent_coef=0.0)
    batch, targets, _ = with_targets(model)
    base = loss_of(model.learner, batch, targets)
    paid = base.total - loss_of(model.learner, batch, targets, entropy_coefs=torch.tensor([1.0, 0.0, 0.0])).total
    op = model.learner.evaluate(batch).distribution.p[0]
    nats = torch.special.entr(op).sum(0)
    shares = nats / (batch.legality.penalty[0] == 0).sum(0).expand_as(nats).float().log()
    chosen = batch.decisions & shares.isfinite()
    assert paid.item() == pytest.approx(nats[chosen].mean().item(), rel=1e-4)
    assert base.metrics["entropy"][0].item() == pytest.approx(shares[chosen].mean().item(), rel=1e-4)


@pytest.mark.ledger("U5")
def test_entropy_coefficients_are_scheduled_and_must_name_the_heads() -> None:
    model = make_model(ent_coef={"op": lambda remaining: 0.1 * remaining, "slot": 0.2, "blueprint": 0.0})
    assert model.learner.entropy.coefs(0.5) == {"op": 0.05, "slot": 0.2, "blueprint": 0.0}
    with pytest.raises(ValueError, match="allowed: exactly"):
        make_model(ent_coef={"op": 0.1})


@pytest.mark.ledger("U6", "X14", "P3")
def test_a_head_that_was_never_used_adds_nothing_to_the_kl() -> None:
    model = make_model()
    batch, targets, _ = with_targets(model)
    used = batch.legality.inverse_capacity[1:].view(3, 2, *batch.starts.shape)[:, 1]
    row = used.gather(0, batch.actions[:1])[0]  # whether the chosen op uses the blueprint
    unused = replace(batch, decisions=batch.decisions & (row == 0))
    with torch.no_grad():
        model.policy.decoder.heads["blueprint"].weight += 3.0
    loss = loss_of(model.learner, unused, targets)
    assert loss.metrics["approx_kl"] == 0.0
    assert loss.log_ratios.abs().max() == 0.0
    assert loss_of(model.learner, batch, targets).metrics["approx_kl"] > 0.0


@pytest.mark.ledger("U6", "X14")
def test_the_estimated_kl_agrees_with_the_exact_one() -> None:
    model = make_model(n_steps=480, sequence_length=24)
    batch, targets, _ = with_targets(model)
    with torch.no_grad():
        for head in model.policy.decoder.heads.values():
            head.weight += 0.1 * torch.randn_like(head.weight)
    loss = loss_of(model.learner, batch, targets)
    assert loss.metrics["exact_kl"] > 1e-3
    assert loss.metrics["approx_kl"].item() == pytest.approx(loss.metrics["exact_kl"].item(), rel=0.15)
    assert (k3(torch.randn(100)) >= 0).all()


@pytest.mark.ledger("U6", "P2")
@pytest.mark.parametrize("peek", [True, False])
def test_an_update_stops_before_the_step_that_would_go_too_far(peek: bool) -> None:
    model = make_model(learning_rate=0.05, target_kl=0.01, n_epochs=5)
    model.learner.may_peek = peek
    collect(model)
    taken: list[dict[str, Tensor]] = []
    step = model.learner.optimizer.step

    def watch(proceed: Tensor) -> None:
        before = copy.deepcopy(model.policy.state_dict())
        step(proceed)
        moved = any(not torch.equal(before[name], value) for name, value in model.policy.state_dict().items())
        taken.append(moved)

    model.learner.optimizer.step = watch
    metrics = model.update()
    assert metrics["stopped_early"]
    assert metrics["exact_kl_max"] > 0.01
    steps_taken = int(metrics["minibatches"])
    assert taken[:steps_taken] == [True] * steps_taken
    assert not any(taken[steps_taken:])
    assert len(taken) == (steps_taken + 1 if peek else 15)
    steps = {int(state["step"]) for state in model.learner.optimizer.state_dict().values()}
    assert steps == {steps_taken} == {model.learner.counters.optimizer_steps}


@pytest.mark.ledger("U6", "U17")
def test_stopping_on_the_device_gives_the_same_weights_as_stopping_on_the_host() -> None:
    models = [make_model(learning_rate=0.05, target_kl=0.01, n_epochs=5) for _ in range(2)]
    for model, peek in zip(models, (True, False), strict=True):
        model.learner.may_peek = peek
        collect(model)
        model.update()
    first, second = (model.policy.state_dict() for model in models)
    assert all(torch.equal(first[name], second[name]) for name in first)


class Transfers:
    """Counts every way in which a tensor's content reaches Python."""

    names = ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__", "nonzero")

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for name in self.names:
            monkeypatch.setattr(Tensor, name, self._counted(getattr(Tensor, name)))

    def _counted(self, method: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return method(*args, **kwargs)

        return call


@pytest.mark.ledger("U17", "U18")
def test_an_update_reads_the_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    model.learner.may_peek = False  # as on an accelerator
    batch, last_values = collect(model), model.collector.last_values()
    with monkeypatch.context() as patch:
        transfers = Transfers(patch)
        settings = model.learner.settings(1.0)
        partition = model.learner.partition(batch.count)
        old_policy = model.learner.old_policy(batch, partition)
        targets, _ = model.learner.targets(model.buffer, batch, old_policy, last_values)
        model._epochs(batch, targets, settings, partition)
        assert transfers.count == 0
        patch.setattr(model.buffer, "sequences", lambda: batch)
        model.update()
        assert transfers.count == 2  # .cpu() and .numpy() of one and the same transfer


@pytest.mark.ledger("U9", "X8")
def test_the_first_update_does_not_depend_on_the_scale_of_the_rewards() -> None:
    class Scaled(MaskedHeads):
        scale = 1.0

        def advance(self, actions: Any) -> np.ndarray:
            return super().advance(actions) * self.scale

    changes = []
    for scale in (1.0, 100.0, 0.01):
        env = Scaled(6)
        env.scale = scale
        model = make_model(env)
        before = {name: value.clone() for name, value in model.policy.named_parameters()}
        collect(model)
        model.update()
        actor = [name for name in before if "decoder.value" not in name]
        changes.append(torch.cat([(dict(model.policy.named_parameters())[n] - before[n]).flatten() for n in actor]))
    assert changes[0].norm() > 1e-2
    for other in changes[1:]:
        torch.testing.assert_close(other, changes[0], atol=1e-4, rtol=0)


@pytest.mark.ledger("U9")
@pytest.mark.parametrize("delta", [0.1, 1.0, 5.0])
def test_the_value_gradient_is_bounded_by_the_huber_delta(delta: float) -> None:
    values = torch.tensor([-1e4, -3.0, 0.0, 0.3, 1e4], requires_grad=True)
    zeros = torch.zeros(5)
    targets = Targets(zeros[None], zeros[None, None], zeros, zeros, zeros, zeros)
    settings = LossSettings(0.2, "joint", None, 0.5, delta, "share", torch.zeros(1))
    (gradient,) = torch.autograd.grad(value_loss(values, targets, settings).sum(), values)
    assert gradient.abs().max() <= delta * (1 + 1e-6)
    assert gradient[3].item() == pytest.approx(min(0.3, delta))


@pytest.mark.ledger("U10")
def test_a_huge_value_clip_equals_none_and_the_unit_is_documented() -> None:
    assert PPOConfig().clip_range_vf is None
    assert "clip_range_vf: largest change of the value from the old policy's, in normalised units" in inspect.getdoc(
        PPOConfig
    )
    model = make_model()
    batch, targets, _ = with_targets(model)
    with torch.no_grad():
        model.policy.decoder.value.weight.mul_(3)
    plain = loss_of(model.learner, batch, targets, clip_range_vf=None)
    huge = loss_of(model.learner, batch, targets, clip_range_vf=1e9)
    tight = loss_of(model.learner, batch, targets, clip_range_vf=0.01)
    assert torch.equal(plain.metrics["value_loss"], huge.metrics["value_loss"])
    assert tight.metrics["value_loss"] > plain.metrics["value_loss"]


@pytest.mark.ledger("U13")
def test_gradient_norms_before_and_after_clipping_are_always_reported() -> None:
    tight, loose = make_model(max_grad_norm=1e-3, n_epochs=1), make_model(max_grad_norm=1e9, max_group_grad_norm=None)
    for model in (tight, loose):
        collect(model)
    metrics = tight.update()
    assert metrics["grad_norm_pre"] > metrics["grad_norm_post"] == pytest.approx(1e-3, rel=1e-3)
    metrics = loose.update()
    assert metrics["grad_norm_pre"] == pytest.approx(metrics["grad_norm_post"], rel=1e-6)
    assert metrics["grad_norm_pre"] > 0
    assert set(by_label(metrics, "grad_norms")) == {"trunk", "head_op", "head_slot", "head_blueprint", "critic"}
    total = math.sqrt(sum(value**2 for value in by_label(metrics, "grad_norms").values()))
    assert total == pytest.approx(metrics["grad_norm_pre"], rel=0.05)


@pytest.mark.ledger("U14")
def test_an_exploding_head_leaves_the_others_alone() -> None:
    updates = []
    for poison in (1.0, 1e6):
        model = make_model(max_group_grad_norm=0.5, max_grad_norm=100.0)
        for parameter in model.policy.parameters():
            parameter.grad.fill_(0.01)
        model.policy.decoder.heads["slot"].weight.grad.fill_(poison)
        clip_gradients(model.learner.optimizer.groups, 0.5, 100.0)
        model.learner.optimizer.step(torch.tensor(True))
        updates.append({name: value.detach().clone() for name, value in model.policy.named_parameters()})
    for name in updates[0]:
        assert torch.equal(updates[0][name], updates[1][name]) or "heads.slot" in name


@pytest.mark.ledger("U20")
def test_three_counters_count_three_things() -> None:
    model = make_model(target_kl=1e9)
    model.learn(6 * 24 * 3)
    counters = model.learner.counters
    assert (counters.env_steps, counters.rollouts, counters.optimizer_steps) == (6 * 24 * 3, 3, 3 * 2 * 3)


@pytest.mark.ledger("T1")
def test_every_statistic_is_a_plain_number_after_every_update() -> None:
    model = make_model()
    for _ in range(2):
        collect(model)
        metrics = model.update()
        assert all(isinstance(value, int | float) and math.isfinite(value) for value in metrics.values())
        assert {"policy_loss", "entropy/slot", "clip_fraction", "advantage/std", "grad_norms/critic"} <= set(metrics)


@pytest.mark.ledger("X15")
@pytest.mark.parametrize("mode", ["joint", "per_head"])
def test_at_ratio_one_the_gradient_is_reinforce(mode: str) -> None:
    model = make_model(clip_mode=mode)
    batch, targets, _ = with_targets(model)
    parameters = [p for name, p in model.policy.named_parameters() if "critic" not in name and "value" not in name]
    loss = loss_of(model.learner, batch, targets)
    ours = torch.autograd.grad(loss.metrics["policy_loss"], parameters)
    log_prob = model.learner.evaluate(batch).distribution.log_prob(batch.actions)
    reinforce = -(log_prob * targets.advantages)[batch.decisions].mean()
    for got, expected in zip(ours, torch.autograd.grad(reinforce, parameters), strict=True):
        torch.testing.assert_close(got, expected, atol=1e-4 * expected.abs().max().item(), rtol=0)
    assert loss.metrics["policy_loss"].item() == pytest.approx(
        -targets.advantages[batch.decisions].mean().item(), abs=1e-5
    )


@pytest.mark.ledger("X15")
@pytest.mark.parametrize("mode", ["joint", "per_head"])
def test_both_clip_modes_find_the_optimum_of_a_two_head_bandit(mode: str) -> None:
    model = FactoredRecurrentPPO(
        OpDependentSlot(16), seed=0, clip_mode=mode, n_steps=16, sequence_length=16, n_epochs=8, lstm_size=16,
        encoder_sizes=(16,), head_hidden=32, learning_rate=3e-3,
    )  # fmt: skip
    model.learn(12_000)
    assert np.mean([episode["r"] for episode in model.ep_info_buffer]) > 0.97


def test_per_head_clipping_stops_a_heads_gain_where_joint_clipping_would_not() -> None:
    ratios = torch.tensor([[0.5], [-0.5]])  # the joint ratio is 1
    settings = LossSettings(0.2, "joint", None, 0.5, 1.0, "share", torch.zeros(2))
    assert surrogate(ratios, torch.ones(1), settings).item() == pytest.approx(1.0)
    per_head = surrogate(ratios, torch.ones(1), replace(settings, clip_mode="per_head"))
    assert per_head.item() == pytest.approx(1 + (1.2 - 1) + (math.exp(-0.5) - 1), rel=1e-5)


def test_a_non_finite_gradient_is_never_stepped_and_is_reported() -> None:
    model = make_model()
    collect(model)
    model.buffer.rewards[3, 2] = math.nan
    before = {name: value.clone() for name, value in model.policy.named_parameters() if "value" not in name}
    metrics = model.update()
    assert metrics["nonfinite"] > 0
    assert metrics["minibatches"] == 0
    assert [event.name for event in model.last_events].count("nonfinite") == 1
    after = dict(model.policy.named_parameters())
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.ledger("B1", "U2", "Z5")
def test_states_rebuilt_from_sequence_starts_equal_those_of_the_rollout() -> None:
    model = make_model()
    callback = CallbackList([])
    callback.init_callback(model)
    hidden = []
    step = model.collector.step

    def watch(buffer: Any) -> Any:
        transition = step(buffer)
        hidden.append(model.collector.state[0][-1].clone())
        return transition

    model.collector.step = watch
    model.collect(callback)
    batch = model.buffer.sequences()
    assert batch.state[0][:, 6:].abs().max() > 0.01  # later sequences start from what the rollout had in mind
    rebuilt = model.buffer.to_time(model.learner.evaluate(batch).hidden)
    torch.testing.assert_close(torch.stack(hidden), rebuilt.detach(), atol=1e-5, rtol=0)
