"""Environments for jobs of several ranks: every row draws from its own seed, so any rank can play it."""

from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode, SyncVectorEnv

ENV = "ranked_envs:NextStepCartPole-v0"


def next_step_cartpole(num_envs: int, **_options: Any) -> SyncVectorEnv:
    """CartPole that spends a step on every reset, so that ranks have different numbers of decisions."""
    makers = [lambda: gymnasium.make("CartPole-v1")] * num_envs
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode.NEXT_STEP)


gymnasium.register("NextStepCartPole-v0", entry_point=None, vector_entry_point=next_step_cartpole)
