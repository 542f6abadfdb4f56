"""Wrappers: other action spaces with the right masks, and masks in the observation, single and vector."""

import itertools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from esper_env import HEADS, EsperEnv, EsperVectorEnv, Op
from esper_env.wrappers import (
    DiscreteActions,
    MaskInObservation,
    MultiDiscreteActions,
    VectorDiscreteActions,
    VectorMaskInObservation,
    VectorMultiDiscreteActions,
    joint_actions,
)
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from quick_life import QUICK_LIFE
from sb3_contrib import MaskablePPO, RecurrentPPO
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv

SETTINGS: dict[str, Any] = {"task": "digits_mlp", "horizon": 6, "training_steps": 1, **QUICK_LIFE}
SINGLE = (MultiDiscreteActions, DiscreteActions)
VECTOR = (VectorMultiDiscreteActions, VectorDiscreteActions)


def legal_sample(flags: np.ndarray, space: gymnasium.Space[Any], rng: np.random.Generator) -> Any:
    """One action of a wrapped single environment, by its flags."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return rng.choice(np.flatnonzero(flags))
    parts = np.split(flags, np.cumsum(space.nvec)[:-1])
    return np.array([rng.choice(np.flatnonzero(part)) for part in parts])


def test_joint_actions_are_all_that_differ() -> None:
    sizes = dict(zip(HEADS, (len(Op), 3, 5, 3, 3), strict=True))
    table = joint_actions(sizes)
    everything = np.array(list(itertools.product(*(range(size) for size in sizes.values()))))
    uses = {Op.WAIT: 0, Op.GERMINATE: 4, Op.ADVANCE: 1, Op.FOSSILIZE: 1, Op.PRUNE: 1}
    canonical = {tuple(row[: 1 + uses[Op(row[0])]]) + (0,) * (4 - uses[Op(row[0])]) for row in everything.tolist()}
    assert len(table) == len(canonical) == 1 + 3 * 5 * 3 * 3 + 3 * 3
    assert {tuple(row) for row in table.tolist()} == canonical
    assert table[0].tolist() == [Op.WAIT, 0, 0, 0, 0]


@pytest.mark.parametrize("wrapper", SINGLE)
def test_flags_say_what_the_environment_executes(wrapper: type[gymnasium.Wrapper[Any, Any, Any, Any]]) -> None:
    env = wrapper(EsperEnv(**SETTINGS))
    rng = np.random.default_rng(0)
    for seed in range(3):
        _, info = env.reset(seed=seed)
        over = False
        while not over:
            flags = env.action_masks()
            assert flags.dtype == np.bool_
            assert np.array_equal(flags, info["action_mask"])
            action = legal_sample(flags, env.action_space, rng)
            assert env.action_space.contains(action)
            _, _, over, _, info = env.step(action)
            if wrapper is DiscreteActions:
                assert not info["invalid_action"]


def test_exact_flags_agree_with_the_tables_by_operation() -> None:
    env = DiscreteActions(EsperEnv(**SETTINGS))
    env.reset(seed=0)
    for op in (Op.GERMINATE, Op.WAIT, Op.ADVANCE, Op.WAIT):
        by_op = env.unwrapped.legality()["action_mask_by_op"]
        flags = env.action_masks()
        for number, (chosen, *rest) in enumerate(env.actions.table.tolist()):
            legal = by_op["op"][0, chosen] and all(
                by_op[head][chosen, value] for head, value in zip(HEADS[1:], rest, strict=True)
            )
            assert flags[number] == bool(legal)
        env.step(int(np.flatnonzero(flags & (env.actions.table[:, 0] == op))[0]))


def test_illegal_joint_actions_are_declined() -> None:
    env = DiscreteActions(EsperEnv(**SETTINGS | {"horizon": 100}))
    env.reset(seed=0)
    for number in np.flatnonzero(~env.action_masks()):
        assert env.step(int(number))[4]["invalid_action"]


def test_marginal_flags_follow_the_order_of_the_heads() -> None:
    env = MultiDiscreteActions(EsperEnv(**SETTINGS))
    env.reset(seed=0)
    assert env.action_space.nvec.tolist() == [len(Op), 3, 5, 3, 3]
    masks = env.unwrapped.legality()["action_mask"]
    assert np.array_equal(env.action_masks(), np.concatenate([masks[head] for head in HEADS]))
    env.step(np.array([Op.GERMINATE, 2, 4, 1, 0]))
    state, census = env.unwrapped.row.state, env.unwrapped.row.census
    assert (census.blueprint[0, 2], census.blend[0, 2], state.ramp[0, 2]) == (4, 1, 3)


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize(("vector", "single"), list(zip(VECTOR, SINGLE, strict=True)))
def test_vector_rows_equal_wrapped_singles(mode: str, vector: Any, single: Any) -> None:
    settings = SETTINGS | {"horizon": 3, "dtype": "float64"}
    env = vector(EsperVectorEnv(2, autoreset_mode=mode, **settings))
    rows = [single(EsperEnv(**settings)) for _ in range(2)]
    assert env.single_action_space == rows[0].action_space
    rng = np.random.default_rng(1)
    _, infos = env.reset(seed=5)
    for number, row in enumerate(rows):
        row.reset(seed=5 + number)
    for _ in range(3):
        flags = env.action_masks()
        assert np.array_equal(flags, infos["action_mask"])
        assert np.array_equal(flags, np.stack([row.action_masks() for row in rows]))
        actions = np.stack([legal_sample(row.action_masks(), row.action_space, rng) for row in rows])
        assert env.action_space.contains(actions)
        observations, rewards, ended, _, infos = env.step(actions)
        results = [row.step(action) for row, action in zip(rows, actions, strict=True)]
        assert np.allclose(rewards, [result[1] for result in results], atol=1e-8)
    assert ended.all()
    if mode == "same_step":
        final = infos["final_info"]["action_mask"]
        assert np.array_equal(final, np.stack([result[4]["action_mask"] for result in results]))
    else:
        assert np.allclose(observations, np.stack([result[0] for result in results]), atol=1e-6)


@pytest.mark.parametrize("wrapper", VECTOR)
def test_vector_wrappers_keep_tensors(wrapper: Any) -> None:
    env = wrapper(EsperVectorEnv(2, output="torch", **SETTINGS))
    env.reset(seed=0)
    flags = env.action_masks()
    assert isinstance(flags, torch.Tensor)
    assert flags.dtype == torch.bool
    actions = torch.from_numpy(env.action_space.sample())
    assert isinstance(env.step(actions)[4]["action_mask"], torch.Tensor)


@pytest.mark.parametrize("inner", [lambda env: env, MultiDiscreteActions, DiscreteActions])
def test_the_mask_stands_in_the_observation(inner: Callable[[Any], Any]) -> None:
    env = MaskInObservation(inner(EsperEnv(**SETTINGS)))
    observation, info = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    before = observation["action_mask"].copy()
    operation = {head: 1 if head == "op" else 0 for head in HEADS}
    action = operation if isinstance(env.action_space, gymnasium.spaces.Dict) else env.action_space.sample() * 0 + 1
    observation, *_, info = env.step(action)
    assert env.observation_space.contains(observation)
    assert not np.array_equal(before, observation["action_mask"])
    flat = info["action_mask"]
    flat = np.concatenate([flat[head] for head in HEADS]) if isinstance(flat, dict) else flat
    assert np.array_equal(flat, observation["action_mask"])


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
@pytest.mark.parametrize("inner", [lambda env: env, *VECTOR])
def test_the_masks_stand_in_vector_observations(mode: str, inner: Callable[[Any], Any]) -> None:
    env = VectorMaskInObservation(inner(EsperVectorEnv(2, autoreset_mode=mode, **SETTINGS | {"horizon": 1})))
    observations, _ = env.reset(seed=0)
    assert env.observation_space.contains(observations)
    assert env.metadata["autoreset_mode"] is AutoresetMode[mode.upper()]
    observations, *_, infos = env.step(env.action_space.sample())
    assert env.observation_space.contains(observations)
    if mode == "same_step":
        for row in range(2):
            assert env.single_observation_space.contains(infos["final_obs"][row])


@pytest.mark.parametrize("wrapper", [*SINGLE, MaskInObservation])
def test_wrapped_environments_pass_gymnasiums_checker(wrapper: Any, recwarn: pytest.WarningsRecorder) -> None:
    check_env(wrapper(EsperEnv(**SETTINGS)), skip_render_check=True)
    advice = "different from the unwrapped version"  # the checker would rather see the bare environment
    assert [str(warning.message) for warning in recwarn if advice not in str(warning.message)] == []


@pytest.mark.parametrize("wrapper", [*SINGLE, MaskInObservation])
def test_a_wrapped_environment_is_made_again_from_its_spec(wrapper: Any) -> None:
    env = wrapper(gymnasium.make("Esper-v0", horizon=4))
    spec = gymnasium.envs.registration.EnvSpec.from_json(env.spec.to_json())
    again = gymnasium.make(spec)
    assert again.action_space == env.action_space
    assert again.observation_space == env.observation_space
    assert again.unwrapped.row.simulation.config.horizon == 4


def test_action_wrappers_refuse_other_spaces() -> None:
    with pytest.raises(TypeError, match="needs Dict actions"):
        DiscreteActions(gymnasium.make("CartPole-v1"))
    with pytest.raises(TypeError, match="needs Dict actions"):
        VectorDiscreteActions(gymnasium.make_vec("CartPole-v1", 2))


def test_masks_follow_a_loaded_state() -> None:
    env, other = (DiscreteActions(EsperEnv(**SETTINGS)) for _ in range(2))
    env.reset(seed=0)
    other.reset(seed=1)
    env.step(1)
    other.unwrapped.load_state_dict(env.unwrapped.state_dict())
    assert np.array_equal(env.action_masks(), other.action_masks())


@pytest.mark.parametrize("wrapper", SINGLE)
def test_maskable_ppo_learns_with_the_masks(wrapper: Any) -> None:
    env = DummyVecEnv([lambda: wrapper(EsperEnv(**SETTINGS)) for _ in range(2)])
    assert is_masking_supported(env)
    model = MaskablePPO("MlpPolicy", env, n_steps=32, batch_size=32, n_epochs=1, seed=0, device="cpu")
    model.learn(256)
    assert model.num_timesteps == 256
    observation = env.reset()
    action, _ = model.predict(observation, action_masks=get_action_masks(env))
    if wrapper is DiscreteActions:
        *_, infos = env.step(action)
        assert not any(info["invalid_action"] for info in infos)


@pytest.mark.parametrize(("algorithm", "policy"), [(PPO, "MlpPolicy"), (RecurrentPPO, "MlpLstmPolicy")])
def test_unmasked_baselines_run(algorithm: Any, policy: str) -> None:
    env = DummyVecEnv([lambda: MultiDiscreteActions(EsperEnv(**SETTINGS))])
    model = algorithm(policy, env, n_steps=32, batch_size=32, n_epochs=1, seed=0, device="cpu")
    assert model.learn(64).num_timesteps == 64


MASK_FORMS: dict[str, dict[str, Any]] = {
    "rllib": {"keys": ("observations", "action_mask"), "dtype": "float32"},
    "tianshou": {"keys": ("obs", "mask"), "dtype": "bool"},
    "by op": {"by_op": True},
}


@pytest.mark.parametrize("form", MASK_FORMS)
def test_keys_and_type_of_the_mask_are_the_readers(form: str) -> None:
    env = MaskInObservation(EsperEnv(**SETTINGS), **MASK_FORMS[form])
    check_env(env, skip_render_check=True)
    observation, info = env.reset(seed=0)
    keys = MASK_FORMS[form].get("keys", ("observation", "action_mask"))
    assert set(observation) == set(keys)
    mask = observation[keys[1]]
    assert mask.dtype == MASK_FORMS[form].get("dtype", "int8")
    source = info["action_mask_by_op" if form == "by op" else "action_mask"]
    assert np.array_equal(mask, np.concatenate([source[head] for head in HEADS], axis=-1))


@pytest.mark.parametrize("form", MASK_FORMS)
@pytest.mark.parametrize("output", ["numpy", "torch"])
def test_vector_masks_take_the_same_forms(form: str, output: str) -> None:
    vector = EsperVectorEnv(2, autoreset_mode="same_step", output=output, **SETTINGS | {"horizon": 1})
    env, single = (
        VectorMaskInObservation(vector, **MASK_FORMS[form]),
        MaskInObservation(EsperEnv(**SETTINGS), **MASK_FORMS[form]),
    )
    batched = env.reset(seed=3)[0]
    row, _ = single.reset(seed=3)
    for key, value in row.items():
        assert np.array_equal(np.asarray(batched[key][0]), value)
    _, *_, infos = env.step(dict.fromkeys(HEADS, np.zeros(2, dtype=np.int64)))
    final = infos["final_obs"]
    first = {key: np.asarray(value[0]) for key, value in final.items()} if output == "torch" else final[0]
    assert env.single_observation_space.contains(first)


def test_a_wrapper_with_other_keys_is_made_again_from_its_spec() -> None:
    env = MaskInObservation(gymnasium.make("Esper-v0"), keys=["obs", "mask"], dtype="bool")
    again = gymnasium.make(gymnasium.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    assert again.observation_space == env.observation_space


def test_the_form_of_a_mask_is_checked() -> None:
    env = EsperEnv(**SETTINGS)
    with pytest.raises(ValueError, match="allowed: two names"):
        MaskInObservation(env, keys=("obs",))
    with pytest.raises(ValueError, match="allowed: int8, bool, float32"):
        MaskInObservation(env, dtype="int64")
    with pytest.raises(ValueError, match="allowed: with Dict actions only"):
        MaskInObservation(DiscreteActions(env), by_op=True)


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
@pytest.mark.parametrize("wrapper", [*VECTOR, VectorMaskInObservation])
def test_vector_wrappers_answer_for_the_autoreset_mode(mode: str, wrapper: Any) -> None:
    env = wrapper(EsperVectorEnv(2, autoreset_mode=mode, **SETTINGS))
    assert env.autoreset_mode is AutoresetMode[mode.upper()]
