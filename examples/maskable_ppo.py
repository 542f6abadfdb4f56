"""Train sb3-contrib's MaskablePPO on joint actions with exact masks.

python examples/maskable_ppo.py
"""

from esper_agent.baselines.sb3_env import EsperVecEnv
from sb3_contrib import MaskablePPO
from stable_baselines3.common.vec_env import VecMonitor

vec_env = VecMonitor(EsperVecEnv("Esper-v0", num_envs=8, actions="discrete"))
gamma = vec_env.get_attr("gamma")[0]  # the environment's own: its shaping depends on it
model = MaskablePPO("MlpPolicy", vec_env, n_steps=30, batch_size=80, gamma=gamma)
model.learn(480)
