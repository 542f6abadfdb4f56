"""RLlib: PPO on the Dict of heads as it is, with the vector entry point; illegal actions become waiting.

python examples/integrations/rllib_dict_actions.py
"""

import esper_env
import gymnasium
from ray.rllib.algorithms.ppo import PPOConfig

gamma = gymnasium.make("Esper-v0").unwrapped.gamma
config = (
    PPOConfig()
    .environment("esper_env:Esper-v0", env_config={"horizon": 20})
    .env_runners(num_env_runners=0, num_envs_per_env_runner=4, gym_env_vectorize_mode="vector_entry_point")
    .learners(num_learners=0)
    .training(gamma=gamma, train_batch_size=160, minibatch_size=40, num_epochs=2)
)
algorithm = config.build_algo()
for _ in range(2):
    result = algorithm.train()
print("return", round(result["env_runners"]["episode_return_mean"], 3))
algorithm.stop()
