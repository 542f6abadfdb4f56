"""Evaluations in the course of a training, which its clock does not count."""

import time
from dataclasses import asdict
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from stable_baselines3.common.callbacks import BaseCallback

from esper_agent.baselines.paired import Episodes, play
from esper_agent.baselines.recipes import Student

EVALUATION_SEED = 10_000  # the same instances in every evaluation
DECIMALS = 6


class TrainingClock:
    """Wall-clock and processor seconds while it runs."""

    def __init__(self) -> None:
        self.seconds = self.cpu_seconds = 0.0
        self._since: tuple[float, float] | None = None

    def start(self) -> None:
        """Go on counting, if it stands still."""
        self._since = self._since or (time.perf_counter(), time.process_time())

    def stop(self) -> None:
        """Stand still."""
        if self._since is not None:
            self.seconds += time.perf_counter() - self._since[0]
            self.cpu_seconds += time.process_time() - self._since[1]
        self._since = None


class Examiner(BaseCallback):
    """Plays the same instances before training and between rollouts, evenly spaced over the steps.

    Args:
        student: who is examined.
        env: where, from `make_test_env`.
        steps: environment steps of the whole training.
        evaluations: how many parts the training is divided into; `examine` at the end of the last is up to the caller.
    """

    def __init__(self, student: Student, env: VectorEnv[Any, Any, Any], steps: int, evaluations: int) -> None:
        super().__init__()
        self.student, self.env, self.clock = student, env, TrainingClock()
        self.due = [steps * part // evaluations for part in range(evaluations)]
        self.curve: list[dict[str, float]] = []

    def examine(self) -> Episodes:
        """Play now, with the clock standing still, and add a point to the curve."""
        self.clock.stop()
        episodes = play(self.student, self.env, EVALUATION_SEED)
        seconds = {"seconds": self.clock.seconds, "cpu_seconds": self.clock.cpu_seconds}
        rounded = {name: round(value, DECIMALS) for name, value in {**seconds, **means(episodes)}.items()}
        self.curve.append({"step": self.model.num_timesteps, **rounded})
        return episodes

    def _on_rollout_start(self) -> None:
        now = self.model.num_timesteps
        if self.due and now >= self.due[0]:
            self.due = [step for step in self.due if step > now]
            self.examine()
        self.clock.start()

    def _on_step(self) -> bool:
        return True


def means(episodes: Episodes) -> dict[str, float]:
    """The mean of every measure."""
    return {name: float(np.mean(values)) for name, values in asdict(episodes).items()}
