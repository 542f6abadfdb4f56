"""RLlib: PPO with its own action-masking module, on joint actions with exact masks.

python examples/integrations/rllib_ppo.py
"""

import esper_env
import gymnasium
from esper_env.wrappers import DiscreteActions, MaskInObservation
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.examples.rl_modules.classes.action_masking_rlm import ActionMaskingTorchRLModule
from ray.tune.registry import register_env


def make(settings):
    """One environment as RLlib's module reads it."""
    env = DiscreteActions(gymnasium.make("esper_env:Esper-v0", **settings))
    return MaskInObservation(env, keys=("observations", "action_mask"), dtype="float32")


register_env("esper", make)
module = RLModuleSpec(module_class=ActionMaskingTorchRLModule, model_config={"fcnet_hiddens": [64]})
config = (
    PPOConfig()
    .environment("esper", env_config={"horizon": 20})
    .rl_module(
        rl_module_spec=RLModuleSpec(module_class=ActionMaskingTorchRLModule, model_config={"fcnet_hiddens": [64]})
    )
    .env_runners(num_env_runners=0)
    .learners(num_learners=0)
    .training(gamma=gymnasium.make("Esper-v0").unwrapped.gamma, train_batch_size=120, minibatch_size=40, num_epochs=2)
)
algorithm = config.build_algo()
for _ in range(2):
    result = algorithm.train()
print("return", round(result["env_runners"]["episode_return_mean"], 3))
algorithm.stop()
