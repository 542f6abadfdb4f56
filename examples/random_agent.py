"""An episode of random legal actions.

python examples/random_agent.py
"""

import gymnasium
from esper_env import sample_action

env = gymnasium.make("Esper-v0")
observation, info = env.reset(seed=0)
over = False
while not over:
    action = sample_action(env.action_space, info)
    observation, reward, over, truncated, info = env.step(action)
print(info["committed_metric"], info["reward_terms"])
