"""Gymnasium's own wrappers, single and vector: statistics, time limits, scaled observations.

python examples/integrations/gymnasium_wrappers.py
"""

import esper_env
import gymnasium
from esper_env import sample_action, sample_mask
from gymnasium.wrappers import NormalizeObservation, RecordEpisodeStatistics
from gymnasium.wrappers.vector import RecordEpisodeStatistics as VectorRecordEpisodeStatistics

env = gymnasium.make("Esper-v0", max_episode_steps=10)
env = NormalizeObservation(RecordEpisodeStatistics(env))
_, info = env.reset(seed=0)
truncated = False
while not truncated:
    _, _, _, truncated, info = env.step(sample_action(env.action_space, info))
print(f"single: cut after {info['episode']['l']} steps, return {info['episode']['r']:.3f}")

vector = VectorRecordEpisodeStatistics(gymnasium.make_vec("Esper-v0", num_envs=3, horizon=8))
_, infos = vector.reset(seed=0)
for _ in range(8):
    *_, infos = vector.step(vector.action_space.sample(sample_mask(infos["action_mask"])))
print(f"vector: lengths {infos['episode']['l'].tolist()}")
