"""Evaluation by SB3's conventions: `evaluate_policy`, and the callback that calls it in the course of a training."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, overload

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback, EventCallback

from esper_agent.algorithm.environments import AnyEnv, make_vector_env
from esper_agent.evaluation.episodes import Policy, play_episodes

MOST_ROWS = 16  # of an environment that is made from an id


@overload
def evaluate_policy(
    model: Policy,
    env: str | AnyEnv,
    n_eval_episodes: int = ...,
    deterministic: bool = ...,
    *,
    return_episode_rewards: Literal[True],
    seed: int | None = ...,
) -> tuple[list[float], list[int]]: ...


@overload
def evaluate_policy(
    model: Policy,
    env: str | AnyEnv,
    n_eval_episodes: int = ...,
    deterministic: bool = ...,
    *,
    return_episode_rewards: Literal[False] = ...,
    seed: int | None = ...,
) -> tuple[float, float]: ...


def evaluate_policy(
    model: Policy,
    env: str | AnyEnv,
    n_eval_episodes: int = 10,
    deterministic: bool = True,
    *,
    return_episode_rewards: bool = False,
    seed: int | None = None,
) -> tuple[list[float], list[int]] | tuple[float, float]:
    """Play whole episodes.

    Every environment contributes its share of the episodes, decided beforehand, so that short episodes are not
    over-represented.

    Args:
        model: the agent, or anything with SB3's `predict`.
        env: where to play: an id, an environment or a vector environment. It is reset.
        n_eval_episodes: how many episodes.
        deterministic: take the most likely actions instead of drawing them.
        return_episode_rewards: return every episode's return and length instead of mean and standard deviation.
        seed: seed of the environment and of the draws; None draws one.
    """
    vector_env = make_vector_env(env, min(n_eval_episodes, MOST_ROWS))
    episodes = play_episodes(model, vector_env, n_eval_episodes, seed, deterministic)
    if return_episode_rewards:
        return episodes.episode_return.tolist(), episodes.length.tolist()
    return float(episodes.episode_return.mean()), float(episodes.episode_return.std())


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


class EvalCallback(EventCallback):
    """Evaluates in the course of a training, logs under `eval/`, keeps the best agent and the learning curve.

    Args:
        eval_env: where to play; not the training environment.
        callback_on_new_best: called when the mean return is the best so far, e.g. StopTrainingOnRewardThreshold.
        callback_after_eval: called after every evaluation.
        n_eval_episodes: episodes per evaluation.
        eval_freq: calls of `step` between two evaluations.
        best_model_save_path: directory for `best_model.ckpt`; None keeps none.
        deterministic: take the most likely actions.
        seed: seed of every evaluation, so that they compare; None draws one each time.
        verbose: 1 prints the result.
        eval_at: environment steps in place of `eval_freq`; an evaluation is then due when the next rollout begins.
        measure: gives the means of an evaluation, `episode_return` among them; unless given, the model plays
            `n_eval_episodes` in `eval_env`.

    Attributes:
        curve: a point for every evaluation: the step, seconds of training without evaluations, and the means.
    """

    def __init__(
        self,
        eval_env: str | AnyEnv,
        callback_on_new_best: BaseCallback | None = None,
        callback_after_eval: BaseCallback | None = None,
        n_eval_episodes: int = 10,
        eval_freq: int = 10_000,
        best_model_save_path: str | Path | None = None,
        deterministic: bool = True,
        seed: int | None = 0,
        verbose: int = 0,
        *,
        eval_at: Sequence[int] | None = None,
        measure: Callable[[], Mapping[str, float]] | None = None,
    ) -> None:
        super().__init__(callback_after_eval, verbose)
        self.callback_on_new_best = callback_on_new_best
        if callback_on_new_best is not None:
            callback_on_new_best.parent = self
        self.eval_env = make_vector_env(eval_env, n_eval_episodes)
        self.n_eval_episodes, self.eval_freq = n_eval_episodes, eval_freq
        self.best_model_save_path, self.deterministic, self.seed = best_model_save_path, deterministic, seed
        self.best_mean_reward = self.last_mean_reward = -np.inf
        self.due = None if eval_at is None else sorted(eval_at)
        self.measure, self.clock = measure or self._measure, TrainingClock()
        self.curve: list[dict[str, float]] = []

    def _init_callback(self) -> None:
        if self.callback_on_new_best is not None:
            self.callback_on_new_best.init_callback(self.model)

    def _on_rollout_start(self) -> None:
        now = self.model.num_timesteps
        if self.due and now >= self.due[0]:
            self.due = [step for step in self.due if step > now]
            self.evaluate()
        self.clock.start()

    def _on_step(self) -> bool:
        return self.due is not None or self.n_calls % self.eval_freq != 0 or self.evaluate()

    def evaluate(self) -> bool:
        """Evaluate now, with the clock standing still; says whether training should go on."""
        self.clock.stop()
        means, proceed = self.measure(), True
        seconds = {"seconds": self.clock.seconds, "cpu_seconds": self.clock.cpu_seconds}
        self.curve.append({"step": self.model.num_timesteps, **seconds, **means})
        self._log(means)
        if self.last_mean_reward > self.best_mean_reward:
            self.best_mean_reward = self.last_mean_reward
            if self.best_model_save_path is not None:
                self.model.save(Path(self.best_model_save_path) / "best_model.ckpt")
            if self.callback_on_new_best is not None:
                proceed = self.callback_on_new_best.on_step()
        self.clock.start()
        return self._on_event() and proceed

    def _measure(self) -> dict[str, float]:
        played = play_episodes(self.model, self.eval_env, self.n_eval_episodes, self.seed, self.deterministic)
        returns = {"episode_return": played.episode_return, "discounted_return": played.discounted_return}
        means = {name: float(values.mean()) for name, values in {**returns, "length": played.length}.items()}
        return means | {"return_std": float(played.episode_return.std())}

    def _log(self, means: Mapping[str, float]) -> None:
        self.last_mean_reward = means["episode_return"]
        self.logger.record("eval/mean_reward", self.last_mean_reward)
        if "length" in means:
            self.logger.record("eval/mean_ep_length", means["length"])
        if self.verbose:
            spread = f" ± {means['return_std']:.2f}" if "return_std" in means else ""
            print(f"{self.num_timesteps} steps: return {self.last_mean_reward:.2f}{spread}", flush=True)
