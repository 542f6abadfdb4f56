"""skrl: PPO with one categorical per head, on the vector environment; illegal actions become waiting.

python examples/integrations/skrl_ppo.py
"""

import esper_env
import gymnasium
import torch
from esper_env.wrappers import VectorMultiDiscreteActions
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, Model, MultiCategoricalMixin
from skrl.trainers.torch import SequentialTrainer
from torch import nn

HORIZON, ROWS = 20, 4


def layers(inputs, outputs):
    """A small network."""
    return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, outputs))


class Policy(MultiCategoricalMixin, Model):
    """Logits of all heads side by side."""

    def __init__(self, observation_space, state_space, action_space, device):
        Model.__init__(
            self, observation_space=observation_space, state_space=state_space, action_space=action_space, device=device
        )
        MultiCategoricalMixin.__init__(self, unnormalized_log_prob=True, reduction="sum")
        self.net = layers(self.num_observations, self.num_actions)

    def compute(self, inputs, role):
        """Logits of observations."""
        del role
        return self.net(inputs["observations"]), {}


class Value(DeterministicMixin, Model):
    """The value of an observation."""

    def __init__(self, observation_space, state_space, action_space, device):
        Model.__init__(
            self, observation_space=observation_space, state_space=state_space, action_space=action_space, device=device
        )
        DeterministicMixin.__init__(self)
        self.net = layers(self.num_observations, 1)

    def compute(self, inputs, role):
        """Values of observations."""
        del role
        return self.net(inputs["observations"]), {}


vector = gymnasium.make_vec("Esper-v0", num_envs=ROWS, horizon=HORIZON)
gamma = vector.unwrapped.gamma
env = wrap_env(VectorMultiDiscreteActions(vector))
spaces = {"observation_space": env.observation_space, "state_space": env.state_space, "action_space": env.action_space}
models = {"policy": Policy(**spaces, device=env.device), "value": Value(**spaces, device=env.device)}
settings = PPO_CFG()
settings.rollouts, settings.learning_epochs, settings.mini_batches, settings.discount_factor = HORIZON, 2, 2, gamma
settings.experiment.write_interval = settings.experiment.checkpoint_interval = 0
memory = RandomMemory(memory_size=HORIZON, num_envs=ROWS, device=env.device)
agent = PPO(models=models, memory=memory, cfg=settings, **spaces, device=env.device)
before = torch.nn.utils.parameters_to_vector(models["policy"].parameters()).clone()
SequentialTrainer(
    cfg={"timesteps": 2 * HORIZON, "headless": True, "disable_progressbar": True}, env=env, agents=agent
).train()
after = torch.nn.utils.parameters_to_vector(models["policy"].parameters())
print(f"two updates moved the policy by {(after - before).norm():.3f}")
