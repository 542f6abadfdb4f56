"""The heads' terms of the loss, with their gradient in closed form, are what autograd makes of the definitions."""

import torch
from action_cases import random_logits, random_mask, specs
from esper_agent.networks.action_spec import ActionSpec
from esper_agent.networks.distribution import FactoredDistribution, Legality, entropy_weights, flat_index
from esper_agent.networks.head_terms import HeadTerms
from hypothesis import given, settings
from hypothesis import strategies as st
from precision import in_float64
from torch import Tensor

SEEDS = st.integers(0, 10_000)
STEPS = st.sampled_from([(2, 3), (1, 1)])


def make(spec: ActionSpec, seed: int, steps: tuple[int, int]) -> tuple[Tensor, Legality, Tensor, torch.Generator]:
    """Logits for 2 x 3 steps that want a gradient, legality, for all of them alike or not, and entries of actions."""
    generator = torch.Generator().manual_seed(seed)
    legality = Legality.of(spec, random_mask(spec, generator, *steps))
    logits = random_logits(spec, generator, 2, 3).requires_grad_()
    actions = FactoredDistribution(spec, logits, legality.penalty).sample(generator)
    return logits, legality, flat_index(spec, actions), generator


@given(specs(), SEEDS, STEPS)
@settings(max_examples=100, deadline=None)
@in_float64()
def test_terms_and_their_gradient_equal_the_definitions(spec: ActionSpec, seed: int, steps: tuple[int, int]) -> None:
    logits, legality, entries, generator = make(spec, seed, steps)
    distribution = FactoredDistribution(spec, logits, legality.penalty)
    plain = (distribution.entry_log_prob(entries), distribution.head_entropy(legality.inverse_capacity))
    terms = FactoredDistribution(spec, logits, legality.penalty).terms(entries, legality.inverse_capacity)
    slopes = [torch.randn(part.shape, generator=generator) for part in plain]
    (expected,) = torch.autograd.grad(plain, logits, slopes)
    (found,) = torch.autograd.grad(terms, logits, slopes)
    for part, same in zip(terms, plain, strict=True):
        torch.testing.assert_close(part, same)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@given(specs(), SEEDS, STEPS)
@settings(max_examples=30, deadline=None)
def test_the_gradient_agrees_with_finite_differences(spec: ActionSpec, seed: int, steps: tuple[int, int]) -> None:
    logits, legality, entries, _ = make(spec, seed, steps)
    log_p = logits.detach().double().log_softmax(1).requires_grad_()
    # Constants by definition: no gradient passes through the weights.
    weights = entropy_weights(spec, log_p.detach().exp(), legality.inverse_capacity.double())

    def terms(values: Tensor) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = HeadTerms.apply(values, values.detach().exp(), entries, weights, spec.rows)  # type: ignore[no-untyped-call]
        return found

    assert torch.autograd.gradcheck(terms, log_p)


@given(specs(), SEEDS, STEPS)
@settings(max_examples=30, deadline=None)
def test_illegal_entries_get_no_gradient(spec: ActionSpec, seed: int, steps: tuple[int, int]) -> None:
    logits, legality, entries, _ = make(spec, seed, steps)
    terms = FactoredDistribution(spec, logits, legality.penalty).terms(entries, legality.inverse_capacity)
    (gradient,) = torch.autograd.grad([part.sum() for part in terms], logits)
    assert gradient.isfinite().all()
    assert not gradient[(legality.penalty < 0).expand_as(gradient)].any()
