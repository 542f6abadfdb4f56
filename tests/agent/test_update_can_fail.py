"""The parts of an update that a wrong line would leave looking right: order, units, limits, transfers."""

import sys
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from esper_agent import PPOConfig
from esper_agent.algorithm.loss import LossSettings, Targets, value_loss
from esper_agent.networks.entity_encoder import Entities
from esper_agent.networks.policy import Policy
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from toy_envs import MaskedHeads
from update_tools import collect, loss_of, make_model, with_targets


class Scaled(MaskedHeads):
    """Pays the same in another currency."""

    scale = 1.0

    def advance(self, actions: Any) -> np.ndarray:
        return super().advance(actions) * self.scale


def scaled_env(scale: float) -> Scaled:
    env = Scaled(6)
    env.scale = scale
    return env


@pytest.mark.ledger("U1", "Z2")
def test_the_update_shuffles_the_sequences_anew_in_every_epoch() -> None:
    model = make_model(n_epochs=4, target_kl=1e9)
    collect(model)
    minibatch, seen = model.learner.minibatch, []

    def watched(batch: Any, *args: Any) -> Any:
        seen.append(batch.index[:, 0].tolist())
        return minibatch(batch, *args)

    model.learner.minibatch = watched
    model.update()
    assert len(seen) == 4 * 3
    epochs = [list(chain(*seen[start : start + 3])) for start in range(0, 12, 3)]
    assert all(sorted(epoch) == sorted(epochs[0]) and len(set(epoch)) == 18 for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4


@pytest.mark.ledger("U10", "Z3")
def test_the_value_is_clipped_around_what_the_old_policy_said() -> None:
    zeros, old = torch.zeros(3), torch.tensor([1.9, -5.0, 2.0])
    targets = Targets(zeros[None], zeros[None, None], zeros, old, torch.tensor([2.0, -4.0, 2.0]), zeros)
    settings = LossSettings(0.2, "joint", 0.05, 0.5, 1.0, "share", torch.zeros(1))
    loss = value_loss(torch.tensor([2.0, -4.0, 2.01]), targets, settings)
    assert loss.tolist() == pytest.approx([0.5 * 0.05**2, 0.5 * 0.95**2, 0.5 * 0.01**2], rel=1e-3)


@pytest.mark.ledger("U10", "Z3")
def test_the_values_to_clip_around_are_in_the_units_of_the_critic_that_learns() -> None:
    env = scaled_env(1.0)
    model = make_model(env)
    model.learn(6 * 24)
    env.scale = 30.0  # the units move by far
    batch = collect(model)
    partition = model.learner.partition(batch.count)
    old = model.learner.old_policy(batch, partition)
    targets, _ = model.learner.targets(model.buffer, batch, old, model.collector.last_values())
    now = model.learner.evaluate(batch).values.detach()
    torch.testing.assert_close(targets.values, now, atol=1e-4, rtol=1e-4)
    assert (targets.values - old.values).abs().max() > 0.1
    clipped = loss_of(model.learner, batch, targets, clip_range_vf=1e-3).metrics["value_loss"]
    plain = loss_of(model.learner, batch, targets, clip_range_vf=None).metrics["value_loss"]
    torch.testing.assert_close(clipped, plain, atol=1e-4, rtol=1e-4)  # nothing has moved yet


@pytest.mark.ledger("U14", "Z4")
def test_in_the_learner_an_exploding_head_leaves_the_others_alone() -> None:
    trained = []
    for poison in (1.0, 1e6):
        model = make_model(max_group_grad_norm=1e-3, max_grad_norm=100.0, learning_rate=1e-2)
        batch, targets, _ = with_targets(model)
        learner = model.learner
        differentiate = learner.optimizer.differentiate

        def poisoned(loss: Tensor, model: Any = model, poison: float = poison, real: Any = differentiate) -> None:
            real(loss)
            model.policy.decoder.heads["slot"].weight.grad.fill_(poison)

        learner.optimizer.differentiate = poisoned
        learner.optimizer.learning_rate = 1e-2
        before = {name: value.detach().clone() for name, value in model.policy.named_parameters()}
        learner.minibatch(batch, targets, learner.settings(1.0), torch.tensor(True))
        trained.append({name: value.detach().clone() for name, value in model.policy.named_parameters()})
        assert not torch.equal(before["decoder.heads.op.weight"], trained[-1]["decoder.heads.op.weight"])
        norms = {name: group[0].grad.norm().item() for name, group in learner.optimizer.groups.items()}
        assert all(norm <= 1e-3 * (1 + 1e-5) for norm in norms.values())
    for name in trained[0]:
        assert torch.equal(trained[0][name], trained[1][name]) or "heads.slot" in name


@pytest.mark.ledger("U11", "Z8")
def test_the_floor_of_the_advantages_is_in_deviations_of_the_returns() -> None:
    advantages = []
    for scale in (1.0, 100.0, 0.01):
        model = make_model(scaled_env(scale), advantage_floor=1.0, gae_lambda=0.0, value_gain=1e-6)
        batch, targets, _ = with_targets(model)
        advantages.append(targets.advantages[batch.decisions])
    assert 0.01 < advantages[0].std() < 1
    for other in advantages[1:]:
        torch.testing.assert_close(other, advantages[0], atol=1e-4, rtol=1e-3)


@pytest.mark.ledger("D5", "Z14")
def test_raw_advantages_are_reported_in_units_of_the_reward_and_scaled_ones_in_none() -> None:
    metrics = []
    for scale in (1.0, 100.0):
        model = make_model(scaled_env(scale))
        collect(model)
        metrics.append(model.update())
    small, large = metrics
    for part in ("std", "max", "min"):
        assert large[f"advantage/{part}"] == pytest.approx(100 * small[f"advantage/{part}"], rel=1e-3)
    for each in metrics:
        assert each["normalized_advantage/std"] == pytest.approx(1, rel=1e-3)
        assert each["normalized_advantage/mean"] == pytest.approx(0, abs=1e-4)


class Syncs(TorchDispatchMode):
    """Counts operations whose result an accelerator could only give after the host has waited for it."""

    waiting = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "equal", "is_nonzero")

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        indices = args[1] if name in ("index", "index_put", "index_put_") else ()
        by_mask = any(isinstance(index, Tensor) and index.dtype == torch.bool for index in indices)
        if name in self.waiting or by_mask:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.ledger("U17", "Z9")
def test_nothing_in_the_minibatches_makes_the_host_wait() -> None:
    model = make_model()
    model.learner.may_peek = False  # as on an accelerator
    batch, last_values = collect(model), model.collector.last_values()
    with Syncs() as syncs:
        settings, partition = model.learner.settings(1.0), model.learner.partition(batch.count)
        old_policy = model.learner.old_policy(batch, partition)
        targets, _ = model.learner.targets(model.buffer, batch, old_policy, last_values)
        model._epochs(batch, targets, settings, partition)
    assert syncs.found == []
    with Syncs() as syncs:
        assert batch.decisions[batch.decisions].all()
    assert syncs.found  # the counter counts


@pytest.mark.ledger("U18", "Z10")
def test_minibatches_move_nothing_between_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(n_epochs=3)
    model.learner.may_peek = False
    batch, targets, partition = with_targets(model)
    settings, moved = model.learner.settings(1.0), []

    def counted(name: str) -> Any:
        method = getattr(Tensor, name)

        def call(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            given, ours = [*args, *kwargs.values()], "esper_agent" in sys._getframe(1).f_globals["__name__"]
            if ours and (name != "to" or any(isinstance(part, str | torch.device | Tensor) for part in given)):
                moved.append(name)
            return method(tensor, *args, **kwargs)

        return call

    for name in ("to", "cpu", "cuda", "numpy", "tolist"):
        monkeypatch.setattr(Tensor, name, counted(name))
    model._epochs(batch, targets, settings, partition)
    monkeypatch.undo()
    assert moved == ["to"] * 2  # the order of the sequences, once for every epoch after the first


@pytest.mark.ledger("TG5", "D3", "Z13")
def test_the_compiled_parts_have_no_graph_break_with_entities_either() -> None:
    spec = make_model().action_spec
    config = replace(PPOConfig(), encoder_sizes=(8,), lstm_size=8, head_hidden=8, entity_size=4)
    policy = Policy(6, spec, config, Entities("slot", 2, 4, 1))
    features = torch.randn(4, 8, 8 + 4 * 4)
    for function, argument in ((policy.encode, torch.randn(4, 8, 6)), (policy.decoder.forward, features)):
        torch._dynamo.reset()
        explained = torch._dynamo.explain(function)(argument)
        assert explained.graph_break_count == 0
        assert explained.graph_count == 1
