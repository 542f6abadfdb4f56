"""Ten thousand vector steps of resets, prunes and rollbacks leave memory, files and potentials as they were."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from env_tools import any_actions, legal_actions, resident_bytes, tiny
from esper_env import EsperVectorEnv, Op
from esper_env.mdp.rewards import potential

STEPS, ROWS = 10_000, 8
SETTLED = 1_000  # steps after which nothing may grow any more
MOST_GROWTH = 8 << 20  # bytes: far below what one step's tensors would add up to


class Telescope:
    """Adds up the discounted shaping of every row's episode, which must end at minus the potential it began with."""

    def __init__(self, env: EsperVectorEnv) -> None:
        self.env = env
        self.total, self.discount = np.zeros(ROWS), np.ones(ROWS)
        self.first = self.potentials()

    def potentials(self) -> np.ndarray:
        return self.env.simulation.state.potential.numpy().copy()

    def add(self, shaping: np.ndarray, ended: np.ndarray) -> float:
        """Take in a step; the largest error among the episodes that it ended."""
        self.total += self.discount * shaping
        self.discount *= self.env.gamma
        error = np.abs(self.total + self.first)[ended].max(initial=0.0)
        self.total[ended], self.discount[ended], self.first[ended] = 0.0, 1.0, self.potentials()[ended]
        return float(error)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.soak
@pytest.mark.ledger("R3", "V1")
def test_ten_thousand_steps_neither_leak_nor_drift() -> None:
    env = tiny(ROWS, horizon=20, learning_rate=(0.02, 2.0), autoreset_mode="same_step")
    rng = np.random.default_rng(0)
    _, infos = env.reset(seed=0)
    telescope, seen, held, files = Telescope(env), Counter[str](), [], []
    for number in range(1, STEPS + 1):
        actions = any_actions(env, rng) if number % 10 == 0 else legal_actions(infos, rng)
        observation, _, ended, _, infos = env.step(actions)
        assert np.isfinite(observation).all()
        assert telescope.add(infos["reward_terms"]["shaping"], ended) < 1e-9
        pruned = (actions["op"] == Op.PRUNE) & ~infos["invalid_action"]
        seen.update(resets=ended.sum(), prunes=pruned.sum(), rollbacks=infos["rolled_back"].sum())
        if number % SETTLED == 0:
            state = env.simulation.state
            np.testing.assert_array_equal(state.potential, potential(state, env.simulation.config))
            held.append(resident_bytes())
            files.append(open_files())
    assert min(seen[event] for event in ("resets", "prunes", "rollbacks")) > 100, seen
    assert held[-1] - held[0] < MOST_GROWTH
    assert len(set(files)) == 1
