"""Rewards: bounded terms that sum to the reward, computed after the effect, over all slots, scaled last."""

import ast
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import esper_env.mdp.rewards
import gymnasium
import numpy as np
import pytest
import torch
from env_tools import IDS, TINY, WAIT, act, everywhere, legal_actions, load_tiny, play, tiny
from esper_env import EsperEnv, EsperVectorEnv, Op, Stage
from esper_env.config import _INTEGERS, _LISTS, _RANGES, TEMPI, EsperConfig
from esper_env.mdp.rewards import PRESETS, TERMS, Reward, Transition, potential
from esper_env.mdp.rewards.terms import Limits
from esper_env.mdp.state import State
from esper_env.tasks import TASKS, Data
from hypothesis import given, settings
from hypothesis import strategies as st

SLOTS, LARGEST_ADDED = 3, 2.5
EDGES = [0.0, -0.0, 5e-324, -5e-324, 1e-308, 1e30, -1e30, 1.0, -1.0]


def fuzzed_state(rng: np.random.Generator, n: int) -> State:
    """Any state that a step can lead to, as far as its reward can tell."""
    state = State.blank(n, SLOTS, "cpu")
    state.stage = torch.from_numpy(rng.integers(len(Stage), size=(n, SLOTS)))
    state.stage_age, state.age = (torch.from_numpy(rng.integers(60, size=(n, SLOTS))) for _ in range(2))
    state.ramp = torch.from_numpy(rng.choice(TEMPI, size=(n, SLOTS)))
    state.stage_age = torch.where(state.stage == Stage.BLENDING, state.stage_age % state.ramp, state.stage_age)
    state.metric, state.all_off, state.committed = (torch.from_numpy(rng.random(n)) for _ in range(3))
    state.contribution = torch.from_numpy(rng.uniform(-1, 1, (n, SLOTS)))
    state.loss = torch.from_numpy(rng.exponential(5.0, n))
    state.seed_size = torch.from_numpy(
        rng.uniform(0, LARGEST_ADDED / SLOTS, (n, SLOTS)) * rng.integers(2, size=(n, SLOTS))
    )
    state.added = state.seed_size.sum(dim=1)
    return state


def transition(before: State, after: State, config: EsperConfig, rng: np.random.Generator) -> Transition:
    n = len(after.step)
    before.potential, after.potential = potential(before, config), potential(after, config)
    flags = [torch.from_numpy(rng.random(n) < 0.3) for _ in range(3)]
    op = torch.from_numpy(rng.integers(len(Op), size=n))
    control = torch.from_numpy(rng.random(n)), torch.from_numpy(rng.random(n) < 0.5)
    prices = [torch.full((n,), np.max(price), dtype=torch.float64) for price in (config.rent, config.slot_rent)]
    return Transition(before, after, op, *flags, flags[1] | flags[2], *control, *prices, config, log(10))


configs = st.builds(
    EsperConfig,
    task=st.just("any"),
    reward=st.sampled_from(sorted(PRESETS)),
    horizon=st.integers(1, 60),
    gamma=st.floats(0.0, 1.0),
    reward_scale=st.floats(1e-3, 50.0),
    invalid_action_cost=st.floats(0.0, 2.0),
    rollback_penalty=st.floats(0.0, 2.0),
    rent=st.floats(0.0, 2.0),
    slot_rent=st.floats(0.0, 2.0),
    metric_weight=st.floats(0.0, 2.0),
    stage_weight=st.floats(0.0, 2.0),
    holding_slope=st.floats(0.0, 1.0),
    holding_cap=st.floats(0.0, 1.0),
    ratio_epsilon=st.floats(1e-6, 1.0),
    legitimate_age=st.integers(1, 9),
)


@pytest.mark.ledger("R9", "X18", "P11")
@settings(max_examples=60, deadline=None)
@given(configs, st.integers(0, 2**32 - 1))
def test_every_term_and_the_reward_stay_in_their_declared_bounds(config: EsperConfig, seed: int) -> None:
    rng, limits = np.random.default_rng(seed), Limits(SLOTS, LARGEST_ADDED)
    moved = transition(fuzzed_state(rng, 40), fuzzed_state(rng, 40), config, rng)
    reward = Reward(config, limits)
    total, terms = reward(moved)
    for name, value in terms.items():
        low, high = (config.reward_scale * end for end in TERMS[name].bounds(config, limits))
        assert ((value >= low - 1e-12) & (value <= high + 1e-12)).all(), name
    low, high = reward.bounds
    assert np.isfinite([low, high]).all()
    assert ((total >= low - 1e-9) & (total <= high + 1e-9)).all()


def ends(low: float, high: float) -> st.SearchStrategy[float]:
    return st.sampled_from([low, high]) | st.floats(low, high)


extremes = st.fixed_dictionaries(
    {name: ends(*_RANGES[name]) for name in _RANGES if name not in _INTEGERS}
    | {name: st.integers(*map(int, _RANGES[name])) for name in _RANGES if name in _INTEGERS}
    | {name: st.tuples(*[ends(0.0, high)] * size) for name, (size, high) in _LISTS.items() if "lesion" not in name}
)


@pytest.mark.ledger("Y10", "R9")
@settings(max_examples=60, deadline=None)
@given(extremes, st.sampled_from(sorted(PRESETS)), st.integers(0, 2**32 - 1))
def test_every_accepted_configuration_has_finite_rewards_in_a_finite_range(
    chosen: dict[str, Any], preset: str, seed: int
) -> None:
    config, rng = EsperConfig(task="any", reward=preset, **chosen), np.random.default_rng(seed)
    reward = Reward(config, Limits(SLOTS, LARGEST_ADDED))
    low, high = reward.bounds
    assert np.isfinite([low, high]).all()
    total, _ = reward(transition(fuzzed_state(rng, 20), fuzzed_state(rng, 20), config, rng))
    slack = 1e-12 * max(abs(low), abs(high))
    assert ((total >= low - slack) & (total <= high + slack)).all()


@pytest.mark.ledger("R2", "P11")
@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(sorted(PRESETS)),
    st.lists(st.sampled_from(EDGES) | st.floats(-1e30, 1e30), min_size=12, max_size=12),
)
def test_the_reward_is_finite_whatever_was_measured(preset: str, numbers: list[float]) -> None:
    rng, config = np.random.default_rng(0), EsperConfig(task="any", reward=preset)
    before, after = fuzzed_state(rng, 1), fuzzed_state(rng, 1)
    values = iter(numbers)
    for state in (before, after):
        state.loss = torch.tensor([abs(next(values))], dtype=torch.float64)
        state.metric, state.all_off = (torch.tensor([next(values)], dtype=torch.float64) for _ in range(2))
        state.contribution = torch.tensor([[next(values) for _ in range(SLOTS)]], dtype=torch.float64)
    total, terms = Reward(config, Limits(SLOTS, LARGEST_ADDED))(transition(before, after, config, rng))
    assert torch.isfinite(total).all()
    assert all(torch.isfinite(term).all() for term in terms.values())


@pytest.mark.ledger("R7", "R9", "X18", "Z20")
@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_terms_sum_to_the_reward_within_its_range_over_random_play(preset: str) -> None:
    env = tiny(8, reward=preset, horizon=14, learning_rate=(0.02, 4.0), invalid_action_cost=0.1)
    low, high = env.reward_range
    assert np.isfinite([low, high]).all()
    for _, _, reward, *_, infos in play(env, 30, seed=2, illegal=0.2):
        terms = infos["reward_terms"]
        assert set(terms) == set(PRESETS[preset])
        np.testing.assert_allclose(sum(terms.values()), reward, rtol=0, atol=1e-9)
        assert ((reward >= low) & (reward <= high)).all()
        for name, value in terms.items():
            bottom, top = TERMS[name].bounds(env.simulation.config, env.simulation.reward.limits)
            assert ((value >= bottom - 1e-12) & (value <= top + 1e-12)).all(), name


@pytest.mark.ledger("X18")
@pytest.mark.parametrize("name", IDS)
def test_the_registered_environments_have_small_bounded_rewards(name: str) -> None:
    env = gymnasium.make(name)
    low, high = env.unwrapped.reward_range
    assert -5.0 < low < 0.0 < high < 5.0
    assert env.unwrapped.reward_range == gymnasium.make_vec(name, num_envs=2).unwrapped.reward_range


@pytest.mark.ledger("R5")
@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_the_scale_is_applied_last(preset: str) -> None:
    plain, scaled = (tiny(4, reward=preset, horizon=8, reward_scale=scale) for scale in (1.0, 2.5))
    scaled.reset(seed=1)
    for actions, _, reward, *_, infos in play(plain, 8, seed=1):
        _, more, *_, scaled_infos = scaled.step(actions)
        np.testing.assert_allclose(more, 2.5 * reward, rtol=1e-12, atol=1e-15)
        for name, term in infos["reward_terms"].items():
            np.testing.assert_array_equal(scaled_infos["reward_terms"][name], 2.5 * term)
    assert scaled.reward_range == pytest.approx(tuple(2.5 * end for end in plain.reward_range))


@pytest.mark.ledger("R5")
def test_a_scaled_final_metric_is_not_clamped() -> None:
    config = EsperConfig(task="any", reward="sparse", reward_scale=2.5, rent=0.0, slot_rent=0.0)
    rng = np.random.default_rng(0)
    moved = transition(fuzzed_state(rng, 1), fuzzed_state(rng, 1), config, rng)
    moved.after.committed = torch.tensor([0.9], dtype=torch.float64)
    no, yes = torch.tensor([False]), torch.tensor([True])
    moved = replace(moved, invalid=no, rolled_back=no, finished=yes)
    assert Reward(config, Limits(SLOTS, LARGEST_ADDED))(moved)[0].item() == 2.5 * 0.9


def test_sparse_is_shaped_without_the_shaping() -> None:
    shaped, sparse = (tiny(4, reward=preset, horizon=10) for preset in ("shaped", "sparse"))
    sparse.reset(seed=1)
    for actions, _, reward, *_, infos in play(shaped, 10, seed=1):
        _, bare, *_ = sparse.step(actions)
        np.testing.assert_allclose(bare, reward - infos["reward_terms"]["shaping"], rtol=0, atol=1e-12)


@pytest.mark.ledger("R6")
@given(slope=st.floats(0.0, 1.0), cap=st.floats(0.0, 1.0))
def test_the_cost_of_holding_is_linear_up_to_its_cap(slope: float, cap: float) -> None:
    config = EsperConfig(task="any", holding_slope=slope, holding_cap=cap)
    rng = np.random.default_rng(0)
    moved = transition(fuzzed_state(rng, 50), fuzzed_state(rng, 50), config, rng)
    moved.after.stage = torch.zeros_like(moved.after.stage)
    moved.after.stage[:, 1] = Stage.HOLDING
    moved.after.stage_age[:, 1] = torch.arange(1, 51)
    cost = -TERMS["holding"].value(moved).numpy()
    np.testing.assert_allclose(cost, np.minimum(slope * np.arange(1, 51), cap), atol=1e-15)
    assert (np.diff(np.diff(cost)) <= 1e-12).all()  # the slope never rises
    assert (cost <= cap).all()


@pytest.mark.ledger("R8")
def test_an_unmeasured_seed_earns_no_contribution_and_the_weight_scales_what_a_measured_one_earns() -> None:
    light, heavy = (tiny(1, reward="contribution", contribution_weight=w, horizon=30) for w in (0.2, 0.6))
    light.reset(seed=3), heavy.reset(seed=3)
    script = [act(Op.GERMINATE, slot=1, blueprint=1), *[WAIT] * 4, act(Op.ADVANCE, slot=1), *[WAIT] * 8]
    earned = []
    for action in script:
        *_, infos = light.step(everywhere(action, 1))
        *_, more = heavy.step(everywhere(action, 1))
        one, three = (float(i["reward_terms"]["contribution"][0]) for i in (infos, more))
        assert three == pytest.approx(3 * one, abs=1e-15)
        earned.append(one)
    assert earned[:5] == [0.0] * 5
    assert any(earned[5:])


@pytest.mark.ledger("X1")
def test_the_reward_is_computed_after_the_effect() -> None:
    """The same step with other minibatches ends in another state, and so in another reward."""
    rewards = []
    for lr in (0.01, 0.1):
        env = tiny(1, reward="loss", learning_rate=(lr, lr))
        env.reset(seed=0)
        before = env.simulation.state.loss.clone()
        _, reward, *_ = env.step(everywhere(WAIT, 1))
        squashed = [float(loss / log(10) / (1 + loss / log(10))) for loss in (before, env.simulation.state.loss)]
        assert reward[0] == pytest.approx(squashed[0] - squashed[1], abs=1e-12)
        rewards.append(reward[0])
    assert rewards[0] != rewards[1]


@pytest.mark.ledger("X1")
@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_the_reward_changes_when_only_the_next_state_does(preset: str) -> None:
    config, rng = EsperConfig(task="any", reward=preset), np.random.default_rng(5)
    moved = transition(fuzzed_state(rng, 30), fuzzed_state(rng, 30), config, rng)
    other = replace(moved, after=fuzzed_state(np.random.default_rng(6), 30))
    other.after.potential = potential(other.after, config)
    reward = Reward(config, Limits(SLOTS, LARGEST_ADDED))
    assert (reward(moved)[0] != reward(other)[0]).all()


@pytest.mark.ledger("X2")
@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_permuting_the_slots_leaves_the_reward_alone(preset: str) -> None:
    config, rng = EsperConfig(task="any", reward=preset), np.random.default_rng(7)
    moved = transition(fuzzed_state(rng, 30), fuzzed_state(rng, 30), config, rng)
    order = torch.tensor([2, 0, 1])

    def permuted(state: State) -> State:
        tensors = state.tensors()
        return State(**{k: v[:, order] if v.shape[1:] == (SLOTS,) else v for k, v in tensors.items()})

    other = replace(moved, before=permuted(moved.before), after=permuted(moved.after))
    reward = Reward(config, Limits(SLOTS, LARGEST_ADDED))
    torch.testing.assert_close(reward(moved)[0], reward(other)[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(potential(other.after, config), moved.after.potential, rtol=0, atol=1e-12)


@pytest.mark.ledger("X10")
@pytest.mark.parametrize("preset", ["shaped", "sparse"])
def test_removal_costs_are_observed_but_never_paid_by_default(preset: str) -> None:
    config, rng = EsperConfig(task="any", reward=preset), np.random.default_rng(8)
    moved = transition(fuzzed_state(rng, 30), fuzzed_state(rng, 30), config, rng)
    reward = Reward(config, Limits(SLOTS, LARGEST_ADDED))
    paid = reward(moved)[0].clone()
    for name in ("contribution", "prospect", "all_off"):
        getattr(moved.after, name).copy_(torch.rand_like(getattr(moved.after, name)))
    assert torch.equal(reward(moved)[0], paid)
    assert EsperConfig(task="any").reward == "shaped"


@pytest.mark.ledger("X10")
def test_a_control_that_never_grows_is_paired_by_its_seed() -> None:
    """Until the grown host acts differently, both are the same host on the same data: the difference is the seed's."""
    grown, control = tiny(4), tiny(4)
    grown.reset(seed=9), control.reset(seed=9)
    for action in (act(Op.GERMINATE, slot=1), WAIT):
        grown.step(everywhere(action, 4)), control.step(everywhere(WAIT, 4))
        hosts = [env.simulation.population.body.values for env in (grown, control)]
        assert torch.equal(*hosts)
    for action in (act(Op.ADVANCE, slot=1), WAIT):
        grown.step(everywhere(action, 4)), control.step(everywhere(WAIT, 4))
    assert not torch.equal(*[env.simulation.population.body.values for env in (grown, control)])


@pytest.mark.ledger("R10", "V4")
@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_a_new_task_needs_no_edit_of_the_rewards(preset: str) -> None:
    name = f"two_classes_{preset}"

    def load() -> Data:
        data = load_tiny()
        halved = {k: replace(getattr(data, k), labels=getattr(data, k).labels % 2) for k in ("train", "val", "test")}
        return Data(**halved, classes=2)

    host = replace(TASKS[TINY].host, classes=2)
    TASKS.register(name, replace(TASKS[TINY], host=host, load=load, batch_size=5, minibatches_per_step=3))
    env = EsperVectorEnv(2, task=name, reward=preset, horizon=4)
    assert env.simulation.data.baseline_loss == log(2)
    for _, _, reward, *_ in play(env, 4):
        assert np.isfinite(reward).all()
    with pytest.raises(TypeError, match="classes"):
        Data(*(getattr(load_tiny(), k) for k in ("train", "val", "test")))


@pytest.mark.ledger("R11")
def test_the_reward_code_holds_no_number_of_its_own() -> None:
    for path in Path(esper_env.mdp.rewards.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and type(node.value) in (int, float):
                assert node.value in (0, 1), f"{path.name}:{node.lineno} has {node.value}"


COSTS = {
    **{
        "rent": ("rent", "sparse", 0.5),
        "slot_rent": ("rent", "sparse", 0.5),
        "metric_weight": ("shaping", "shaped", 0.5),
    },
    **{
        "stage_weight": ("shaping", "shaped", 0.5),
        "stage_potential": ("shaping", "shaped", (0.0, 0.5, 0.6, 0.7, 0.8, 0.0)),
    },
    **{"gamma": ("shaping", "shaped", 0.5), "rollback_penalty": ("rollback", "sparse", 2.0)},
    **{"invalid_action_cost": ("invalid_action", "sparse", 0.3), "loss_weight": ("loss_drop", "loss", 0.5)},
    **{
        "contribution_weight": ("contribution", "contribution", 2.0),
        "legitimate_age": ("contribution", "contribution", 9),
    },
    **{
        "entanglement_weight": ("entanglement", "contribution", 2.0),
        "ratio_epsilon": ("contribution", "contribution", 0.5),
    },
    **{"holding_slope": ("holding", "contribution", 0.001), "holding_cap": ("holding", "contribution", 0.005)},
    **{
        "shock_weight": ("alpha_shock", "contribution", 2.0),
        "op_costs": ("op_cost", "contribution", (0.1, 0.2, 0.3, 0.4, 0.5)),
    },
}


@pytest.mark.ledger("R11")
@pytest.mark.parametrize("field", COSTS)
def test_every_weight_of_the_configuration_moves_its_term(field: str) -> None:
    term, preset, value = COSTS[field]
    rng = np.random.default_rng(3)
    before, after = fuzzed_state(rng, 60), fuzzed_state(rng, 60)
    paid = []
    for config in (
        EsperConfig(task="any", reward=preset),
        EsperConfig(**{"task": "any", "reward": preset, field: value}),
    ):
        moved = transition(before, after, config, np.random.default_rng(4))
        paid.append(Reward(config, Limits(SLOTS, LARGEST_ADDED))(moved)[1][term])
    assert not torch.equal(*paid)


@pytest.mark.ledger("R11")
def test_overriding_the_cost_of_an_operation_changes_the_reward_of_a_step() -> None:
    rewards = []
    for cost in (0.002, 0.2):
        env = tiny(1, reward="contribution", op_costs=(0.0, cost, 0.0, 0.0, 0.0))
        env.reset(seed=0)
        rewards.append(env.step(everywhere(act(Op.GERMINATE), 1))[1][0])
    assert rewards[0] - rewards[1] == pytest.approx(0.198, abs=1e-12)


@pytest.mark.ledger("R1")
@pytest.mark.parametrize("gamma", [0.0, 0.9, 0.99, 1.0])
def test_the_environment_owns_gamma_and_its_spec_says_so(gamma: float) -> None:
    single, vector = gymnasium.make("Esper-v0", gamma=gamma), gymnasium.make_vec("Esper-v0", num_envs=2, gamma=gamma)
    for env in (single, vector):
        assert env.unwrapped.gamma == gamma
        assert env.spec.kwargs["gamma"] == gamma
    assert EsperEnv(task=TINY).gamma == EsperConfig(task=TINY).gamma


def test_random_play_earns_finite_returns_that_the_state_records() -> None:
    env: Any = tiny(4, horizon=6, autoreset_mode="disabled")
    total, rng = np.zeros(4), np.random.default_rng(0)
    _, infos = env.reset(seed=0)
    for _ in range(6):
        _, reward, terminated, _, infos = env.step(legal_actions(infos, rng))
        total += reward
    assert terminated.all()
    np.testing.assert_allclose(env.simulation.state.episode_return.numpy(), total, atol=1e-12)


def test_what_costs_nothing_is_not_told_as_minus_zero() -> None:
    env = gymnasium.make("Esper-v0", horizon=2)
    env.reset(seed=0)
    *_, info = env.step(dict.fromkeys(env.action_space, 0))
    assert not [name for name, value in info["reward_terms"].items() if str(value).startswith("-0.0") and not value]
