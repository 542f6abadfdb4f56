"""Gymnasium's own tools run on every id: the checker, make, specs, and the wrappers."""

import json
import pickle
import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from env_tools import IDS
from esper_env import HEADS, EsperVectorEnv, sample_mask
from esper_env.registration import register_environments
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import NormalizeObservation, RecordEpisodeStatistics, TimeLimit
from gymnasium.wrappers import vector as vector_wrappers

WAIT = dict.fromkeys(HEADS, 0)


def waits(n: int) -> dict[str, Any]:
    return {head: np.zeros(n, dtype=np.int64) for head in HEADS}


@pytest.fixture
def silent() -> Iterator[None]:
    """Any warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def make(**settings: Any) -> Any:
    return gymnasium.make("Esper-v0", **{"horizon": 3} | settings)


@pytest.mark.parametrize("name", IDS)
@pytest.mark.usefixtures("silent")
def test_the_checker_passes_without_a_warning(name: str) -> None:
    check_env(gymnasium.make(name).unwrapped)


@pytest.mark.parametrize("name", IDS)
def test_ids_are_made_with_and_without_the_module(name: str) -> None:
    for full in (name, f"esper_env:{name}"):
        assert gymnasium.make(full).unwrapped.row.num_envs == 1
    vector = gymnasium.make_vec(name, num_envs=2)
    assert isinstance(vector.unwrapped, EsperVectorEnv)
    assert vector.single_action_space == gymnasium.make(name).action_space
    assert vector.single_observation_space == gymnasium.make(name).observation_space


def test_registering_twice_is_harmless() -> None:
    before = dict(gymnasium.registry)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        register_environments()
    assert gymnasium.registry == before


@pytest.mark.parametrize("name", IDS)
def test_specs_survive_pickle_and_json(name: str) -> None:
    env = gymnasium.make(name, reward="sparse", learning_rate=(0.05, 0.06), gamma=0.9)
    for spec in (pickle.loads(pickle.dumps(env.spec)), EnvSpec.from_json(env.spec.to_json())):
        again = gymnasium.make(spec).unwrapped
        assert again.row.simulation.config == env.unwrapped.row.simulation.config
    assert json.loads(env.spec.to_json())["kwargs"]["gamma"] == 0.9
    vector = gymnasium.make_vec(name, num_envs=2, autoreset_mode="same_step", output="torch")
    again = gymnasium.make_vec(EnvSpec.from_json(vector.spec.to_json()), num_envs=2)
    assert again.unwrapped.output == "torch"
    assert again.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP


def test_metadata_belongs_to_the_instance() -> None:
    modes = {name: EsperVectorEnv(1, autoreset_mode=name, task="digits_mlp") for name in ("same_step", "disabled")}
    for name, env in modes.items():
        assert env.metadata["autoreset_mode"] is AutoresetMode[name.upper()]
    assert EsperVectorEnv.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert "torch" not in EsperVectorEnv.metadata


@pytest.mark.usefixtures("silent")
def test_record_episode_statistics_counts_a_single_episode() -> None:
    env = RecordEpisodeStatistics(make())
    env.reset(seed=0)
    rewards = []
    for _ in range(3):
        _, reward, _, _, info = env.step(WAIT)
        rewards.append(reward)
    assert info["episode"]["l"] == 3
    assert info["episode"]["r"] == pytest.approx(sum(rewards), abs=1e-6)


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.usefixtures("silent")
def test_record_episode_statistics_counts_vector_episodes(mode: str) -> None:
    env = vector_wrappers.RecordEpisodeStatistics(gymnasium.make_vec("Esper-v0", 2, autoreset_mode=mode, horizon=2))
    env.reset(seed=0)
    total = np.zeros(2)
    ends = 0
    for _ in range(5):
        _, rewards, ended, _, infos = env.step(waits(2))
        total += rewards
        if ended.any():
            ends += 1
            assert infos["episode"]["l"].tolist() == [2, 2]
            assert np.allclose(infos["episode"]["r"], total)
            total[:] = 0
    assert ends == 2


def test_record_episode_statistics_survives_masked_resets() -> None:
    env = gymnasium.make_vec("Esper-v0", 2, autoreset_mode="disabled", horizon=2)
    env = vector_wrappers.RecordEpisodeStatistics(env)
    env.reset(seed=0)
    env.step(waits(2))
    env.reset(options={"reset_mask": np.array([True, False])})
    *_, infos = env.step(waits(2))
    assert infos["_episode"].tolist() == [False, True]
    assert infos["episode"]["l"][1] == 2


@pytest.mark.usefixtures("silent")
def test_time_limit_truncates() -> None:
    env = TimeLimit(make(horizon=10), 2)
    env.reset(seed=0)
    assert env.step(WAIT)[2:4] == (False, False)
    assert env.step(WAIT)[2:4] == (False, True)


@pytest.mark.usefixtures("silent")
def test_observations_are_normalised() -> None:
    env = NormalizeObservation(make())
    observation, _ = env.reset(seed=0)
    assert np.isfinite(observation).all()
    vector = vector_wrappers.NormalizeObservation(gymnasium.make_vec("Esper-v0", 2, horizon=2))
    vector.reset(seed=0)
    for _ in range(3):
        observations = vector.step(waits(2))[0]
        assert observations.shape == vector.observation_space.shape
        assert np.isfinite(observations).all()


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_sync_vector_of_singles_gives_the_same_as_the_vector(mode: AutoresetMode) -> None:
    settings = {"horizon": 2, "dtype": "float64"}
    sync = SyncVectorEnv([lambda: make(**settings)] * 2, autoreset_mode=mode)
    ours = gymnasium.make_vec("Esper-v0", 2, autoreset_mode=mode.name.lower(), **settings)
    theirs_first, mine_first = sync.reset(seed=3)[0], ours.reset(seed=3)[0]
    assert np.allclose(theirs_first, mine_first, atol=1e-6)
    for step in range(2 if mode is AutoresetMode.DISABLED else 4):
        theirs, mine = sync.step(waits(2)), ours.step(waits(2))
        for expected, got in zip(theirs[:4], mine[:4], strict=True):
            assert np.allclose(expected, got, atol=1e-6), f"step {step}"
        for key in ("action_mask", "action_mask_by_op"):
            for head in HEADS:
                assert np.array_equal(theirs[4][key][head], mine[4][key][head])
        assert ("final_obs" in theirs[4]) == ("final_obs" in mine[4])


def test_an_async_vector_of_singles_runs() -> None:
    env = AsyncVectorEnv([make, make])
    try:
        observations, infos = env.reset(seed=0)
        assert observations in env.observation_space
        actions = env.action_space.sample(sample_mask(infos["action_mask"]))
        observations, *_ = env.step(actions)
        assert observations in env.observation_space
    finally:
        env.close()


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_infos_turn_into_a_list(mode: str) -> None:
    env = vector_wrappers.DictInfoToList(gymnasium.make_vec("Esper-v0", 2, autoreset_mode=mode, horizon=1))
    _, infos = env.reset(seed=0)
    single = make().reset(seed=0)[1]
    assert set(infos[0]) == set(single)
    assert np.array_equal(infos[0]["action_mask"]["op"], single["action_mask"]["op"])
    *_, infos = env.step(waits(2))
    if mode == "same_step":
        assert set(infos[1]["final_info"]) == set(single)
        assert infos[1]["final_obs"].shape == env.single_observation_space.shape


def test_a_batched_sample_by_mask_is_never_illegal_alone() -> None:
    env = gymnasium.make_vec("Esper-v0", 3, horizon=20, training_steps=1)
    env.action_space.seed(0)
    _, infos = env.reset(seed=0)
    for _ in range(6):
        actions = env.action_space.sample(sample_mask(infos["action_mask"]))
        for head in HEADS:
            assert infos["action_mask"][head][np.arange(3), actions[head]].all()
        *_, infos = env.step(actions)


def test_closing_twice_is_fine() -> None:
    for env in (make(), gymnasium.make_vec("Esper-v0", 2)):
        env.close()
        env.close()
