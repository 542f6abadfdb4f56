"""A masked recurrent PPO on an environment of your own: a key that is seen once, doors of which most are locked.

python examples/integrations/masked_recurrent_ppo.py
"""

import gymnasium
import numpy as np
from esper_agent import FactoredRecurrentPPO
from esper_agent.evaluation import evaluate_policy
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

KEYS, WALK = 4, 5


class Doors(gymnasium.Env):
    """The first observation shows a key. After a walk two doors can be opened, and the key fits one of them."""

    observation_space = spaces.Box(0.0, 1.0, (KEYS + 1,), np.float32)
    action_space = spaces.Discrete(1 + KEYS)  # walk on, or open a door

    def reset(self, *, seed=None, options=None):
        """Draw the key, and another door that can be opened."""
        super().reset(seed=seed, options=options)
        self.time, (self.key, self.other) = 0, self.np_random.choice(KEYS, 2, replace=False)
        return self.observation(), {}

    def step(self, action):
        """Walk, and at the end open a door."""
        arrived = self.time == WALK
        self.time += 1
        return self.observation(), float(arrived and action == 1 + self.key), arrived, False, {}

    def observation(self):
        """The key in the first step, and how far the walk has come."""
        shown = np.zeros(KEYS + 1, np.float32)
        shown[self.key] = self.time == 0
        shown[KEYS] = self.time / (WALK + 1)
        return shown

    def action_masks(self):
        """As sb3-contrib's MaskablePPO asks for them."""
        legal = [0] if self.time < WALK else [1 + self.key, 1 + self.other]
        return np.isin(np.arange(1 + KEYS), legal)


for memory in ("lstm", "none"):
    model = FactoredRecurrentPPO(SyncVectorEnv([Doors] * 16), memory=memory, n_steps=24, sequence_length=24, seed=0)
    model.learn(20_000, log_interval=None)
    mean, _ = evaluate_policy(model, SyncVectorEnv([Doors] * 16), n_eval_episodes=200)
    print(f"memory {memory}: {mean:.2f} of the doors are opened by the right key")
