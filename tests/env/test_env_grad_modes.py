"""The environment trains inside whatever gradient mode its caller is in."""

from contextlib import AbstractContextManager

import esper_env  # noqa: F401 (registers the environments)
import gymnasium
import numpy as np
import pytest
import torch
from esper_env import HEADS, Op


def played(mode: AbstractContextManager[object]) -> tuple[np.ndarray, np.ndarray]:
    env = gymnasium.make_vec("Esper-v0", num_envs=2, horizon=6)
    actions = [Op.GERMINATE, Op.WAIT, Op.WAIT, Op.ADVANCE, Op.WAIT]
    with mode:
        env.reset(seed=3)
        for op in actions:
            step = {head: np.full(2, int(op) if head == "op" else 0) for head in HEADS}
            observation, reward, *_ = env.step(step)
    return observation, reward


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_callers_gradient_mode_changes_nothing(mode: type[AbstractContextManager[object]]) -> None:
    for theirs, plain in zip(played(mode()), played(torch.enable_grad()), strict=True):
        np.testing.assert_array_equal(theirs, plain)
