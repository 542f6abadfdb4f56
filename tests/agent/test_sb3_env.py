"""Esper behind SB3's VecEnv: the same rows, SB3's conventions, exact masks."""

import json
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from esper_agent.baselines import agents
from esper_agent.baselines.agents import AGENTS
from esper_agent.baselines.sb3_env import EsperVecEnv
from esper_agent.evaluation.paired import make_test_env, play
from esper_env.wrappers import JointActions, MarginalActions
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.vec_env import VecCheckNan, VecEnv, VecMonitor, VecNormalize

ENV, ROWS, HORIZON, SEED = "Esper-v0", 3, 8, 11
TRANSLATORS = {"multi_discrete": MarginalActions, "discrete": JointActions}


def make(actions: str = "discrete", **settings: Any) -> EsperVecEnv:
    return EsperVecEnv(ENV, ROWS, actions, horizon=HORIZON, **settings)


def seeded(env: VecEnv) -> Any:
    env.seed(SEED)
    return env.reset()


def draw(env: VecEnv, generator: np.random.Generator) -> Any:
    """A legal joint action of every row."""
    return np.array([generator.choice(np.flatnonzero(mask)) for mask in env.env_method("action_masks")])


@pytest.mark.parametrize("actions", list(TRANSLATORS))
def test_rows_are_those_of_the_vector_environment(actions: str) -> None:
    ours = gymnasium.make_vec(ENV, num_envs=ROWS, autoreset_mode="same_step", horizon=HORIZON)
    theirs = make(actions)
    translate = TRANSLATORS[actions](ours.single_action_space)  # type: ignore[arg-type]
    assert theirs.action_space == translate.space
    theirs.action_space.seed(0)
    observation, infos = ours.reset(seed=SEED)
    np.testing.assert_array_equal(seeded(theirs), observation)
    for _ in range(2 * HORIZON + 1):  # through two automatic resets
        np.testing.assert_array_equal(theirs.action_masks(), translate.flags(infos))
        chosen = np.array([theirs.action_space.sample() for _ in range(ROWS)])
        observation, reward, terminated, truncated, infos = ours.step(translate.decode(chosen))
        after = theirs.step(chosen)
        np.testing.assert_array_equal(after[0], observation)
        np.testing.assert_array_equal(after[1], reward.astype(np.float32))
        np.testing.assert_array_equal(after[2], terminated | truncated)


def test_an_ended_episode_leaves_its_last_observation_and_numbers() -> None:
    env, plain = make(), gymnasium.make_vec(ENV, num_envs=ROWS, autoreset_mode="disabled", horizon=HORIZON)
    generator, decode = np.random.default_rng(1), JointActions(plain.single_action_space).decode  # type: ignore[arg-type]
    seeded(env)
    plain.reset(seed=SEED)
    for step in range(HORIZON):
        actions = draw(env, generator)
        observation, _, done, infos = env.step(actions)
        last, _, _, _, numbers = plain.step(decode(actions))
        assert done.all() == (step == HORIZON - 1)
        assert all(("terminal_observation" in info) == done.all() for info in infos)
    for row, info in enumerate(infos):
        np.testing.assert_array_equal(info["terminal_observation"], last[row])
        assert info["committed_metric"] == numbers["committed_metric"][row]
        assert info["TimeLimit.truncated"] is False
        assert not np.array_equal(observation[row], last[row])
        assert env.reset_infos[row]["added_parameters"] == 0


def test_only_an_episode_cut_from_outside_counts_as_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make()
    seeded(env)
    step = env.env.step

    def cut_first_row(actions: Any) -> Any:
        observation, reward, terminated, truncated, infos = step(actions)
        truncated[0], terminated[0] = terminated[0], False
        return observation, reward, terminated, truncated, infos

    monkeypatch.setattr(env.env, "step", cut_first_row)
    for _ in range(HORIZON):
        _, _, done, infos = env.step(np.zeros(ROWS, dtype=np.int64))
    assert done.all()
    assert [info["TimeLimit.truncated"] for info in infos] == [True, False, False]


def test_episode_statistics_are_the_sums_of_rewards() -> None:
    env = VecMonitor(make())
    seeded(env)
    generator, total = np.random.default_rng(2), np.zeros(ROWS)
    for _ in range(HORIZON):
        _, rewards, _, infos = env.step(draw(env, generator))
        total += rewards
    assert [info["episode"]["l"] for info in infos] == [HORIZON] * ROWS
    np.testing.assert_allclose([info["episode"]["r"] for info in infos], total, rtol=1e-5)


def test_masks_reach_sb3_through_its_wrappers() -> None:
    env = VecNormalize(VecCheckNan(VecMonitor(make()), raise_exception=True))
    seeded(env)
    assert is_masking_supported(env)
    masks = get_action_masks(env)
    np.testing.assert_array_equal(masks, env.unwrapped.action_masks())  # type: ignore[attr-defined]
    np.testing.assert_array_equal(env.env_method("action_masks", indices=[1])[0], masks[1])


def test_masked_ppo_never_takes_an_illegal_action() -> None:
    env = VecMonitor(make())
    seen: list[bool] = []
    model = MaskablePPO("MlpPolicy", env, n_steps=HORIZON, batch_size=ROWS * HORIZON, n_epochs=2, seed=0)
    model.learn(
        3 * ROWS * HORIZON,
        callback=lambda scope, _: seen.extend(info["invalid_action"] for info in scope["infos"]) or True,
    )
    assert len(seen) == 3 * ROWS * HORIZON
    assert not any(seen)


def test_ppo_without_masks_is_told_what_was_illegal() -> None:
    env = make("multi_discrete")
    seeded(env)
    fossilize_nothing = np.tile([3, 0, 0, 0, 0], (ROWS, 1))
    _, _, _, infos = env.step(fossilize_nothing)
    assert [info["invalid_action"] for info in infos] == [True] * ROWS


def test_sb3_trains_saves_and_loads(tmp_path: Any) -> None:
    model = PPO("MlpPolicy", VecMonitor(make("multi_discrete")), n_steps=8, batch_size=12, n_epochs=1, seed=0)
    model.learn(2 * 8 * ROWS)
    model.save(tmp_path / "model")
    observation = seeded(make("multi_discrete"))
    loaded = PPO.load(tmp_path / "model", env=make("multi_discrete"))
    np.testing.assert_array_equal(
        model.predict(observation, deterministic=True)[0], loaded.predict(observation, deterministic=True)[0]
    )


def test_sb3s_own_checker_accepts_the_spaces() -> None:
    class OneRow(gymnasium.Env[Any, Any]):
        """Row 0 as a single environment, which is what SB3's checker takes."""

        def __init__(self) -> None:
            self.rows = EsperVecEnv(ENV, 1, "discrete", horizon=HORIZON)
            self.observation_space, self.action_space = self.rows.observation_space, self.rows.action_space

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed, options=options)
            self.rows.seed(seed)
            return self.rows.reset()[0], {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            observation, reward, done, info = self.rows.step(np.array([action]))
            return observation[0], float(reward[0]), bool(done[0]), False, info[0]  # type: ignore[index]

    check_env(OneRow())


def test_pictures_of_all_rows_are_tiled() -> None:
    env = make(render_mode="rgb_array")
    env.reset()
    one = env.get_images()[0]
    assert one is not None
    assert env.render().shape == (2 * one.shape[0], 2 * one.shape[1], 3)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: make("dict"), "actions is 'dict'; allowed: multi_discrete, discrete"),
        (lambda: make().env_method("fly"), "method_name is 'fly'; allowed: action_masks"),
        (lambda: make().set_attr("rent", 0.1), "the rows share rent"),
        (lambda: [env := make(), env.set_options({"x": 1}), env.reset()], "options is"),
    ],
)
def test_what_rows_cannot_do_is_said(attempt: Any, message: str) -> None:
    with pytest.raises((ValueError, AttributeError), match=message):
        attempt()


TINY = {"n_steps": 15, "n_epochs": 1, "n_minibatches": 3}


@pytest.mark.parametrize("name", list(AGENTS))
def test_an_agent_trains_and_plays(name: str) -> None:
    tiny = {**TINY, "sequence_length": 15} if name == "ours" else TINY
    agent = AGENTS[name].build(ENV, ROWS, seed=0, **tiny)
    assert agent.rollout == ROWS * 15
    agent.train(agent.rollout)
    env = make_test_env(ENV, 2, horizon=6)
    first, second = play(agent, env, seed=0), play(agent, env, seed=0)
    np.testing.assert_array_equal(first.episode_return, second.episode_return)
    assert ((first.test_accuracy >= 0) & (first.test_accuracy <= 1)).all()


@pytest.mark.parametrize("name", list(AGENTS))
def test_an_idle_bias_makes_any_new_student_wait(name: str) -> None:
    tiny = {**TINY, "sequence_length": 15} if name == "ours" else TINY
    agent, env = AGENTS[name].build(ENV, ROWS, seed=0, **tiny, idle_bias=30.0), make_test_env(ENV, ROWS)
    observation, infos = env.reset(seed=0)
    for _ in range(4):  # germinating becomes legal on the way
        actions, _ = agent.predict(observation, None, np.ones(ROWS, dtype=bool), False, infos)
        assert not actions["op"].any()
        observation, *_, infos = env.step(actions)


def test_a_masked_agent_plays_legally_and_remembers_normalisation() -> None:
    agent = AGENTS["maskable_ppo"].build(ENV, ROWS, seed=0, **TINY, normalize=True)
    agent.train(agent.rollout)
    env = make_test_env(ENV, 16, horizon=6)
    observation, infos = env.reset(seed=0)
    for _ in range(6):
        actions, _ = agent.predict(observation, None, None, False, infos)
        observation, *_, infos = env.step(actions)
        assert not infos["invalid_action"].any()
    normalised = agent.env.normalize_obs(observation)  # type: ignore[attr-defined]
    expected, _ = agent.model.predict(  # type: ignore[attr-defined]
        normalised,
        deterministic=True,
        action_masks=agent.actions.flags(infos),  # type: ignore[attr-defined]
    )
    actions, _ = agent.predict(observation, None, None, True, infos)
    np.testing.assert_array_equal(actions["op"], agent.actions.decode(expected)["op"])  # type: ignore[attr-defined]


@pytest.mark.ledger("R1")
@pytest.mark.parametrize("name", ["ours", "ppo"])
def test_an_agent_refuses_another_discount_than_the_environments(name: str) -> None:
    with pytest.raises(ValueError, match=r"gamma is 0\.9; allowed: the environment's own, 0\.99"):
        AGENTS[name].build(ENV, ROWS, seed=0, gamma=0.9)


@pytest.mark.ledger("R1", "Y32", "Z20")
@pytest.mark.parametrize("algorithm", [PPO, MaskablePPO, DQN])
def test_a_users_own_agent_with_another_discount_is_refused_when_it_learns(algorithm: Any) -> None:
    env = VecNormalize(VecMonitor(make()), gamma=0.5)  # of the wrapper's running return, which is no discount
    with pytest.raises(ValueError, match=r"gamma is 0\.9; allowed: the environment's own, 0\.99; pass gamma=0\.99"):
        algorithm("MlpPolicy", env, gamma=0.9).learn(1)
    steps = {"learning_starts": 100} if algorithm is DQN else {"n_steps": HORIZON, "batch_size": ROWS * HORIZON}
    algorithm("MlpPolicy", env, gamma=0.99, **steps).learn(1)
    algorithm("MlpPolicy", VecMonitor(make(gamma=0.9)), gamma=0.9, **steps).learn(1)


def test_minibatches_must_divide_a_rollout() -> None:
    with pytest.raises(ValueError, match="n_minibatches is 2; allowed: divisors of the 45 steps"):
        AGENTS["ppo"].build(ENV, ROWS, seed=0, n_steps=15, n_minibatches=2)


def test_tuned_settings_are_taken_where_there_are_any(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = {"agents": {"recurrent_ppo_onecall": {"settings": {"n_epochs": 3}}}}
    (tmp_path / "Tuned-v0.json").write_text(json.dumps(tuned))
    monkeypatch.setattr(agents, "TUNED", tmp_path)
    monkeypatch.setattr(agents, "SETTINGS_WHERE_UNTUNED", tmp_path / "Tuned-v0.json")
    assert AGENTS["recurrent_ppo_onecall"].settings("Tuned-v0")["n_epochs"] == 3
    assert AGENTS["recurrent_ppo"].settings("Tuned-v0")["n_epochs"] == 3
    assert AGENTS["ppo"].settings("Tuned-v0") == AGENTS["ppo"].defaults
    assert AGENTS["recurrent_ppo"].settings("Other-v0") == AGENTS["recurrent_ppo"].settings("Tuned-v0")


@pytest.mark.ledger("N10")
def test_without_sb3_contrib_an_agent_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sb3_contrib", None)
    AGENTS["ours"].require()
    AGENTS["ppo"].require()
    for name in ("maskable_ppo", "recurrent_ppo", "recurrent_ppo_onecall"):
        with pytest.raises(ImportError, match=r"pip install 'esper-agent\[sb3\]'"):
            AGENTS[name].require()
