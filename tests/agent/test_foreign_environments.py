"""Everybody's environments: masks by method, SB3's VecEnv, processes, wrappers, images, dicts."""

from typing import Any

import esper_env.wrappers
import gymnasium
import numpy as np
import pytest
import torch
from esper_agent import FactoredRecurrentPPO, evaluate_policy
from esper_agent.algorithm.environments import make_vector_env, resolve_gamma
from esper_agent.baselines.sb3_env import EsperVecEnv
from esper_agent.config import DEFAULT_GAMMA
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import NormalizeReward
from sb3_contrib.common.envs import InvalidActionEnvDiscrete, InvalidActionEnvMultiDiscrete
from sb3_contrib.common.maskable.evaluation import evaluate_policy as evaluate_with_masks
from sb3_contrib.common.wrappers import ActionMasker
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecMonitor
from toy_envs import Countdown, MaskedHeads, make_hidden_cartpole

SMALL: dict[str, Any] = {
    "n_steps": 16, "sequence_length": 8, "encoder_sizes": (8,), "lstm_size": 8, "head_hidden": 8, "n_minibatches": 2,
}  # fmt: skip


def make_model(env: Any, **changes: Any) -> FactoredRecurrentPPO:
    return FactoredRecurrentPPO(env, seed=0, **{**SMALL, **changes})


class Strict(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Fails on an illegal action."""

    def step(self, action: Any) -> Any:
        env: Any = self.env.unwrapped
        offsets = np.cumsum([0, *getattr(env.action_space, "nvec", [])[:-1]]).astype(int)
        assert all(env.action_masks()[place] for place in offsets + np.atleast_1d(action)), action
        return super().step(action)


def discrete() -> gymnasium.Env[Any, Any]:
    return Strict(InvalidActionEnvDiscrete(dim=6, ep_length=7, n_invalid_actions=4))


def multi_discrete() -> gymnasium.Env[Any, Any]:
    return Strict(InvalidActionEnvMultiDiscrete(dims=[3, 4], ep_length=7, n_invalid_actions=4))


def by_wrapper() -> gymnasium.Env[Any, Any]:
    """CartPole that may only be pushed to the right."""
    return ActionMasker(gymnasium.make("CartPole-v1"), lambda _: np.array([False, True]))


VECTORS: dict[str, Any] = {
    "single": lambda make: make(),
    "same step": lambda make: SyncVectorEnv([make] * 3, autoreset_mode=AutoresetMode.SAME_STEP),
    "next step": lambda make: SyncVectorEnv([make] * 3, autoreset_mode=AutoresetMode.NEXT_STEP),
    "processes": lambda make: AsyncVectorEnv([make] * 2, autoreset_mode=AutoresetMode.SAME_STEP),
    "sb3": lambda make: VecMonitor(DummyVecEnv([make] * 3)),
    "sb3 processes": lambda make: SubprocVecEnv([make] * 2, start_method="fork"),
}


@pytest.mark.ledger("Y34")
@pytest.mark.parametrize("vector", VECTORS)
@pytest.mark.parametrize("make", [discrete, multi_discrete])
def test_masks_that_an_environment_tells_by_method_are_honoured(make: Any, vector: str) -> None:
    env = VECTORS[vector](make)
    model = make_model(env)
    assert model.action_spec.masked
    model.learn(model.n_envs * 32)
    evaluate_policy(model, env, 3, deterministic=False)
    env.close()


@pytest.mark.ledger("Y34")
def test_masks_of_a_wrapper_and_of_a_vector_environment_are_honoured() -> None:
    class Vector(Countdown):
        def action_masks(self) -> Any:
            return np.tile([False, True], (self.num_envs, 1))

        def make_action_space(self) -> spaces.Space[Any]:
            return spaces.Discrete(2)

    for env in (by_wrapper(), Vector(3), DummyVecEnv([by_wrapper] * 2)):
        model = make_model(env)
        model.learn(model.n_envs * 16)
        assert (model.buffer.actions == 1).all()


@pytest.mark.ledger("Y34")
def test_sb3_contrib_evaluates_the_agent_with_its_masks() -> None:
    env = DummyVecEnv([multi_discrete] * 2)
    mean, _ = evaluate_with_masks(make_model(env), env, 4, deterministic=False, warn=False)  # type: ignore[arg-type]
    assert mean >= 0
    model, single = make_model(discrete()), discrete()
    observation, _ = single.reset(seed=0)
    for _ in range(10):
        action, _ = model.predict(observation, action_masks=single.get_wrapper_attr("action_masks")())
        observation, *_ = single.step(action)


@pytest.mark.ledger("Y34")
def test_an_sb3_vec_env_gives_the_run_of_the_same_gymnasium_environments() -> None:
    sync = SyncVectorEnv([make_hidden_cartpole] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    models = [make_model(env) for env in (sync, DummyVecEnv([make_hidden_cartpole] * 2))]
    first, second = (model.learn(32).policy.state_dict() for model in models)
    assert torch.equal(models[0].buffer.observations, models[1].buffer.observations)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.ledger("Y34")
def test_a_truncation_of_sb3_is_valued_at_its_last_observation() -> None:
    make = lambda: gymnasium.make("CartPole-v1", max_episode_steps=5)  # noqa: E731
    model = make_model(DummyVecEnv([make] * 2))
    model.learn(32)
    assert model.buffer.truncated.any()
    assert torch.equal(model.buffer.bootstrapped, model.buffer.truncated)
    assert not model.buffer.terminated.any()


class Picture(gymnasium.Env[Any, Any]):
    action_space = spaces.Discrete(2)

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.observation_space = space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), float(action), False, bool(self.np_random.random() < 0.2), {}


IMAGE = spaces.Box(0, 255, (4, 4, 3), np.uint8)


@pytest.mark.ledger("Y34")
@pytest.mark.parametrize(
    ("space", "size", "message"),
    [
        (IMAGE, 48, r"observations of shape \(4, 4, 3\) are flattened into 48 numbers: this agent has no convolutions"),
        (spaces.Dict({"b": spaces.Discrete(3), "a": spaces.Box(0, 1, (2,))}), 5, "the parts a, b of the observation"),
        (spaces.Dict({"b": spaces.Dict({"c": IMAGE})}), 48, "flattened into 48 numbers"),
    ],
)
def test_images_and_dicts_are_flattened_and_the_user_is_told(space: Any, size: int, message: str) -> None:
    with pytest.warns(UserWarning, match=message):
        model = make_model(SyncVectorEnv([lambda: Picture(space)] * 2, autoreset_mode=AutoresetMode.SAME_STEP))
    assert model.learn(64).buffer.observations.shape[-1] == size
    assert model.buffer.bootstrapped.any()
    assert model.predict(space.sample())[0] in (0, 1)


@pytest.mark.ledger("Y19")
@pytest.mark.parametrize("output", ["numpy", "torch"])
@pytest.mark.parametrize("form", ["Discrete", "MultiDiscrete"])
def test_it_trains_in_the_action_wrappers_of_the_environment_package(form: str, output: str) -> None:
    wrap = getattr(esper_env.wrappers, f"Vector{form}Actions")
    env = gymnasium.make_vec("Esper-v0", num_envs=2, autoreset_mode="same_step", output=output, horizon=6)
    illegal: list[Any] = []
    model = make_model(wrap(env))
    model.learn(32, lambda told, _: illegal.extend(info["invalid_action"] for info in told["infos"]) or True)
    assert model.action_spec.masked
    assert len(illegal) == 32
    if form == "Discrete":
        assert not any(illegal)
    single = getattr(esper_env.wrappers, f"{form}Actions")(gymnasium.make("Esper-v0", horizon=6))
    model.set_env(single)


class Marginal(MaskedHeads):
    """Marginal masks only, or none."""

    masked = True

    def masks(self) -> dict[str, Any]:
        return {"action_mask": super().masks()["action_mask"]} if self.masked else {}


class Unmasked(Marginal):
    masked = False


@pytest.mark.ledger("Y20")
@pytest.mark.parametrize("env", [MaskedHeads, Marginal, Unmasked])
@pytest.mark.parametrize("conditioned", [True, False])
def test_heads_see_the_op_with_masks_per_op_marginal_ones_or_none(env: Any, conditioned: bool) -> None:
    model = make_model(env(4), condition_on_op=conditioned, check_masks=True)
    model.learn(64)
    features = torch.randn(2, 1, 8)
    rows = model.policy.decoder.logits(features)[1:].unflatten(0, (model.action_spec.rows, -1))
    differ = len(rows) > 1 and not torch.equal(rows[0], rows[1])
    assert differ == conditioned


@pytest.mark.ledger("Y20")
def test_marginal_masks_hold_under_every_op() -> None:
    model = make_model(Marginal(4), policy_gain=5.0)
    model.learn(64)
    masks, actions, spec = model.buffer.masks, model.buffer.actions, model.action_spec
    assert masks is not None
    for place, size in enumerate(spec.sizes[1:]):
        cells = masks[:, 1:].unflatten(1, (spec.rows, -1))[:, :, place]
        assert torch.equal(cells, cells[:, :1].expand_as(cells))
        legal = cells[:, 0, :size].gather(1, actions[:, 1 + place][:, None])
        assert legal.all()


@pytest.mark.ledger("Y20")
def test_heads_too_large_to_see_the_op_are_refused_by_name() -> None:
    class Large(Countdown):
        def make_action_space(self) -> spaces.Space[Any]:
            return spaces.MultiDiscrete([1000, 1000])

    with pytest.raises(ValueError, match=r"condition_on_op is True; allowed: False, since actions \(1000, 1000\)"):
        make_model(Large(2))
    make_model(Large(2), condition_on_op=False)


@pytest.mark.ledger("Y24")
@pytest.mark.parametrize("vector", ["single", "same step", "processes", "sb3", "sb3 processes"])
def test_the_gamma_of_a_wrapper_is_not_the_environments(vector: str) -> None:
    env = VECTORS[vector](lambda: NormalizeReward(make_hidden_cartpole(), gamma=0.5))
    vector_env = make_vector_env(env, 1)
    assert resolve_gamma(vector_env, None) == DEFAULT_GAMMA
    assert resolve_gamma(vector_env, 0.7) == 0.7
    env.close()


@pytest.mark.ledger("Y24", "R1")
@pytest.mark.parametrize("vector", ["single", "same step", "processes", "sb3", "sb3 processes"])
def test_the_gamma_of_an_environment_is_found_beneath_its_wrappers(vector: str) -> None:
    class Own(gymnasium.Wrapper[Any, Any, Any, Any]):
        pass

    def make() -> gymnasium.Env[Any, Any]:
        env = make_hidden_cartpole()
        env.unwrapped.gamma = 0.9  # type: ignore[attr-defined]
        return Own(env)

    env = VECTORS[vector](make)
    assert resolve_gamma(make_vector_env(env, 1), None) == 0.9
    env.close()


def test_esper_behind_sb3_is_an_environment_like_another() -> None:
    model = make_model(VecMonitor(EsperVecEnv("Esper-v0", 2, horizon=6)))
    assert model.gamma == 0.99
    assert model.action_spec.masked
    model.learn(32)
    with pytest.raises(ValueError, match=r"gamma is 0\.9; allowed: the environment's own, 0\.99"):
        make_model(EsperVecEnv("Esper-v0", 2, horizon=6), gamma=0.9)


@pytest.mark.ledger("Y21")
def test_predict_refuses_masks_of_other_observations_with_the_shapes() -> None:
    env = MaskedHeads(4)
    model, (observations, infos) = make_model(env), env.reset(seed=0)
    one = {key: {name: mask[0] for name, mask in part.items()} for key, part in infos.items()}
    model.predict(observations, action_masks=infos)
    model.predict(observations[0], action_masks=one)
    few = {key: {name: mask[:1] for name, mask in part.items()} for key, part in infos.items()}
    for given in (few, one):
        with pytest.raises(ValueError, match=r"action_mask\['op'\] has shape .*; allowed: \(4, 3\) for 4 observations"):
            model.predict(observations, action_masks=given)
    for given in (infos, few):
        with pytest.raises(ValueError, match=r"action_mask\['op'\] has shape .*allowed: \(3,\) for one observation"):
            model.predict(observations[0], action_masks=given)
    broken = {**infos, "action_mask_by_op": {**infos["action_mask_by_op"], "slot": infos["action_mask"]["slot"]}}
    with pytest.raises(ValueError, match=r"action_mask_by_op\['slot'\] has shape \(4, \d\); allowed: \(4, 3, \d\)"):
        model.predict(observations, action_masks=broken)
    del broken["action_mask_by_op"]["slot"]
    with pytest.raises(ValueError, match="allowed: one for each of"):
        model.predict(observations, action_masks=broken)


@pytest.mark.ledger("Y21")
def test_predict_refuses_flat_masks_of_another_size() -> None:
    env = DummyVecEnv([multi_discrete] * 2)
    model = make_model(env)
    observations = env.reset()
    model.predict(observations, action_masks=env.env_method("action_masks"))
    with pytest.raises(ValueError, match=r"action_mask has shape \(7,\); allowed: \(2, 7\) for 2 observations"):
        model.predict(observations, action_masks=env.env_method("action_masks")[0])
    with pytest.raises(ValueError, match=r"action_mask has shape \(2, 6\); allowed: \(2, 7\)"):
        model.predict(observations, action_masks=np.ones((2, 6)))


@pytest.mark.ledger("Y21")
def test_predict_needs_masks_only_where_the_environment_gives_them() -> None:
    model = make_model(MaskedHeads(2))
    with pytest.raises(ValueError, match="action_masks is None; allowed: the environment's infos or masks"):
        model.predict(np.zeros((2, 6), np.float32))
    make_model(Countdown(2)).predict(np.zeros((2, Countdown.observation_size), np.float32))
