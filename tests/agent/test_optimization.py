"""The optimiser: one flat tensor, stepped as plain AdamW would."""

import pytest
import torch
from update_tools import make_model


@pytest.mark.ledger("P7")
def test_every_optimizer_step_is_taken_by_the_fused_kernel() -> None:
    optimizer = make_model().learner.optimizer
    assert [group["fused"] for group in optimizer.adam.param_groups] == [True, True]
    stepped = [part for group in optimizer.adam.param_groups for part in group["params"]]
    assert sum(part.numel() for part in stepped) == len(optimizer.flat)
    assert {part.untyped_storage().data_ptr() for part in stepped} == {optimizer.flat.untyped_storage().data_ptr()}


@pytest.mark.ledger("P6")
def test_weight_decay_touches_the_critic_alone() -> None:
    model = make_model(critic_weight_decay=0.1)
    optimizer = model.learner.optimizer
    before = {name: group[0].detach().clone() for name, group in optimizer.groups.items()}
    optimizer.learning_rate = 0.5
    optimizer.step(torch.tensor(True))  # with gradients of 0 nothing but the decay moves a parameter
    for name, group in optimizer.groups.items():
        assert torch.allclose(group[0], before[name] * (0.95 if name == "critic" else 1.0), atol=0, rtol=1e-6)
    assert len(optimizer.flat) == sum(p.numel() for p in model.policy.parameters())


def test_the_flat_optimiser_steps_like_plain_adamw() -> None:
    model, settings = make_model(critic_weight_decay=0.1), {"lr": 0.01, "eps": 1e-5}
    names = [name for name, _ in model.policy.named_parameters()]
    copies = [p.detach().clone().requires_grad_() for p in model.policy.parameters()]
    critic = [name.startswith(("decoder.critic", "decoder.value")) for name in names]
    plain = torch.optim.AdamW(
        [{"params": [p], "weight_decay": 0.1 * own} for p, own in zip(copies, critic, strict=True)], **settings
    )
    model.learner.optimizer.learning_rate = 0.01
    for step in range(4):
        model.learner.optimizer.gradient.zero_()
        for ours, theirs in zip(model.policy.parameters(), copies, strict=True):
            gradient = torch.randn_like(ours)
            ours.grad += gradient
            theirs.grad = gradient
        model.learner.optimizer.step(torch.tensor(step != 2))
        if step != 2:
            plain.step()
    for ours, theirs in zip(model.policy.parameters(), copies, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)
