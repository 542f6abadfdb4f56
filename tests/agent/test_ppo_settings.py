"""Every setting does something, and no code stands unused."""

import ast
import copy
from dataclasses import fields
from pathlib import Path
from typing import Any

import esper_agent
import numpy as np
import pytest
import torch
from esper_agent import FactoredRecurrentPPO, PPOConfig
from esper_agent.diagnostics import DetectorConfig
from toy_envs import MaskedHeads

BASE: dict[str, Any] = {
    "n_steps": 16, "sequence_length": 8, "n_minibatches": 2, "n_epochs": 2, "encoder_sizes": (8,), "lstm_size": 8,
    "head_hidden": 8, "learning_rate": 0.01, "policy_gain": 1.0, "observation_clip": 1.0, "max_group_grad_norm": 0.1,
    "max_grad_norm": 0.15, "huber_delta": 0.5, "critic_weight_decay": 0.01, "target_kl": 1e9,
}  # fmt: skip

CHANGES: dict[str, Any] = {
    "learning_rate": 0.02, "n_steps": 32, "sequence_length": 16, "n_minibatches": 4, "n_epochs": 3, "gamma": 0.5,
    "gae_lambda": 0.5, "clip_range": 1e-3, "clip_mode": "per_head", "clip_range_vf": 1e-3, "target_kl": 1e-9,
    "ent_coef": 0.5, "vf_coef": 2.0, "huber_delta": 0.01, "max_group_grad_norm": 0.01, "max_grad_norm": 0.01,
    "critic_weight_decay": 0.5, "adam_epsilon": 0.5, "advantage_floor": 1.0, "value_window": 1,
    "normalize_observations": False, "observation_clip": 0.1, "encoder_sizes": (8, 8), "encoder_norm": False,
    "lstm_size": 12, "lstm_layers": 2, "recurrent_norm": False, "forget_bias": -2.0, "head_hidden": 12,
    "condition_on_op": False, "policy_gain": 0.3, "value_gain": 0.1, "idle_bias": 1.0,
    "entropy_unit": "nats", "normalize_values": False, "memory": "gru", "memory_skip": True, "masks": "marginal",
}  # fmt: skip
ELSEWHERE = {
    "entity_size", "entity_neighbours", "max_nonfinite", "precision", "compile", "check_masks", "stats_window_size",
    "detectors",
}  # fmt: skip


def trained_weights(**changes: Any) -> list[torch.Tensor]:
    env = MaskedHeads(4)
    model = FactoredRecurrentPPO(env, seed=0, **{**BASE, **changes})
    model.learn(4 * 16 * 4)
    return [value.clone() for value in model.policy.parameters()]


@pytest.fixture(scope="module")
def base_weights() -> list[torch.Tensor]:
    return trained_weights()


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return len(first) == len(second) and all(
        a.shape == b.shape and torch.equal(a, b) for a, b in zip(first, second, strict=True)
    )


def test_the_comparison_is_reproducible(base_weights: list[torch.Tensor]) -> None:
    assert same(base_weights, trained_weights())


@pytest.mark.ledger("U7", "X12", "B4")
@pytest.mark.parametrize("name", CHANGES)
def test_changing_a_setting_changes_the_trained_weights(name: str, base_weights: list[torch.Tensor]) -> None:
    assert CHANGES[name] != BASE.get(name, getattr(PPOConfig(), name))
    assert not same(base_weights, trained_weights(**{name: CHANGES[name]}))


@pytest.mark.ledger("U7", "X12")
def test_no_setting_is_left_out() -> None:
    assert {entry.name for entry in fields(PPOConfig)} == set(CHANGES) | ELSEWHERE


@pytest.mark.ledger("U7", "X12", "U19")
def test_the_settings_that_do_not_touch_the_weights_change_their_own_output() -> None:
    def model(**changes: Any) -> FactoredRecurrentPPO:
        return FactoredRecurrentPPO(MaskedHeads(4), seed=0, **{**BASE, **changes})

    few = model(stats_window_size=3)
    few.learn(64 * 4)
    assert len(few.ep_info_buffer) == 3
    quiet, loud = model(), model(detectors=DetectorConfig(kl_limit=1e-12, warmup_rollouts=0))
    for trained in (quiet, loud):
        trained.learn(64 * 2)
    assert "kl_spike" in {event.name for event in loud.events} - {event.name for event in quiet.events}


@pytest.mark.ledger("X12")
def test_defaults_are_written_once() -> None:
    """The constructor takes settings as they are: the only defaults are those of the config."""
    model = FactoredRecurrentPPO(MaskedHeads(4))
    assert model.config == PPOConfig()


def modules() -> dict[str, ast.Module]:
    root = Path(esper_agent.__file__).parent
    return {str(p.relative_to(root)): ast.parse(p.read_text(encoding="utf-8")) for p in sorted(root.rglob("*.py"))}


@pytest.mark.ledger("U8")
def test_entropies_are_normalised_in_one_place() -> None:
    def mentions(tree: ast.Module) -> bool:
        names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        return "log" in names and "clamp" in names and "inverse_capacity" in ast.dump(tree)

    assert [name for name, tree in modules().items() if mentions(tree)] == ["networks/distribution.py"]


@pytest.mark.ledger("U8", "Z6")
def test_what_a_network_or_an_algorithm_keeps_is_read_somewhere() -> None:
    kept: dict[str, str] = {}
    read: set[str] = set()
    for name, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                if name.startswith(("networks/", "algorithm/", "diagnostics/")):
                    kept.setdefault(node.attr, f"{name}:{node.lineno}")
            elif isinstance(node, ast.Attribute):
                read.add(node.attr)
    assert not {place for attribute, place in kept.items() if attribute not in read | READ_BY_OTHERS}


READ_BY_OTHERS = {"found_inf", "observation_entities"}  # by torch's fused optimisers, and as what an env declares


@pytest.mark.ledger("U22", "P12", "Z7")
def test_membership_is_never_asked_of_the_ordered_heads() -> None:
    for name, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Compare) and any(isinstance(op, ast.In | ast.NotIn) for op in node.ops):
                asked = {part for each in node.comparators for part in ordered_heads(each)}
                assert not asked, (name, node.lineno)
            if isinstance(node, ast.Attribute) and node.attr in ("__contains__", "count"):
                assert not ordered_heads(node.value), (name, node.lineno)


def ordered_heads(tree: ast.expr) -> set[str]:
    """The sequences of head names that an expression reads as such, not through a mapping or a call."""
    if isinstance(tree, ast.Subscript | ast.Starred):
        return ordered_heads(tree.value)
    if isinstance(tree, ast.Tuple | ast.List | ast.BinOp):
        parts = tree.elts if isinstance(tree, ast.Tuple | ast.List) else [tree.left, tree.right]
        return {name for part in parts for name in ordered_heads(part)}
    name = tree.attr if isinstance(tree, ast.Attribute) else tree.id if isinstance(tree, ast.Name) else ""
    return {name} & {"heads", "HEADS"}


@pytest.mark.ledger("U7", "N10")
def test_no_import_hides_in_a_function() -> None:
    trees = modules()
    del trees["__main__.py"]  # it answers Ctrl-C before it imports the rest
    for name, tree in trees.items():
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef):
                hidden = [node.lineno for node in ast.walk(function) if isinstance(node, ast.Import | ast.ImportFrom)]
                assert not hidden, (name, hidden)


@pytest.mark.ledger("U12")
def test_one_step_and_one_environment_are_enough_to_learn_from() -> None:
    model = FactoredRecurrentPPO(
        MaskedHeads(1), seed=0, **{**BASE, "n_steps": 1, "sequence_length": 1, "n_minibatches": 1}
    )
    before = copy.deepcopy(model.policy.state_dict())
    model.learn(3)
    after = model.policy.state_dict()
    assert all(torch.isfinite(value).all() for value in after.values() if value.is_floating_point())
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert np.isfinite(model.learner.counters.optimizer_steps)
