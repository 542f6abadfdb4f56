"""The agent in environments of every kind: ids, single and vector, numpy and torch, any autoreset, any gamma."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from esper_agent import FactoredRecurrentPPO
from esper_agent.algorithm.environments import TensorEnv, make_vector_env, resolve_gamma
from esper_agent.algorithm.observations import ObservationEncoder
from esper_agent.config import DEFAULT_GAMMA
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.callbacks import CallbackList
from toy_envs import Countdown, MaskedHeads, MockGrowth, hidden_cartpole_vector, make_hidden_cartpole

SMALL: dict[str, Any] = {"n_steps": 16, "sequence_length": 8, "encoder_sizes": (8,), "lstm_size": 8, "head_hidden": 8}


class Walk(gymnasium.Env[Any, Any]):
    """A single environment over any spaces: counts its steps, ends by truncation, offers masks on request."""

    def __init__(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], mask: Any = None) -> None:
        self.observation_space, self.action_space, self.mask = observation_space, action_space, mask

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.age = 0
        if seed is not None:
            self.observation_space.seed(seed)
        return self.observation_space.sample(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.age += 1
        return self.observation_space.sample(), 1.0, False, self.age >= 5, self._info()

    def _info(self) -> dict[str, Any]:
        return {} if self.mask is None else {"action_mask": self.mask}


OBSERVATIONS = {
    "box": spaces.Box(-1, 1, (3,), np.float32),
    "matrix": spaces.Box(0, 255, (2, 3), np.uint8),
    "discrete": spaces.Discrete(4),
    "multi_discrete": spaces.MultiDiscrete([2, 3]),
    "multi_binary": spaces.MultiBinary(5),
}
ACTIONS = {
    "discrete": (spaces.Discrete(3), None),
    "masked discrete": (spaces.Discrete(3), np.array([1, 0, 1], np.int8)),
    "multi_discrete": (spaces.MultiDiscrete([2, 4, 3]), None),
    "masked multi_discrete": (spaces.MultiDiscrete([2, 3]), np.array([1, 1, 0, 1, 0], np.int8)),
    "dict": (spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Discrete(3)}), None),
    "masked dict": (
        spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Discrete(3)}),
        {"a": np.array([1, 0, 0], np.int8), "b": np.array([1, 1], np.int8)},
    ),
}


def repeated(mask: Any, n: int) -> Any:
    """A single environment's mask for n of them."""
    if isinstance(mask, dict):
        return {name: repeated(part, n) for name, part in mask.items()}
    return None if mask is None else np.repeat(mask[None], n, axis=0)


@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize("action", ACTIONS)
def test_it_learns_and_predicts_over_all_supported_spaces(observation: str, action: str) -> None:
    space, mask = ACTIONS[action]
    env = Walk(OBSERVATIONS[observation], space, mask)
    model = FactoredRecurrentPPO(env, seed=0, **SMALL, n_minibatches=2, check_masks=True)
    model.learn(32)
    first, info = env.reset(seed=1)
    state = None
    for step in range(8):
        chosen, state = model.predict(first, state, np.array([step == 0]), action_masks=info.get("action_mask"))
        assert space.contains(chosen), chosen
    if action == "masked dict":
        assert chosen["a"] == 0
    batch, masks = np.stack([env.observation_space.sample() for _ in range(3)]), repeated(mask, 3)
    chosen, state = model.predict(batch, action_masks=masks)
    assert state[0].shape == (1, 3, 8)


@pytest.mark.parametrize("space", [spaces.Dict({"a": spaces.Text(2)}), spaces.Text(4), spaces.Discrete(3, start=1)])
def test_other_observation_spaces_are_refused_with_a_way_out(space: spaces.Space[Any]) -> None:
    with pytest.raises(ValueError, match="FlattenObservation"):
        ObservationEncoder.of(space)


def test_an_id_a_single_environment_and_a_vector_environment_are_all_taken() -> None:
    for env, n in (("CartPole-v1", 5), (gymnasium.make("CartPole-v1"), 1), (hidden_cartpole_vector(3), 3)):
        model = FactoredRecurrentPPO(env, n_envs=5, seed=0, **SMALL, n_minibatches=2)
        assert model.get_env().num_envs == n
        model.learn(16 * n)
        assert model.num_timesteps == 16 * n


def test_an_id_that_offers_torch_outputs_is_asked_for_them() -> None:
    def make(num_envs: int, output: str = "numpy", autoreset_mode: str = "next_step", **_: Any) -> MaskedHeads:
        assert autoreset_mode == "same_step"
        return MaskedHeads(num_envs, output=output)

    gymnasium.register("TorchOutputs-v0", entry_point=None, vector_entry_point=make)
    env = TensorEnv(
        make_vector_env("TorchOutputs-v0", 2), torch.device("cpu"), 0, check_masks=True, condition_on_op=True
    )
    assert env.tensors


def test_torch_outputs_give_the_same_run_as_numpy_outputs() -> None:
    models = [FactoredRecurrentPPO(MaskedHeads(4, output=output), seed=0, **SMALL) for output in ("numpy", "torch")]
    for model in models:
        model.learn(4 * 16 * 3)
    first, second = (model.policy.state_dict() for model in models)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_disabled_autoreset_is_refused() -> None:
    env = SyncVectorEnv([make_hidden_cartpole] * 2, autoreset_mode=AutoresetMode.DISABLED)
    with pytest.raises(ValueError, match=r"autoreset_mode is .*allowed: AutoresetMode\.SAME_STEP or NEXT_STEP"):
        FactoredRecurrentPPO(env, **SMALL)


@pytest.mark.ledger("R1")
@given(st.floats(0.5, 1.0), st.floats(0.5, 1.0))
@settings(max_examples=50, deadline=None)
def test_the_environment_owns_gamma(own: float, wanted: float) -> None:
    env = MockGrowth(2)
    env.gamma = own
    assert resolve_gamma(env, None) == own
    if wanted == own:
        assert resolve_gamma(env, wanted) == own
    else:
        with pytest.raises(ValueError, match=r"gamma is .*allowed: the environment's own"):
            resolve_gamma(env, wanted)


@pytest.mark.ledger("R1")
def test_an_agent_with_another_gamma_than_the_environments_is_not_built() -> None:
    with pytest.raises(ValueError, match=r"gamma is 0\.9; allowed: the environment's own, 0\.99"):
        FactoredRecurrentPPO(MockGrowth(4), gamma=0.9, **SMALL)
    assert FactoredRecurrentPPO(MockGrowth(4), **SMALL).learner.gamma == MockGrowth.gamma
    assert FactoredRecurrentPPO(Countdown(4), gamma=0.7, **SMALL).learner.gamma == 0.7
    assert FactoredRecurrentPPO(Countdown(4), **SMALL).learner.gamma == DEFAULT_GAMMA


def test_gamma_is_found_inside_a_vector_of_single_environments() -> None:
    def make() -> gymnasium.Env[Any, Any]:
        env = make_hidden_cartpole()
        env.unwrapped.gamma = 0.9
        return env

    env = SyncVectorEnv([make] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    assert resolve_gamma(env, None) == 0.9


def collected(env: Any, **changes: Any) -> FactoredRecurrentPPO:
    model = FactoredRecurrentPPO(env, seed=0, **{**SMALL, "policy_gain": 1.0, **changes})
    callback = CallbackList([])
    callback.init_callback(model)
    assert model.collect(callback)
    return model


@pytest.mark.ledger("U15", "P1")
def test_a_truncated_episode_is_valued_at_its_final_observation_with_the_carried_state() -> None:
    finals: list[Any] = []

    class Watched(MaskedHeads):
        def step(self, actions: Any) -> Any:
            result = super().step(actions)
            finals.append(result[4].get("final_obs"))
            return result

    model = collected(Watched(4), sequence_length=16)
    batch, policy = model.buffer.sequences(), model.policy
    assert model.buffer.bootstrapped.any()
    assert torch.equal(model.buffer.bootstrapped, model.buffer.truncated)
    for time, env in torch.nonzero(model.buffer.truncated).tolist():
        state = policy.initial_state(1)
        for past in range(time + 1):
            _, state = policy.step(
                model.buffer.observations[past, env][None, None], state, model.buffer.starts[past, env][None, None]
            )
        final = torch.from_numpy(finals[time][env])[None, None]
        expected = policy.value(final, state, torch.zeros(1, 1, dtype=torch.bool)).item()
        assert model.buffer.bootstraps[time, env].item() == pytest.approx(expected, abs=1e-5)
    assert batch.decisions.all()


@pytest.mark.ledger("X19", "B7")
@pytest.mark.parametrize("truncates", [True, False])
def test_both_autoreset_modes_give_the_same_advantages(truncates: bool) -> None:
    """The same fixed episodes, once with the reset inside the step and once in a step of its own."""

    class Fixed(Countdown):
        horizon = 5

        def advance(self, actions: Any) -> np.ndarray:
            return np.ones(len(actions)) + 0.1 * self.age

        def endings(self, over: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return over & (not truncates), over & truncates

    advantages = []
    for mode in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
        model = collected(Fixed(1, mode=mode), n_steps=36, sequence_length=36, n_minibatches=1)
        batch = model.buffer.sequences()
        old_policy = model.learner.old_policy(batch, model.learner.partition(1))
        model.learner.counters.rollouts = 1  # keep the value units where they are
        seen: list[torch.Tensor] = []
        compute = model.learner._advantages
        model.learner._advantages = lambda *args, compute=compute, seen=seen: seen.append(compute(*args)) or seen[-1]
        model.learner.targets(model.buffer, batch, old_policy, model.collector.last_values())
        advantages.append(seen[-1].flatten()[batch.decided])
    torch.testing.assert_close(advantages[0][:25], advantages[1][:25], atol=1e-5, rtol=1e-5)


@pytest.mark.ledger("X19")
def test_a_truncation_whose_final_observation_is_withheld_is_refused() -> None:
    class Silent(MaskedHeads):
        def step(self, actions: Any) -> Any:
            *result, infos = super().step(actions)
            infos.pop("final_obs", None)
            return *result, infos

    with pytest.raises(ValueError, match="truncated an episode without infos"):
        collected(Silent(4))


def test_final_observations_may_come_as_one_tensor() -> None:
    class Whole(MaskedHeads):
        def step(self, actions: Any) -> Any:
            *result, infos = super().step(actions)
            if "final_obs" in infos:
                rows = [np.zeros(6, np.float32) if row is None else row for row in infos["final_obs"]]
                infos["final_obs"] = torch.from_numpy(np.stack(rows))
            return *result, infos

    whole, single = collected(Whole(4)), collected(MaskedHeads(4))
    assert torch.equal(whole.buffer.bootstrapped, single.buffer.bootstrapped)
    kept = single.buffer.bootstrapped
    assert torch.equal(whole.buffer.bootstraps[kept], single.buffer.bootstraps[kept])


def test_in_next_step_mode_the_resetting_step_is_no_decision() -> None:
    model = collected(MaskedHeads(4, mode=AutoresetMode.NEXT_STEP))
    buffer = model.buffer
    done = buffer.terminated | buffer.truncated
    assert done.any()
    assert torch.equal(~buffer.decisions[1:], done[:-1])
    assert torch.equal(buffer.starts[2:], done[:-2])
    assert (buffer.rewards[1:][done[:-1]] == 0).all()


def test_episode_statistics_equal_those_of_the_environment() -> None:
    for mode in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
        model = FactoredRecurrentPPO(Countdown(3, mode=mode), seed=0, n_minibatches=2, **SMALL)
        model.learn(3 * 16 * 5)
        assert len(model.ep_info_buffer) > 10
        assert {(episode["r"], episode["l"]) for episode in model.ep_info_buffer} == {(10.0, 10)}


def test_masks_are_checked_when_asked_for() -> None:
    class Broken(MaskedHeads):
        def masks(self) -> dict[str, Any]:
            masks = super().masks()
            masks["action_mask_by_op"]["slot"][1, 0] = 0
            return masks

    FactoredRecurrentPPO(Broken(4), **SMALL)
    with pytest.raises(ValueError, match="environment 1 gives a mask for head 'slot' that leaves no legal value"):
        FactoredRecurrentPPO(Broken(4), check_masks=True, **SMALL)


@pytest.mark.ledger("P10", "P12")
def test_an_environment_with_other_heads_is_refused() -> None:
    class Reordered(MaskedHeads):
        heads = ("op", "blueprint", "slot")

    model = FactoredRecurrentPPO(MaskedHeads(4), seed=0, **SMALL)
    with pytest.raises(ValueError, match="actions of the environment"):
        model.set_env(Reordered(4))
    with pytest.raises(ValueError, match="observations of the environment"):
        model.set_env(MockGrowth(4))
    model.set_env(MaskedHeads(2))
    model.learn(32)


def test_one_hot_observations_are_not_rescaled() -> None:
    for name, rescaled in (("box", True), ("discrete", False), ("multi_discrete", False)):
        env = Walk(OBSERVATIONS[name], spaces.Discrete(2))
        model = FactoredRecurrentPPO(env, seed=0, **SMALL, n_minibatches=2)
        assert (model.policy.normalizer is not None) == rescaled


@pytest.mark.ledger("T2")
def test_observations_reach_the_network_as_the_environment_gave_them() -> None:
    model = collected(MaskedHeads(4))
    env = MaskedHeads(4)
    observations, _ = env.reset(seed=model.seed)
    assert torch.equal(model.buffer.observations[0], torch.from_numpy(observations))


@pytest.mark.ledger("V3")
def test_two_agents_trained_in_turns_equal_two_trained_alone() -> None:
    def make(seed: int) -> FactoredRecurrentPPO:
        return FactoredRecurrentPPO(MaskedHeads(4), seed=seed, **SMALL)

    alone, first, second = make(0), make(0), make(1)
    for _ in range(3):
        alone.learn(64, reset_num_timesteps=False)
    for _ in range(3):
        first.learn(64, reset_num_timesteps=False)
        second.learn(64, reset_num_timesteps=False)
    expected, got = alone.policy.state_dict(), first.policy.state_dict()
    assert all(torch.equal(expected[name], got[name]) for name in expected)


def test_the_global_random_state_is_left_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    FactoredRecurrentPPO(MaskedHeads(4), seed=0, **SMALL).learn(64)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sequence_length": 7}, r"sequence_length is 7; allowed: a divisor of n_steps=16"),
        ({"n_minibatches": 9}, r"n_minibatches is 9; allowed: at most 8"),
        ({"gae_lambda": 1.5}, r"gae_lambda is 1.5; allowed: between 0 and 1"),
        ({"n_epochs": 0}, r"n_epochs is 0; allowed: an integer of at least 1"),
        ({"clip_mode": "none"}, r"clip_mode is 'none'; allowed: one of \('joint', 'per_head'\)"),
        ({"encoder_sizes": ()}, r"encoder_sizes is \(\); allowed: a non-empty tuple"),
        ({"ent_coef": {"op": -1.0}}, r"ent_coef is \{'op': -1.0\}; allowed: a finite number from 0 on"),
        ({"target_kl": 0}, r"target_kl is 0; allowed: a positive finite number"),
        ({"adam_epsilon": 2.0}, r"adam_epsilon is 2.0; allowed: above 0, up to 1"),
    ],
)
def test_wrong_settings_are_named_with_what_is_allowed(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FactoredRecurrentPPO(MaskedHeads(4), **{**SMALL, **settings})


def test_an_unknown_setting_is_named() -> None:
    with pytest.raises(TypeError, match=r"unknown settings \['learning_rat'\]; allowed: learning_rate"):
        FactoredRecurrentPPO(MaskedHeads(4), learning_rat=1.0)
