"""TorchRL: a PPO update on the vector environment, with every head of the action masked.

python examples/integrations/torchrl_ppo.py
"""

import esper_env
import gymnasium
import torch
from esper_env import HEADS
from esper_env.wrappers import VectorMaskInObservation, VectorMultiDiscreteActions
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.collectors import Collector
from torchrl.envs import GymWrapper
from torchrl.modules import MaskedCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

HORIZON, ROWS, ROLLOUTS = 30, 4, 2


class MaskedHeads(torch.distributions.Distribution):
    """Independent categorical heads side by side, with the flags of their legal values."""

    def __init__(self, logits, mask, sizes):
        parts = zip(logits.split(sizes, -1), mask.bool().split(sizes, -1), strict=True)
        self.heads = [MaskedCategorical(logits=head, mask=legal) for head, legal in parts]
        super().__init__(logits.shape[:-1], torch.Size([len(sizes)]), validate_args=False)

    def sample(self, sample_shape=()):
        """A value of each head."""
        return torch.stack([head.sample(sample_shape) for head in self.heads], -1)

    def log_prob(self, value):
        """Of the joint action."""
        return sum(head.log_prob(value[..., place]) for place, head in enumerate(self.heads))

    def entropy(self):
        """The sum over the heads."""
        return sum(head.entropy() for head in self.heads)

    @property
    def deterministic_sample(self):
        """The most likely value of each head."""
        return torch.stack([head.mode for head in self.heads], -1)


class Logits(nn.Module):
    """Logits of all heads from the observation; the mask goes with them."""

    def __init__(self, size, flags):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(size, 64), nn.Tanh(), nn.Linear(64, flags))

    def forward(self, observation, mask):
        """Logits and the mask, as they came."""
        return self.layers(observation), mask


base = gymnasium.make_vec("Esper-v0", num_envs=ROWS, horizon=HORIZON, autoreset_mode="disabled")
gamma, sizes = base.unwrapped.gamma, [int(base.single_action_space[head].n) for head in HEADS]
env = GymWrapper(VectorMaskInObservation(VectorMultiDiscreteActions(base)), categorical_action_encoding=True)
torch.manual_seed(0)
env.set_seed(0)
size, flags = base.single_observation_space.shape[0], sum(sizes)
logits = TensorDictModule(Logits(size, flags), in_keys=["observation", "action_mask"], out_keys=["logits", "mask"])
actor = ProbabilisticActor(
    TensorDictSequential(logits),
    in_keys=["logits", "mask"],
    distribution_class=MaskedHeads,
    distribution_kwargs={"sizes": sizes},
    return_log_prob=True,
)
critic = ValueOperator(nn.Sequential(nn.Linear(size, 64), nn.Tanh(), nn.Linear(64, 1)), in_keys=["observation"])
loss = ClipPPOLoss(actor, critic, entropy_coeff=0.01)
advantage = GAE(gamma=gamma, lmbda=0.95, value_network=critic)
optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
frames = HORIZON * ROWS
for data in Collector(env, actor, frames_per_batch=frames, total_frames=ROLLOUTS * frames):
    for _ in range(4):
        advantage(data)
        losses = loss(data.reshape(-1))
        optimizer.zero_grad()
        sum(losses[name] for name in ("loss_objective", "loss_critic", "loss_entropy")).backward()
        optimizer.step()
    print(f"reward per step {data['next', 'reward'].mean():.4f}, losses {losses['loss_critic'].item():.4f}")
