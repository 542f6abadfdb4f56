"""Train esper-agent's own PPO.

python examples/factored_recurrent_ppo.py
"""

import esper_env
import gymnasium
from esper_agent import FactoredRecurrentPPO

env = gymnasium.make_vec("Esper-v0", num_envs=8, autoreset_mode="same_step", output="torch")
agent = FactoredRecurrentPPO(env, n_steps=30, sequence_length=30)
agent.learn(total_timesteps=480)
