"""Stable-Baselines3's own callbacks, logger and schedules work unmodified."""

import io
import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from esper_agent import EvalCallback, FactoredRecurrentPPO
from esper_agent.algorithm.progress import ProgressBar, progress_bar
from esper_agent.diagnostics import DetectorConfig
from rich.console import Console
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    CheckpointCallback,
    EveryNTimesteps,
    LogEveryNTimesteps,
    ProgressBarCallback,
    StopTrainingOnMaxEpisodes,
    StopTrainingOnNoModelImprovement,
    StopTrainingOnRewardThreshold,
)
from stable_baselines3.common.logger import configure
from stable_baselines3.common.utils import LinearSchedule
from toy_envs import Countdown, MaskedHeads

SMALL: dict[str, Any] = {"n_steps": 16, "sequence_length": 8, "encoder_sizes": (8,), "lstm_size": 8, "head_hidden": 8}


def make_model(**changes: Any) -> FactoredRecurrentPPO:
    return FactoredRecurrentPPO(Countdown(4), seed=0, **{**SMALL, **changes})


class Recorder(BaseCallback):
    """Writes down every call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int]] = []

    def _on_training_start(self) -> None:
        self.calls.append(("training_start", self.num_timesteps))

    def _on_rollout_start(self) -> None:
        self.calls.append(("rollout_start", self.model.num_timesteps))

    def _on_step(self) -> bool:
        self.calls.append(("step", self.num_timesteps))
        return True

    def _on_rollout_end(self) -> None:
        self.calls.append(("rollout_end", self.model.num_timesteps))

    def _on_training_end(self) -> None:
        self.calls.append(("training_end", self.num_timesteps))


def test_callbacks_are_called_in_order() -> None:
    recorder = Recorder()
    make_model().learn(100, recorder)
    rollout = lambda first: [("rollout_start", first), *[("step", first + 4 * (i + 1)) for i in range(16)]]  # noqa: E731
    expected = [("training_start", 0), *rollout(0), ("rollout_end", 64), *rollout(64), ("rollout_end", 128)]
    assert recorder.calls == [*expected, ("training_end", 128)]


def test_stop_training_on_max_episodes() -> None:
    model = make_model()
    model.learn(10_000, StopTrainingOnMaxEpisodes(max_episodes=3))
    assert model.num_timesteps == 3 * 10 * 4


def test_stop_training_on_reward_threshold_and_on_no_improvement() -> None:
    model = make_model()
    model.learn(10_000, EvalCallback(Countdown(2), StopTrainingOnRewardThreshold(9.0), eval_freq=5, n_eval_episodes=2))
    assert model.num_timesteps == 20
    model = make_model()
    stop = StopTrainingOnNoModelImprovement(max_no_improvement_evals=2)
    model.learn(10_000, EvalCallback(Countdown(2), None, stop, eval_freq=5, n_eval_episodes=2))
    assert model.num_timesteps == 20 * 4


def test_checkpoints_can_be_loaded(tmp_path: Path) -> None:
    model = make_model()
    model.learn(128, CallbackList([CheckpointCallback(save_freq=16, save_path=str(tmp_path)), ProgressBarCallback()]))
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["rl_model_128_steps.zip", "rl_model_64_steps.zip"]
    assert FactoredRecurrentPPO.load(tmp_path / files[1], Countdown(4)).num_timesteps == 64


def test_every_n_timesteps_and_functions() -> None:
    inner, steps = Recorder(), []
    model = make_model()
    model.learn(128, [EveryNTimesteps(32, inner), LogEveryNTimesteps(64)])
    assert [at for name, at in inner.calls if name == "step"] == [32, 64, 96, 128]
    model = make_model()
    model.learn(128, lambda values, _: steps.append(values["self"].num_timesteps) or len(steps) < 3)
    assert steps == [4, 8, 12]


def test_the_log_has_stable_baselines_names_and_ours(tmp_path: Path) -> None:
    model = FactoredRecurrentPPO(MaskedHeads(4), seed=0, **SMALL)
    model.set_logger(configure(str(tmp_path), ["json", "tensorboard"]))
    model.learn(64 * 3, log_interval=2)
    lines = [json.loads(line) for line in (tmp_path / "progress.json").read_text().splitlines()]
    assert [line["time/total_timesteps"] for line in lines] == [128]
    expected = {
        "rollout/ep_rew_mean", "rollout/ep_len_mean", "time/fps", "time/iterations", "time/total_timesteps",
        "train/approx_kl", "train/clip_fraction", "train/clip_range", "train/entropy_loss",
        "train/explained_variance", "train/learning_rate", "train/loss", "train/n_updates",
        "train/policy_gradient_loss", "train/value_loss", "train/entropy/op", "train/entropy/slot",
        "train/entropy/blueprint",
    }  # fmt: skip
    assert expected <= set(lines[0])
    assert list(tmp_path.glob("events.out.tfevents.*"))


def test_tensorboard_runs_are_numbered_and_continued(tmp_path: Path) -> None:
    model = make_model(tensorboard_log=str(tmp_path))
    model.learn(64, tb_log_name="run")
    model.learn(64, tb_log_name="run", reset_num_timesteps=False)
    model.learn(64, tb_log_name="run")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run_1", "run_2"]
    assert model.num_timesteps == 64


def test_schedules_follow_the_environment_steps() -> None:
    rates: list[float] = []

    class Watch(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            rates.append(self.model.learner.optimizer.learning_rate)

    model = make_model(learning_rate=LinearSchedule(1.0, 0.0, 1.0), clip_range=lambda remaining: 0.1 + remaining)
    model.learn(64 * 4, Watch())
    assert rates[1:] == pytest.approx([1.0, 0.75, 0.5])  # what remained when each rollout began
    assert model.learner.settings(0.5).clip_range == 0.6


def test_events_reach_the_log_and_the_callbacks(tmp_path: Path) -> None:
    seen: list[str] = []

    class Watch(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            seen.extend(event.name for event in self.model.last_events)

    model = make_model(detectors=DetectorConfig(kl_limit=1e-12, warmup_rollouts=0))
    model.set_logger(configure(str(tmp_path), ["json"]))
    model.learn(64 * 3, Watch())
    assert "kl_spike" in seen
    assert "kl_spike" in {event.name for event in model.events}
    assert "diagnostics/kl_spike" in (tmp_path / "progress.json").read_text()


def test_the_bar_shows_what_recent_episodes_came_to_and_ends_where_learning_ends() -> None:
    shown: list[str] = []

    class Watch(BaseCallback):
        def _on_step(self) -> bool:
            shown.append(bar.bar.tasks[0].description)
            return True

    env = gymnasium.make_vec("esper_env:Esper-v0", 4, horizon=8, autoreset_mode="same_step", output="torch")
    model = FactoredRecurrentPPO(env, seed=0, **SMALL)
    terminal = Console(file=io.StringIO(), force_terminal=True, width=100)
    with progress_bar(True, terminal) as (bar,):
        assert isinstance(bar, ProgressBar)
        model.learn(100, [bar, Watch()])
        hosts, task = model.collector.hosts.last, bar.bar.tasks[0]
    recent = np.mean([episode["r"] for episode in model.ep_info_buffer])
    metric, added = hosts["hosts/end/committed_metric"], hosts["hosts/end/added_parameters"]
    assert shown[0] == "plain return ..."
    assert bar.describe() == f"plain return {recent:z.3f}, metric {metric:.0%}, added {added:.0%}"
    assert (task.completed, task.total, task.finished) == (128, 100, True)
    assert "in all" in terminal.file.getvalue()


def test_no_bar_outlives_a_failed_training() -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, width=100)
    with pytest.raises(KeyboardInterrupt), progress_bar(True, terminal) as (bar,):
        raise KeyboardInterrupt
    assert isinstance(bar, ProgressBar)
    assert not bar.bar.live.is_started


def test_there_is_no_logger_before_it_is_needed() -> None:
    with pytest.raises(RuntimeError, match="call learn"):
        _ = make_model().logger
