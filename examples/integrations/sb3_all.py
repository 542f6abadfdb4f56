"""Stable-Baselines3 and sb3-contrib: PPO, A2C and RecurrentPPO on heads, MaskablePPO and DQN on joint actions.

python examples/integrations/sb3_all.py
"""

import esper_env
import gymnasium
from esper_agent.baselines.sb3_env import EsperVecEnv
from esper_env.wrappers import DiscreteActions
from sb3_contrib import MaskablePPO, RecurrentPPO
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.vec_env import VecMonitor

for algorithm, policy, actions, settings in (
    (PPO, "MlpPolicy", "multi_discrete", {"n_steps": 10, "batch_size": 20}),
    (A2C, "MlpPolicy", "multi_discrete", {"n_steps": 10}),
    (RecurrentPPO, "MlpLstmPolicy", "multi_discrete", {"n_steps": 10, "batch_size": 20}),
    (MaskablePPO, "MlpPolicy", "discrete", {"n_steps": 10, "batch_size": 20}),
):
    env = VecMonitor(EsperVecEnv("Esper-v0", num_envs=4, actions=actions, horizon=10))
    model = algorithm(policy, env, gamma=env.get_attr("gamma")[0], seed=0, device="cpu", **settings).learn(80)
    print(f"{algorithm.__name__}: return {sum(e['r'] for e in model.ep_info_buffer) / len(model.ep_info_buffer):.3f}")
single = DiscreteActions(gymnasium.make("Esper-v0", horizon=10))
model = DQN("MlpPolicy", single, gamma=single.unwrapped.gamma, learning_starts=20, seed=0, device="cpu").learn(60)
print(f"DQN: return {sum(e['r'] for e in model.ep_info_buffer) / len(model.ep_info_buffer):.3f}")
