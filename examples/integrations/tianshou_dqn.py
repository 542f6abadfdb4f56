"""Tianshou: DQN on joint actions, with the masks that its policies read from the observation.

python examples/integrations/tianshou_dqn.py
"""

import esper_env
import gymnasium
import numpy as np
from esper_env.wrappers import DiscreteActions, MaskInObservation
from tianshou.algorithm import DQN
from tianshou.algorithm.algorithm_base import policy_within_training_step
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.utils.net.common import Net

HORIZON, ROWS = 20, 4


def make():
    """One environment as Tianshou reads it."""
    env = DiscreteActions(gymnasium.make("Esper-v0", horizon=HORIZON))
    return MaskInObservation(env, keys=("obs", "mask"), dtype="bool")


one = make()
gamma, observations, actions = one.unwrapped.gamma, one.observation_space["obs"], one.action_space
model = Net(state_shape=observations.shape, action_shape=actions.n, hidden_sizes=[64, 64])
policy = DiscreteQLearningPolicy(model=model, action_space=actions, observation_space=observations, eps_training=0.2)
agent = DQN(policy=policy, optim=AdamOptimizerFactory(lr=1e-3), gamma=gamma, target_update_freq=50)
buffer = VectorReplayBuffer(ROWS * 200, ROWS)
collector = Collector[object](agent, DummyVectorEnv([make] * ROWS), buffer)
for _ in range(2):
    played = collector.collect(n_episode=ROWS, reset_before_collect=True)
    with policy_within_training_step(policy):
        learned = [agent.update(buffer=buffer, sample_size=64) for _ in range(10)][-1]
    print(f"return {np.mean(played.returns):.3f}, loss {learned.loss:.4f}")
illegal = buffer.info["invalid_action"][: len(buffer)].sum()
print(f"illegal actions: {illegal}")
