"""Rendering: text and pictures follow the episode, cost nothing when off, and name the extra when it is missing."""

import builtins
import sys

import esper_env.vector_env
import gymnasium
import numpy as np
import pytest
from env_tools import IDS
from esper_env import HEADS, EsperEnv, EsperVectorEnv, Op, Stage
from esper_env.rendering.ansi import sparkline, view_row
from esper_env.rendering.history import Recorder
from gymnasium.error import DependencyNotInstalled
from gymnasium.wrappers import RecordVideo
from gymnasium.wrappers import vector as vector_wrappers
from quick_life import QUICK_LIFE


def action(op: Op, slot: int = 0, blueprint: int = 0) -> dict[str, int]:
    return dict(zip(HEADS, (int(op), slot, blueprint, 0, 0), strict=True))


def vector_action(n: int, op: Op, slot: int = 0) -> dict[str, np.ndarray]:
    return {head: np.full(n, value) for head, value in action(op, slot).items()}


def course(env: EsperVectorEnv, row: int = 0) -> list[int]:
    return [moment.step for moment in view_row(env.simulation, env._recorder, row).course]


@pytest.mark.parametrize("name", IDS)
def test_pictures_have_gymnasiums_format(name: str) -> None:
    env = gymnasium.make(name, render_mode="rgb_array")
    env.reset(seed=0)
    first = env.render()
    env.step(action(Op.GERMINATE, 1))
    second = env.render()
    for frame in (first, second):
        assert frame.dtype == np.uint8
        assert frame.shape == (540, 960, 3)
    assert not np.array_equal(first, second)
    assert not np.shares_memory(first, second)


def test_text_tells_the_state() -> None:
    env = EsperEnv(task="digits_mlp", render_mode="ansi", horizon=9, **QUICK_LIFE)
    env.reset(seed=0)
    assert "step 0/9  reset" in env.render()
    env.step(action(Op.GERMINATE, slot=2, blueprint=3))
    lines = env.render().splitlines()
    assert "step 1/9  GERMINATE slot 2" in lines[0]
    assert "return" in lines[0]
    slots = [line for line in lines if line.startswith("slot ")]
    assert [Stage.DORMANT.name in line for line in slots] == [True, True, False]
    for words in ("TRAINING", "wide_mlp", "ADD", "0.00", "would add"):
        assert words in slots[2]
    env.step(action(Op.FOSSILIZE, slot=2))
    assert "FOSSILIZE slot 2 declined" in env.render()


def test_text_shows_the_ramp_and_the_curves() -> None:
    env = EsperEnv(task="digits_mlp", render_mode="ansi", horizon=20, training_steps=1, **QUICK_LIFE)
    env.reset(seed=1)
    for op in (Op.GERMINATE, Op.ADVANCE):
        env.step(action(op))
    lines = env.render().splitlines()
    alpha = float(env.row.simulation.state.alpha[0, 0])
    assert 0 < alpha < 1
    assert f"{alpha:.2f}" in lines[3]
    assert len(lines[1].split()[-1]) == 3  # the reset and two steps
    assert len(lines[2].split()[-1]) == 2  # training is first measured in the first step


def test_a_sparkline_spans_its_values() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([2.0, 2.0]) == "▁▁"


def test_the_course_restarts_with_each_episode_in_next_step_mode() -> None:
    env = EsperVectorEnv(2, task="digits_mlp", horizon=2, render_mode="ansi")
    env.reset(seed=0)
    seen = []
    for _ in range(4):
        env.step(vector_action(2, Op.WAIT))
        seen.append(course(env))
    assert seen == [[0, 1], [0, 1, 2], [0], [0, 1]]


def test_the_course_restarts_with_each_episode_in_same_step_mode() -> None:
    env = EsperVectorEnv(2, task="digits_mlp", horizon=2, render_mode="ansi", autoreset_mode="same_step")
    env.reset(seed=0)
    seen = []
    for _ in range(3):
        env.step(vector_action(2, Op.WAIT))
        seen.append(course(env))
    assert seen == [[0, 1], [0], [0, 1]]


def test_a_masked_reset_restarts_only_its_rows() -> None:
    env = EsperVectorEnv(2, task="digits_mlp", horizon=9, render_mode="ansi", autoreset_mode="disabled")
    env.reset(seed=0)
    env.step(vector_action(2, Op.WAIT))
    env.reset(options={"reset_mask": np.array([True, False])})
    assert (course(env, 0), course(env, 1)) == ([0], [0, 1])
    env.step(vector_action(2, Op.GERMINATE, 1))
    assert (course(env, 0), course(env, 1)) == ([0, 1], [0, 1, 2])
    frames = env.render()
    assert isinstance(frames, tuple)
    assert [("step 1/9" in frame, "step 2/9" in frame) for frame in frames] == [(True, False), (False, True)]


@pytest.mark.parametrize("mode", ["ansi", "rgb_array"])
def test_a_resumed_environment_draws_a_shorter_curve(mode: str) -> None:
    settings = {"task": "digits_mlp", "horizon": 9}
    env = EsperEnv(**settings)
    env.reset(seed=0)
    for op in (Op.GERMINATE, Op.WAIT):
        env.step(action(op))
    resumed = EsperEnv(render_mode=mode, **settings)
    resumed.load_state_dict(env.state_dict())
    assert course(resumed.row) == [2]
    assert resumed.render() is not None
    resumed.step(action(Op.WAIT))
    assert course(resumed.row) == [2, 3]
    assert resumed.render() is not None


def test_nothing_is_recorded_or_drawn_without_a_render_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("recorded or drew without a render mode")

    monkeypatch.setattr(Recorder, "watch", refuse)
    monkeypatch.setattr(esper_env.vector_env, "render_row", refuse)
    env = EsperEnv(task="digits_mlp", horizon=2)
    env.reset(seed=0)
    env.step(action(Op.WAIT))
    assert env.render() is None


def test_rendering_does_not_change_the_episode() -> None:
    plain, drawn = (EsperEnv(task="digits_mlp", horizon=4, render_mode=mode) for mode in (None, "rgb_array"))
    plain.reset(seed=0)
    drawn.reset(seed=0)
    for op in (Op.GERMINATE, Op.WAIT, Op.ADVANCE, Op.WAIT):
        drawn.render()
        expected, got = plain.step(action(op)), drawn.step(action(op))
        assert np.array_equal(expected[0], got[0])
        assert expected[1:3] == got[1:3]


def test_a_missing_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_matplotlib(name: str, *rest: object) -> object:
        if name.split(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.delitem(sys.modules, "esper_env.rendering.rgb", raising=False)
    monkeypatch.setattr(builtins, "__import__", without_matplotlib)
    with pytest.raises(DependencyNotInstalled, match=r"esper-env\[render\]"):
        EsperEnv(task="digits_mlp", render_mode="rgb_array")


def test_an_unknown_mode_and_a_picture_before_reset_are_refused() -> None:
    with pytest.raises(ValueError, match="render_mode is 'human'; allowed: None, ansi, rgb_array"):
        EsperEnv(task="digits_mlp", render_mode="human")
    with pytest.raises(RuntimeError, match="reset"):
        EsperEnv(task="digits_mlp", render_mode="ansi").render()


def test_record_video_writes_a_film(tmp_path) -> None:  # type: ignore[no-untyped-def]
    env = RecordVideo(gymnasium.make("Esper-v0", render_mode="rgb_array", horizon=2), str(tmp_path / "film"))
    env.reset(seed=0)
    for _ in range(2):
        env.step(action(Op.WAIT))
    env.close()
    films = list((tmp_path / "film").glob("*.mp4"))
    assert len(films) == 1
    assert films[0].stat().st_size > 1000


def test_record_video_films_a_vector(tmp_path) -> None:  # type: ignore[no-untyped-def]
    env = gymnasium.make_vec("Esper-v0", 2, render_mode="rgb_array", horizon=2)
    env = vector_wrappers.RecordVideo(env, str(tmp_path / "film"), record_first_only=True)
    env.reset(seed=0)
    for _ in range(2):
        env.step(vector_action(2, Op.WAIT))
    env.close()
    assert list((tmp_path / "film").glob("*.mp4"))
