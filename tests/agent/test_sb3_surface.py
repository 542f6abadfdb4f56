"""The agent keeps SB3's promises: its callbacks, its evaluation and a user's script run unchanged."""

import runpy
import textwrap
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from esper_agent import EvalCallback, FactoredRecurrentPPO
from esper_agent import evaluate_policy as evaluate_with_ours
from esper_agent.algorithm.checkpoint import save_checkpoint
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from stable_baselines3.common import callbacks as sb3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor, VecNormalize
from toy_envs import Countdown, MaskedHeads, hidden_cartpole_vector

SMALL: dict[str, Any] = {
    "n_steps": 16, "sequence_length": 8, "encoder_sizes": (8,), "lstm_size": 8, "head_hidden": 8, "n_minibatches": 2,
}  # fmt: skip
CARTPOLE = "CartPole-v1"


def make_model(env: Any = None, **changes: Any) -> FactoredRecurrentPPO:
    return FactoredRecurrentPPO(env or make_vec_env(CARTPOLE, 2), seed=0, **{**SMALL, **changes})


class Reader(sb3.BaseCallback):
    """Keeps what SB3's callbacks may read at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.infos: list[list[dict[str, Any]]] = []
        self.dones: list[Any] = []
        self.rewards: list[Any] = []

    def _on_step(self) -> bool:
        assert len(self.locals["infos"]) == self.model.n_envs
        self.infos.append([dict(info) for info in self.locals["infos"]])
        self.dones.append(self.locals["dones"])
        self.rewards.append(self.locals["rewards"])
        return True


SCRIPT = """
    import numpy as np
    from esper_agent import FactoredRecurrentPPO as RecurrentPPO
    from stable_baselines3.common.callbacks import CallbackList, CheckpointCallback, EvalCallback
    from stable_baselines3.common.callbacks import StopTrainingOnRewardThreshold
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    vec_env = make_vec_env("CartPole-v1", n_envs=4, seed=0)
    eval_env = make_vec_env("CartPole-v1", n_envs=1, seed=1)

    model = RecurrentPPO(vec_env, n_steps=32, sequence_length=32, learning_rate=1e-3, target_kl=None, verbose=0, seed=0)
    stop = StopTrainingOnRewardThreshold(reward_threshold=5, verbose=0)
    evaluation = EvalCallback(
        eval_env, callback_on_new_best=stop, best_model_save_path="./logs/best/", log_path="./logs/results/",
        eval_freq=40, n_eval_episodes=2, deterministic=True, verbose=0,
    )
    checkpoints = CheckpointCallback(save_freq=16, save_path="./logs/", name_prefix="cartpole", save_vecnormalize=True)
    model.learn(total_timesteps=10_000, callback=CallbackList([checkpoints, evaluation]))
    stopped_at = model.num_timesteps

    model.save("models/cartpole")
    del model

    model = RecurrentPPO.load("models/cartpole")
    obs = vec_env.reset()
    lstm_states = None
    episode_starts = np.ones((vec_env.num_envs,), dtype=bool)
    for _ in range(20):
        action, lstm_states = model.predict(obs, state=lstm_states, episode_start=episode_starts, deterministic=True)
        obs, rewards, dones, infos = vec_env.step(action)
        episode_starts = dones
    mean_reward, std_reward = evaluate_policy(model, eval_env, n_eval_episodes=3)

    best = RecurrentPPO.load("logs/best/best_model", env=vec_env)
    best.learn(total_timesteps=128, reset_num_timesteps=False)
    best.learn(total_timesteps=128)
"""


@pytest.mark.ledger("Y27")
def test_a_script_for_sb3_runs_with_another_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    monkeypatch.chdir(tmp_path)
    result = runpy.run_path("script.py")
    assert result["stopped_at"] == 40 * 4
    assert result["mean_reward"] > 0
    assert result["best"].num_timesteps == 128
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.zip")}
    steps = {f"logs/cartpole_{steps}_steps.zip" for steps in (64, 128)}
    assert files == steps | {"models/cartpole.zip", "logs/best/best_model.zip"}


@pytest.mark.ledger("Y27")
def test_callbacks_read_one_info_per_environment_with_the_episodes_that_ended() -> None:
    reader, vec_env = Reader(), make_vec_env(CARTPOLE, 3, seed=4)
    model = make_model(vec_env)
    model.learn(96 * 3, reader)
    ended = [info for infos in reader.infos for info in infos if "episode" in info]
    assert len(ended) == np.sum(reader.dones) > 3
    assert all("terminal_observation" in info and info["TimeLimit.truncated"] is False for info in ended)
    assert [info["episode"]["r"] for info in ended] == [episode["r"] for episode in model.ep_info_buffer]
    assert all(isinstance(rewards, np.ndarray) and rewards.shape == (3,) for rewards in reader.rewards)


@pytest.mark.ledger("Y27")
@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_gymnasium_infos_are_told_by_environment_too(mode: AutoresetMode) -> None:
    class Telling(MaskedHeads):
        def masks(self) -> dict[str, Any]:
            told = {"age_now": self.age.copy(), "_age_now": np.array([True, False, True])}
            return {**super().masks(), **told}

    reader, model = Reader(), make_model(Telling(3, mode=mode))
    model.learn(16 * 3 * 4, reader)
    first = reader.infos[0]
    assert first[0]["age_now"] == 1
    assert "age_now" not in first[1]
    assert first[1]["action_mask"]["op"].shape == (3,)
    assert first[1]["action_mask_by_op"]["slot"].shape == (3, model.action_spec.sizes[1])
    ended = [info["episode"] for infos in reader.infos for info in infos if "episode" in info]
    assert [(one["r"], one["l"]) for one in ended] == [(one["r"], one["l"]) for one in model.ep_info_buffer]
    cut = [info["TimeLimit.truncated"] for infos in reader.infos for info in infos if "episode" in info]
    assert any(cut)


@pytest.mark.ledger("Y27")
@pytest.mark.parametrize("kind", ["id", "single", "gymnasium", "sb3"])
def test_a_model_tells_its_environment_and_its_spaces(kind: str) -> None:
    given: Any = {
        "id": CARTPOLE,
        "single": gymnasium.make(CARTPOLE),
        "gymnasium": hidden_cartpole_vector(2),
        "sb3": make_vec_env(CARTPOLE, 2),
    }[kind]
    model = FactoredRecurrentPPO(given, n_envs=2, seed=0, **SMALL)
    assert model.get_env() is model.env
    if kind in ("gymnasium", "sb3"):
        assert model.env is given
    assert model.n_envs == (1 if kind == "single" else 2)
    assert isinstance(model.observation_space, spaces.Box)
    assert model.observation_space.shape == ((2,) if kind == "gymnasium" else (4,))
    assert model.action_space == spaces.Discrete(2)
    assert model.get_vec_normalize_env() is None


@pytest.mark.ledger("Y27")
def test_vec_normalize_is_found_saved_and_carried_to_the_evaluation(tmp_path: Path) -> None:
    train, held_out = (VecNormalize(make_vec_env(CARTPOLE, 2), training=training) for training in (True, False))
    model = make_model(train)
    assert model.get_vec_normalize_env() is train
    saving = sb3.CheckpointCallback(16, str(tmp_path), save_vecnormalize=True)
    model.learn(32, [saving, sb3.EvalCallback(held_out, eval_freq=16, n_eval_episodes=2, verbose=0)])
    assert (tmp_path / "rl_model_vecnormalize_32_steps.pkl").exists()
    np.testing.assert_array_equal(train.obs_rms.mean, held_out.obs_rms.mean)


@pytest.mark.ledger("Y27")
def test_parameters_can_be_taken_and_given(tmp_path: Path) -> None:
    model, other = make_model().learn(64), make_model().learn(32)
    parameters = model.get_parameters()
    assert set(parameters) == {"policy", "policy.optimizer"}
    observation = np.ones((3, 4), np.float32)
    for given in (parameters, model.save(tmp_path / "m") or str(tmp_path / "m")):
        other = make_model().learn(32)
        other.set_parameters(given)
        assert all(torch.equal(a, b) for a, b in zip(other.policy.parameters(), model.policy.parameters(), strict=True))
        np.testing.assert_array_equal(other.predict(observation)[1], model.predict(observation)[1])
    parameters["policy"]["decoder.value.bias"].zero_()
    assert model.policy.decoder.value.bias.abs().sum() > 0
    part = {"policy": {"decoder.value.bias": torch.tensor([7.0])}}
    with pytest.raises(ValueError, match=r"allowed: 'policy' and 'policy\.optimizer'"):
        other.set_parameters(part)
    other.set_parameters(part, exact_match=False)
    assert other.policy.decoder.value.bias.item() == 7
    with pytest.raises(ValueError, match=r"the saved parameter decoder\.value\.bias has shape"):
        other.set_parameters({"policy": {"decoder.value.bias": torch.zeros(2)}}, exact_match=False)


@pytest.mark.ledger("Y27")
def test_a_seed_set_later_decides_everything_random() -> None:
    def trained(seed: int) -> dict[str, torch.Tensor]:
        model = make_model()
        model.set_random_seed(seed)
        model.set_random_seed(None)
        return model.learn(64).get_parameters()["policy"]

    first, again, other = trained(5), trained(5), trained(6)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.ledger("Y27")
@pytest.mark.parametrize("env", ["cartpole", "heads", "dict"])
def test_an_agent_loads_without_an_environment(env: str, tmp_path: Path) -> None:
    class Parts(gymnasium.ObservationWrapper[Any, Any, Any]):
        observation_space = spaces.Dict({"all": spaces.Box(-9, 9, (4,)), "side": spaces.Discrete(2)})

        def observation(self, observation: Any) -> Any:
            return {"all": observation, "side": int(observation[0] > 0)}

    make: Any = {
        "cartpole": lambda: hidden_cartpole_vector(2),
        "heads": lambda: MaskedHeads(2),
        "dict": lambda: Parts(gymnasium.make(CARTPOLE)),
    }[env]
    if env == "dict":
        with pytest.warns(UserWarning, match="the parts all, side of the observation are joined"):
            model = make_model(make())
    else:
        model = make_model(make())
    model.learn(64).save(tmp_path / "m")
    loaded = _quietly(lambda: FactoredRecurrentPPO.load(tmp_path / "m"))
    assert loaded.env is loaded.get_env() is None
    assert loaded.observation_space == model.observation_space
    assert loaded.action_space == model.action_space
    observation, infos = make().reset(seed=0)
    masks = infos if env == "heads" else None
    states = [each.predict(observation, action_masks=masks)[1] for each in (model, loaded)]
    np.testing.assert_array_equal(*states)
    with pytest.raises(RuntimeError, match=r"loaded without an environment; call set_env\(\)"):
        loaded.learn(64)
    _quietly(lambda: loaded.set_env(make()))
    loaded.learn(64)


def _quietly(action: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return action()


@pytest.mark.ledger("Y6")
@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"kind": "discrete", "n": 10**12}, "have 1,000,000,000,002 entries; the network has"),
        ({"kind": "unbounded", "shape": [10**6, 10**6]}, "entries; the network has"),
        ({"kind": "box"}, "the saved spaces are malformed: KeyError"),
        ({"kind": "box", "low": "a", "high": 3}, "the saved spaces are malformed: AttributeError"),
        ({"kind": "dict", "parts": 5}, "the saved spaces are malformed: TypeError"),
        ([], "the saved spaces are malformed: TypeError"),
    ],
)
def test_crafted_spaces_are_refused_before_they_take_memory(space: Any, message: str, tmp_path: Path) -> None:
    state = make_model().state_dict()
    save_checkpoint(tmp_path / "m.zip", {**state, "observation_space": space})
    with pytest.raises(ValueError, match=message):
        FactoredRecurrentPPO.load(tmp_path / "m.zip")


@pytest.mark.ledger("Y27")
def test_saving_adds_a_suffix_only_where_there_is_none(tmp_path: Path) -> None:
    model = make_model()
    for name, file in (("a", "a.zip"), ("b.ckpt", "b.ckpt"), ("new/deep/c", "new/deep/c.zip")):
        model.save(tmp_path / name)
        assert (tmp_path / file).is_file()
        assert FactoredRecurrentPPO.load(str(tmp_path / name)).num_timesteps == 0
    model.restore(tmp_path / "a")


@pytest.mark.ledger("Y27")
def test_an_update_without_a_kl_limit_never_stops_early() -> None:
    reckless = {"learning_rate": 0.3, "max_grad_norm": 100.0, "max_group_grad_norm": None, "n_epochs": 3}
    for target, early in ((None, 0), (1e-9, 1)):
        model = make_model(target_kl=target, **reckless)
        seen: list[float] = []
        model.update = lambda model=model, seen=seen: _watched(model, seen)  # type: ignore[method-assign]
        model.learn(32)
        assert seen == [early]


def _watched(model: FactoredRecurrentPPO, seen: list[float]) -> Any:
    metrics = FactoredRecurrentPPO.update(model)
    seen.append(float(metrics["stopped_early"]))
    return metrics


@pytest.mark.ledger("Y27")
def test_learning_twice_counts_from_zero_or_goes_on() -> None:
    model = make_model()
    counts = [model.learn(64).num_timesteps, model.learn(64, reset_num_timesteps=False).num_timesteps]
    assert [*counts, model.learn(32).num_timesteps] == [64, 128, 32]


@pytest.mark.ledger("Y27")
def test_sb3_evaluates_the_agent_as_we_do() -> None:
    model = make_model().learn(64)
    theirs, lengths = evaluate_policy(model, _counting(), 4, return_episode_rewards=True)
    ours, our_lengths = evaluate_with_ours(model, _counting(), 4, return_episode_rewards=True)
    assert (sorted(theirs), sorted(lengths)) == (sorted(ours), sorted(our_lengths))


def _counting() -> Any:
    return VecMonitor(DummyVecEnv([lambda seed=seed: _Seeded(seed) for seed in range(2)]))


class _Seeded(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole with the same episodes whoever resets it."""

    def __init__(self, seed: int) -> None:
        super().__init__(gymnasium.make(CARTPOLE))
        self.seed = seed

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        del seed
        return self.env.reset(seed=self.seed, options=options)


@pytest.mark.ledger("Y22")
def test_the_best_agent_is_kept_in_a_directory_that_is_made(tmp_path: Path) -> None:
    directory = tmp_path / "not" / "there"
    evaluation = EvalCallback(Countdown(2), eval_freq=5, n_eval_episodes=2, best_model_save_path=directory)
    make_model(Countdown(2)).learn(32, evaluation)
    assert FactoredRecurrentPPO.load(directory / "best_model.ckpt").num_timesteps == 10


def first_observations(model: FactoredRecurrentPPO) -> torch.Tensor:
    return model.collector.observations.clone()


@pytest.mark.ledger("Y25")
def test_loading_and_a_new_environment_begin_episodes_that_were_not_played(tmp_path: Path) -> None:
    def trained() -> FactoredRecurrentPPO:
        return make_model(hidden_cartpole_vector(2)).learn(64)

    model = make_model(hidden_cartpole_vector(2))
    beginning = first_observations(model)
    model.learn(64).save(tmp_path / "m")
    loads = [FactoredRecurrentPPO.load(tmp_path / "m", hidden_cartpole_vector(2)) for _ in range(2)]
    assert not torch.isclose(first_observations(loads[0]), beginning).any()
    assert torch.equal(first_observations(loads[0]), first_observations(loads[1]))
    for again in (trained(), trained()):
        again.set_env(hidden_cartpole_vector(2))
        assert torch.equal(first_observations(again), first_observations(loads[0]))
    later = loads[0].learn(64, reset_num_timesteps=False)
    later.set_env(hidden_cartpole_vector(2))
    assert not torch.isclose(first_observations(later), first_observations(loads[1])).any()


@pytest.mark.ledger("Y25")
def test_resuming_where_environments_cannot_be_saved_replays_nothing(tmp_path: Path) -> None:
    model = make_model(hidden_cartpole_vector(2))
    beginning = first_observations(model)
    model.learn(64).save(tmp_path / "m")
    model = make_model(hidden_cartpole_vector(2))
    model.restore(tmp_path / "m")
    assert not torch.isclose(first_observations(model), beginning).any()
