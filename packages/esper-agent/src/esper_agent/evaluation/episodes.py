"""Evaluation over whole episodes that keeps the recurrent state and the masks, and the callback for it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from stable_baselines3.common.callbacks import BaseCallback, EventCallback
from torch import Tensor

from esper_agent.algorithm.acting import act
from esper_agent.algorithm.environments import AnyEnv, TensorEnv, make_vector_env

if TYPE_CHECKING:
    from esper_agent.ppo import FactoredRecurrentPPO

Episodes = tuple[list[float], list[int]]


@overload
def evaluate_policy(
    model: "FactoredRecurrentPPO",
    env: str | AnyEnv,
    n_eval_episodes: int = ...,
    deterministic: bool = ...,
    *,
    return_episode_rewards: Literal[True],
    seed: int | None = ...,
) -> Episodes: ...


@overload
def evaluate_policy(
    model: "FactoredRecurrentPPO",
    env: str | AnyEnv,
    n_eval_episodes: int = ...,
    deterministic: bool = ...,
    *,
    return_episode_rewards: Literal[False] = ...,
    seed: int | None = ...,
) -> tuple[float, float]: ...


def evaluate_policy(
    model: "FactoredRecurrentPPO",
    env: str | AnyEnv,
    n_eval_episodes: int = 10,
    deterministic: bool = True,
    *,
    return_episode_rewards: bool = False,
    seed: int | None = None,
) -> Episodes | tuple[float, float]:
    """Play whole episodes.

    Every environment contributes its share of the episodes, decided beforehand, so that short episodes are not
    over-represented.

    Args:
        model: the agent.
        env: where to play: an id, an environment or a vector environment. It is reset.
        n_eval_episodes: how many episodes.
        deterministic: take the most likely actions instead of drawing them.
        return_episode_rewards: return every episode's return and length instead of mean and standard deviation.
        seed: seed of the environment and of the draws; None draws one.
    """
    vector_env = make_vector_env(env, min(n_eval_episodes, 16))
    tensor_env = TensorEnv(vector_env, model.device, seed, check_masks=model.config.check_masks)
    returns, lengths = play_episodes(model, tensor_env, n_eval_episodes, deterministic, seed)
    if return_episode_rewards:
        return returns, lengths
    return float(np.mean(returns)), float(np.std(returns))


def play_episodes(
    model: "FactoredRecurrentPPO", env: TensorEnv, episodes: int, deterministic: bool, seed: int | None
) -> Episodes:
    """Returns and lengths of whole episodes, in the order in which they ended."""
    generator = None if deterministic else torch.Generator(model.device)
    if generator is not None:
        generator.seed() if seed is None else generator.manual_seed(seed)
    quota = np.array([(episodes + row) // env.num_envs for row in range(env.num_envs)])
    observations, masks, state = env.first_observations, env.first_masks, model.policy.initial_state(env.num_envs)
    starts = torch.ones(env.num_envs, dtype=torch.bool, device=model.device)
    resetting = torch.zeros_like(starts)
    total, steps = np.zeros(env.num_envs), np.zeros(env.num_envs, dtype=np.int64)
    returns: list[float] = []
    lengths: list[int] = []
    while quota.sum():
        chosen = act(model.policy, model.config.precision, observations, state, starts, masks, generator)
        after = env.step(chosen.actions)
        total += after.rewards.double().cpu().numpy()
        steps += _host(~resetting)
        done = after.terminated | after.truncated
        for row in np.flatnonzero(_host(done)):
            if quota[row]:
                quota[row] -= 1
                returns.append(float(total[row]))
                lengths.append(int(steps[row]))
            total[row], steps[row] = 0.0, 0
        observations, masks, state = after.observations, after.masks, chosen.state
        starts, resetting = (resetting, done) if env.resets_next_step else (done, resetting)
    return returns, lengths


def _host(flags: Tensor) -> Any:
    return flags.cpu().numpy()


class EvalCallback(EventCallback):
    """Evaluates every `eval_freq` steps of the vector environment, logs under `eval/`, keeps the best agent.

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
    ) -> None:
        super().__init__(callback_after_eval, verbose)
        self.callback_on_new_best = callback_on_new_best
        if callback_on_new_best is not None:
            callback_on_new_best.parent = self
        self.eval_env: VectorEnv[Any, Any, Any] = make_vector_env(eval_env, n_eval_episodes)
        self.n_eval_episodes, self.eval_freq = n_eval_episodes, eval_freq
        self.best_model_save_path, self.deterministic, self.seed = best_model_save_path, deterministic, seed
        self.best_mean_reward = -np.inf
        self.last_mean_reward = -np.inf

    def _init_callback(self) -> None:
        if self.callback_on_new_best is not None:
            self.callback_on_new_best.init_callback(self.model)

    def _on_step(self) -> bool:
        if self.n_calls % self.eval_freq:
            return True
        self._evaluate()
        proceed = True
        if self.last_mean_reward > self.best_mean_reward:
            self.best_mean_reward = self.last_mean_reward
            if self.best_model_save_path is not None:
                self.model.save(Path(self.best_model_save_path) / "best_model.ckpt")
            if self.callback_on_new_best is not None:
                proceed = self.callback_on_new_best.on_step()
        return self._on_event() and proceed

    def _evaluate(self) -> None:
        returns, lengths = evaluate_policy(
            cast("FactoredRecurrentPPO", self.model),
            self.eval_env,
            self.n_eval_episodes,
            self.deterministic,
            return_episode_rewards=True,
            seed=self.seed,
        )
        self.last_mean_reward = float(np.mean(returns))
        self.logger.record("eval/mean_reward", self.last_mean_reward)
        self.logger.record("eval/mean_ep_length", float(np.mean(lengths)))
        if self.verbose:
            print(f"{self.num_timesteps} steps: return {self.last_mean_reward:.2f} ± {np.std(returns):.2f}", flush=True)
