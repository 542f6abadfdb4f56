"""Play one episode with random legal actions.

python examples/random_agent.py
"""

import esper_env
import gymnasium

env = gymnasium.make("Esper-v0")
observation, info = env.reset(seed=0)
over = False
while not over:
    action = env.action_space.sample(info["action_mask"])
    observation, reward, over, truncated, info = env.step(action)
print(info["committed_metric"], info["reward_terms"])
