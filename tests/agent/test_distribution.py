"""The action distribution equals the enumerated joint distribution."""

import doctest
import math

import numpy as np
import pytest
import torch
from action_cases import joint_log_probabilities, random_logits, random_mask, specs
from esper_agent.networks import action_spec as action_spec_module
from esper_agent.networks.action_spec import (
    ActionSpec,
    action_spec,
    check_cells,
    masks_to_cells,
    to_environment,
    user_masks,
)
from esper_agent.networks.distribution import MASKED_LOGIT, FactoredDistribution, Legality, cross_entropy, flat_index
from esper_agent.networks.distribution import joint as joint_probabilities
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from precision import in_float64

GROWTH = ActionSpec("dict", ("op", "slot", "blueprint"), (3, 2, 4), by_op=True, masked=True)


def make(spec: ActionSpec, logits: torch.Tensor, mask: torch.Tensor) -> tuple[FactoredDistribution, Legality]:
    legality = Legality.of(spec, mask)
    return FactoredDistribution(spec, logits, legality.penalty), legality


@pytest.mark.ledger("U21", "P3", "P5")
@given(specs(), st.integers(0, 10_000))
@settings(max_examples=150, deadline=None)
@in_float64()
def test_log_probability_entropy_and_kl_equal_enumeration(spec: ActionSpec, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    mask, logits = (
        random_mask(spec, generator),
        random_logits(spec, generator).float(),
    )  # as the distribution takes them
    other_logits = random_logits(spec, generator).float()
    ours, _ = make(spec, logits, mask)
    other, _ = make(spec, other_logits, mask)
    joint = joint_log_probabilities(spec, logits, mask)
    other_joint = joint_log_probabilities(spec, other_logits, mask)
    assert math.isclose(sum(math.exp(value) for value in joint.values()), 1.0, abs_tol=1e-9)
    for action, expected in joint.items():
        assert ours.log_prob(torch.tensor(action)).item() == pytest.approx(expected, rel=1e-9, abs=1e-9)
    entropy = -sum(math.exp(value) * value for value in joint.values())
    kl = sum(math.exp(value) * (value - other_joint[action]) for action, value in joint.items())
    assert ours.entropy().item() == pytest.approx(entropy, rel=1e-9, abs=1e-9)
    crossed = cross_entropy(joint_probabilities(spec, ours.p), other.log_p) - ours.entropy()
    assert crossed.item() == pytest.approx(kl, rel=1e-9, abs=1e-9)


@given(specs(), st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_every_batch_layout_gives_what_single_steps_give(spec: ActionSpec, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    mask, logits = random_mask(spec, generator, 2, 3), random_logits(spec, generator, 2, 3)
    whole, legality = make(spec, logits, mask)
    actions = whole.sample(generator)
    entropy = whole.head_entropy(legality.inverse_capacity)
    for i in range(2):
        for j in range(3):
            one, its = make(spec, logits[..., i, j], mask[..., i, j])
            torch.testing.assert_close(whole.head_log_prob(actions)[:, i, j], one.head_log_prob(actions[:, i, j]))
            torch.testing.assert_close(entropy[:, i, j], one.head_entropy(its.inverse_capacity))


@given(specs(), st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_illegal_entries_get_no_gradient(spec: ActionSpec, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    mask, logits = random_mask(spec, generator, 2, 3), random_logits(spec, generator, 2, 3).requires_grad_()
    distribution, legality = make(spec, logits, mask)
    terms = distribution.log_prob(distribution.sample(generator)), distribution.head_entropy(legality.inverse_capacity)
    (gradient,) = torch.autograd.grad([part.sum() for part in terms], logits)
    assert gradient.isfinite().all()
    assert not gradient[~mask].any()


@given(specs(), st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_samples_are_legal_and_deterministic_ones_most_likely_per_head(spec: ActionSpec, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    mask, logits = random_mask(spec, generator, 20), random_logits(spec, generator, 20)
    distribution, _ = make(spec, logits, mask)
    for actions in (distribution.sample(generator), distribution.sample(None)):
        assert (distribution.head_log_prob(actions) > MASKED_LOGIT / 2).all()
    best = distribution.sample(None)
    assert torch.equal(best[0], distribution.p[0].argmax(0))


def test_sample_frequencies_follow_the_joint_distribution() -> None:
    generator = torch.Generator().manual_seed(0)
    mask, logits = random_mask(GROWTH, generator), random_logits(GROWTH, generator, scale=1.0)
    joint = joint_log_probabilities(GROWTH, logits, mask)
    n = 40_000
    distribution, _ = make(GROWTH, logits[..., None].expand(-1, -1, n), mask[..., None])
    drawn, counts = torch.unique(distribution.sample(generator), dim=1, return_counts=True)
    shares = {tuple(action): count / n for action, count in zip(drawn.T.tolist(), counts.tolist(), strict=True)}
    assert set(shares) <= set(joint)
    for action, value in joint.items():
        p = math.exp(value)
        assert abs(shares.get(action, 0.0) - p) < 5 * math.sqrt(p * (1 - p) / n) + 1e-4


@pytest.mark.ledger("P3", "U6")
def test_a_head_that_the_op_does_not_use_is_exactly_silent() -> None:
    generator = torch.Generator().manual_seed(1)
    mask = GROWTH.padding_mask().clone()
    arguments = mask[1:].view(3, 2, 4)
    arguments[0, :, 1:] = False  # op 0 uses no head
    arguments[1, 1, 1:] = False  # op 1 uses the slot only
    logits = random_logits(GROWTH, generator)
    distribution, legality = make(GROWTH, logits, mask)
    assert distribution.head_log_prob(torch.tensor([0, 0, 0]))[1:].tolist() == [0.0, 0.0]
    assert distribution.head_log_prob(torch.tensor([1, 1, 0]))[2].item() == 0.0
    assert legality.inverse_capacity[1:].view(3, 2)[0].tolist() == [0.0, 0.0]
    assert -(distribution.p * distribution.log_p).sum(1)[1:3].abs().max() == 0.0


@pytest.mark.ledger("N8")
@pytest.mark.parametrize("size", [1, 2, 5, 9])
@in_float64()
def test_normalised_entropy_is_in_the_unit_interval_with_finite_gradients(size: int) -> None:
    spec = ActionSpec("discrete", ("action",), (size,), by_op=False, masked=True)
    for legal in range(1, size + 1):
        mask = torch.zeros(1, size, dtype=torch.bool)
        mask[0, :legal] = True
        for logits in (torch.zeros(1, size), torch.linspace(-50, 50, size)[None], torch.randn(1, size)):
            leaf = logits.clone().requires_grad_()
            distribution, legality = make(spec, leaf, mask)
            entropy = distribution.head_entropy(legality.inverse_capacity)
            (gradient,) = torch.autograd.grad(entropy.sum(), leaf)
            assert gradient.isfinite().all()
            assert -1e-6 <= entropy.item() <= 1 + 1e-6
            assert legality.available.item() == (legal > 1)
            if legal == 1:
                assert entropy.item() == 0.0
        uniform, legality = make(spec, torch.zeros(1, size), mask)
        assert uniform.head_entropy(legality.inverse_capacity).item() == pytest.approx(float(legal > 1))


@pytest.mark.ledger("U4", "TG7", "X6")
def test_head_entropy_does_not_depend_on_how_often_its_op_is_chosen() -> None:
    generator = torch.Generator().manual_seed(2)
    logits, mask = random_logits(GROWTH, generator), GROWTH.padding_mask().clone()
    mask[1:].view(3, 2, 4)[0, :, 1:] = False
    mask[1:].view(3, 2, 4)[1, 1, 1:] = False  # only op 2 uses the blueprint
    values = []
    for preference in (-60.0, -5.0, 5.0):
        logits[0, 2] = preference
        distribution, legality = make(GROWTH, logits, mask)
        values.append(distribution.head_entropy(legality.inverse_capacity)[2].item())
    assert values[0] == pytest.approx(values[1]) == pytest.approx(values[2])
    row = distribution.p[1:].view(3, 2, 4)[2, 1]
    assert values[0] == pytest.approx(-(row * row.log()).sum().item() / math.log(4), rel=1e-5)


@pytest.mark.ledger("U4")
def test_entropy_gradient_reaches_a_head_whose_op_was_available_but_not_chosen() -> None:
    logits = random_logits(GROWTH, torch.Generator().manual_seed(3)).requires_grad_()
    mask = GROWTH.padding_mask().clone()
    mask[1:].view(3, 2, 4)[:2, 1, 1:] = False
    distribution, legality = make(GROWTH, logits, mask)
    entropy = distribution.head_entropy(legality.inverse_capacity)
    (gradient,) = torch.autograd.grad(entropy[2], logits)
    assert gradient[1:].view(3, 2, 4)[2, 1].abs().sum() > 1e-3
    assert gradient[0].abs().max() == 0.0  # and does not push the op


def test_an_illegal_op_makes_no_choice_for_its_heads() -> None:
    mask = GROWTH.padding_mask().clone()
    mask[0, 2] = False
    mask[1:].view(3, 2, 4)[:2, 1, 1:] = False  # only the illegal op uses the blueprint
    distribution, legality = make(GROWTH, torch.zeros(GROWTH.cells, GROWTH.width), mask)
    entropy = distribution.head_entropy(legality.inverse_capacity)
    assert legality.available.tolist() == [True, True, False]
    assert entropy[2].item() == 0.0


@pytest.mark.ledger("X5")
def test_no_floor_every_legal_value_keeps_its_gradient_and_may_become_certain() -> None:
    spec = ActionSpec("discrete", ("action",), (6,), by_op=False, masked=True)
    logits = torch.tensor([[12.0, -12.0, 0.0, 3.0, -3.0, 1.0]], requires_grad=True)
    mask = torch.tensor([[True, True, True, True, True, False]])
    distribution, _ = make(spec, logits, mask)
    for value in range(5):
        (gradient,) = torch.autograd.grad(distribution.log_prob(torch.tensor([value])), logits, retain_graph=True)
        assert gradient[0, value] > 0
        assert gradient[0, 5] == 0
    assert distribution.p.max() > 0.9998


@pytest.mark.ledger("P5")
def test_log_probabilities_are_float32_whatever_the_logits_are() -> None:
    spec = ActionSpec("discrete", ("action",), (3,), by_op=False, masked=True)
    mask = torch.tensor([[True, False, True]])
    distribution, legality = make(spec, torch.zeros(1, 3, dtype=torch.bfloat16), mask)
    assert distribution.log_p.dtype == torch.float32
    assert legality.penalty.tolist() == [[0.0, MASKED_LOGIT, 0.0]]
    assert distribution.log_p[0, 0].item() == pytest.approx(-math.log(2))


@pytest.mark.ledger("P12", "P10")
def test_heads_keep_the_declared_order_not_the_sorted_one() -> None:
    space = spaces.Dict({"slot": spaces.Discrete(3), "op": spaces.Discrete(5)})
    spec = action_spec(space, ("op", "slot"), {"action_mask": {}})
    assert (spec.heads, spec.sizes, spec.by_op) == (("op", "slot"), (5, 3), False)
    actions = torch.tensor([[4, 1], [2, 0]])
    sent = to_environment(spec, actions, tensors=False)
    assert sent["op"].tolist() == [4, 1]
    assert sent["slot"].tolist() == [2, 0]
    with pytest.raises(ValueError, match=r"orders the heads \('op', 'blend'\)"):
        action_spec(space, ("op", "blend"), {})


@pytest.mark.parametrize(
    "space",
    [spaces.Box(-1, 1, (2,)), spaces.Discrete(3, start=1), spaces.Dict({"a": spaces.Box(0, 1)}), spaces.MultiBinary(3)],
)
def test_other_action_spaces_are_refused_with_what_is_allowed(space: spaces.Space) -> None:
    with pytest.raises(ValueError, match="allowed: Discrete, MultiDiscrete"):
        action_spec(space, None, {})


def test_multi_discrete_takes_flat_masks_and_gives_rows_of_actions() -> None:
    spec = action_spec(spaces.MultiDiscrete([2, 3]), None, {"action_mask": None})
    flat = np.array([[1, 0, 0, 1, 1], [1, 1, 1, 0, 0]], dtype=np.int8)
    for masks in (flat, torch.from_numpy(flat)):
        cells = masks_to_cells(spec, {"action_mask": masks}, torch.device("cpu"))
        assert cells[..., 0].tolist() == [[True, False, False], [False, True, True]]
        assert cells[..., 1].tolist() == [[True, True, False], [True, False, False]]
    assert to_environment(spec, torch.tensor([[1, 0], [2, 1]]), tensors=False).tolist() == [[1, 2], [0, 1]]


def growth_infos(generator: np.random.Generator, n: int) -> dict:
    by_op = {
        name: generator.integers(0, 2, (n, 3, size)) for name, size in zip(GROWTH.heads, GROWTH.sizes, strict=True)
    }
    return {
        "action_mask": {name: table.any(1).astype(np.int8) for name, table in by_op.items()},
        "action_mask_by_op": {name: table.astype(np.int8) for name, table in by_op.items()},
    }


def test_the_worked_example_of_the_cells_is_true() -> None:
    found = doctest.testmod(action_spec_module)
    assert (found.failed, found.attempted) == (0, 6)
    spec = ActionSpec("dict", ("op", "slot"), (3, 2), by_op=True, masked=True)
    assert flat_index(spec, torch.tensor([1, 0])).tolist() == [0 * spec.width + 1, 2 * spec.width + 0]


def test_masks_by_op_land_in_the_cell_of_their_op_and_head() -> None:
    infos = growth_infos(np.random.default_rng(0), 4)
    as_tensors = {key: {name: torch.from_numpy(mask) for name, mask in part.items()} for key, part in infos.items()}
    for given_infos in (infos, as_tensors):
        cells = masks_to_cells(GROWTH, given_infos, torch.device("cpu"))
        assert torch.equal(cells[0, :3].T, torch.from_numpy(infos["action_mask"]["op"]).bool())
        for op in range(3):
            for index, name in enumerate(GROWTH.heads[1:]):
                cell = cells[1 + op * 2 + index, : GROWTH.sizes[1 + index]].T
                assert torch.equal(cell, torch.from_numpy(infos["action_mask_by_op"][name][:, op]).bool())


def test_user_masks_take_infos_of_one_or_several_environments() -> None:
    infos = growth_infos(np.random.default_rng(1), 1)
    single = {key: {name: mask[0] for name, mask in part.items()} for key, part in infos.items()}
    batch = user_masks(GROWTH, infos, 1, torch.device("cpu"))
    assert torch.equal(user_masks(GROWTH, single, None, torch.device("cpu")), batch)
    with pytest.raises(ValueError, match="action_mask_by_op"):
        user_masks(GROWTH, infos["action_mask"], 1, torch.device("cpu"))


@pytest.mark.ledger("N9")
def test_a_mask_without_a_legal_value_is_named_when_checks_are_on() -> None:
    cells = GROWTH.padding_mask()[..., None].expand(-1, -1, 3).clone()
    check_cells(GROWTH, cells)
    cells[1 + 2 * 2 + 1, :, 1] = False  # blueprint under op 2 in environment 1
    with pytest.raises(ValueError, match="environment 1 gives a mask for head 'blueprint'"):
        check_cells(GROWTH, cells)
    cells[0, 2, 1] = False  # op 2 is illegal there: its row never applies
    check_cells(GROWTH, cells)
