"""Evaluation in the course of a run, on instances that no training sees; the best agent so far is kept."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from esper_env import EsperVectorEnv

from esper_agent.algorithm.environments import make_vector_env
from esper_agent.evaluation import EvalCallback
from esper_agent.evaluation.episodes import Env
from esper_agent.evaluation.paired import make_test_env, play
from esper_agent.ppo import FactoredRecurrentPPO
from esper_agent.runs.directory import RunConfig, RunDirectory

EPISODES = 64
SEED = 10_000  # the same instances in every evaluation
VALIDATION = "validation"
KEY = "eval/discounted_return"


class Validation(EvalCallback):
    """Evaluates every `eval_every` environment steps; the best mean discounted return decides which agent is kept.

    Which evaluations are due depends on the number of steps alone, so that a resumed run repeats them.

    Args:
        run: where the best agent goes.
        config: the run's settings.
        model: the agent.
    """

    def __init__(self, run: RunDirectory, config: RunConfig, model: FactoredRecurrentPPO) -> None:
        self.paired = isinstance(model.tensor_env.env.unwrapped, EsperVectorEnv)
        rollout = model.config.n_steps * model.buffer.n_envs * model.ranks.size
        steps = range(config.eval_every, config.total_timesteps + 1, config.eval_every)
        due = [step for step in steps if step > model.num_timesteps - rollout]
        super().__init__(_make_env(config, paired=self.paired), n_eval_episodes=EPISODES, seed=SEED, eval_at=due)
        self.measure, self.best_model_save_path = self._play if self.paired else self._measure, run.best_file.parent
        before = [row[KEY] for row in run.metrics() if row.get(KEY) is not None]
        self.best_mean_reward = model.ranks.gather(max(before, default=-np.inf))[0]

    def _play(self) -> dict[str, float]:
        return play(self.model, self.eval_env, SEED).means()

    def _log(self, means: Mapping[str, float]) -> None:
        for name, value in means.items():
            self.logger.record(f"eval/{name}", value)
        self.last_mean_reward = means["discounted_return"]


def _make_env(config: RunConfig, *, paired: bool) -> Any:
    if paired:
        settings: dict[str, Any] = {"device": config.device, **config.env, "instances": VALIDATION}
        env: Env = make_test_env(config.env_id, EPISODES, **settings)
        return env
    return make_vector_env(config.env_id, EPISODES, **config.env)
