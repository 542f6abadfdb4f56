"""A masked, factored, recurrent PPO in one file: nine of ten seeds end past the plateau rule.

python examples/ppo_single_file.py --seed 0

It needs torch, gymnasium, numpy and esper_env alone; esper-agent is the same idea with everything around it.
"""

import argparse
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, NamedTuple

import esper_env
import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

OP, *ARGUMENTS = esper_env.HEADS  # the op is drawn first, then its arguments, given the op
Heads = dict[str, Tensor]  # something of each head
State = tuple[Tensor, Tensor]
Env = gymnasium.vector.VectorEnv[Any, Any, Any]


@dataclass(frozen=True)
class Args:
    """What can be set on the command line."""

    env_id: str = "Esper-v0"
    seed: int = 0
    total_timesteps: int = 57_600
    num_envs: int = 32
    num_steps: int = 30  # one episode
    learning_rate: float = 2e-3  # it falls linearly to a tenth
    update_epochs: int = 8
    num_minibatches: int = 1
    gae_lambda: float = 0.9
    reward_scale: float = 5.0  # so that returns differ by about 1
    clip_coef: float = 0.2
    ent_coef_op: float = 0.02
    ent_coef_arguments: float = 0.0005
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    target_kl: float = 0.05
    wait_bias: float = 1.0  # a new policy mostly waits, so that seeds live long enough to be judged


class Choice(NamedTuple):
    """What was chosen, and each head's log-probability and entropy."""

    actions: Heads
    log_probs: Heads
    entropies: Heads

    @property
    def log_prob(self) -> Tensor:
        """Of the joint action. A head that the op does not use has one legal value, which adds exactly 0."""
        return torch.stack([*self.log_probs.values()]).sum(0)


class Now(NamedTuple):
    """Where all environments stand."""

    observation: Tensor
    masks: Heads  # bool [envs, ops, values]: what is legal under which op; the op itself has one row
    start: Tensor  # bool [envs]: an episode starts here
    state: State

    @classmethod
    def of(cls, observation: Tensor, infos: dict[str, Any], start: Tensor, state: State) -> "Now":
        """From what the environment says."""
        arguments = {head: infos["action_mask_by_op"][head].bool() for head in ARGUMENTS}
        return cls(observation.float(), {OP: infos["action_mask"][OP].bool()[:, None], **arguments}, start, state)


class Rollout(NamedTuple):
    """Some steps of some environments, [steps, envs, ...]."""

    observations: Tensor
    masks: Heads
    starts: Tensor
    actions: Heads
    log_prob: Tensor
    rewards: Tensor
    advantages: Tensor
    returns: Tensor
    state: State  # before the first step, [1, envs, size]

    def select(self, envs: Tensor) -> "Rollout":
        """Whole sequences of some environments: the memory has to be rebuilt step by step."""

        def pick(part: Any) -> Any:
            return {head: each[:, envs] for head, each in part.items()} if isinstance(part, dict) else part[:, envs]

        return Rollout(*map(pick, self[:-1]), state=(self.state[0][:, envs], self.state[1][:, envs]))


def linear(inputs: int, outputs: int, gain: float = 2**0.5) -> nn.Linear:
    """A layer with orthogonal weights, without bias at first."""
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class Agent(nn.Module):
    """pi(op | s) * product of pi(argument | op, s), and V(s), on an LSTM that reads all slots with the same weights."""

    def __init__(self, env: Env, wait_bias: float, size: int = 64, slot_size: int = 32) -> None:
        super().__init__()
        observation_size = env.single_observation_space.shape[0]
        _, self.shared, self.width = env.unwrapped.observation_entities
        self.size, self.slots = size, (observation_size - self.shared) // self.width
        values = {head: int(env.single_action_space[head].n) for head in esper_env.HEADS}
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(observation_size))
        self.register_buffer("square", torch.ones(observation_size))
        around = self.shared + 3 * self.width
        self.embed = nn.Sequential(linear(around, slot_size), nn.Tanh(), linear(slot_size, slot_size), nn.Tanh())
        self.encode = nn.Sequential(linear(self.shared + 2 * slot_size, size), nn.Tanh(), linear(size, size), nn.Tanh())
        self.lstm = nn.LSTM(size, size)
        self.critic = nn.Sequential(linear(size, size), nn.Tanh(), linear(size, 1, 1.0))
        self.actor = linear(size, size)
        self.op_embedding = nn.Embedding(values[OP], size)
        self.heads = nn.ModuleDict({head: linear(size, count, 0.01) for head, count in values.items()})
        self.query = linear(size, slot_size, 0.01)
        self.heads[OP].bias.data[esper_env.Op.WAIT] = wait_bias

    def initial_state(self, envs: int) -> State:
        """Nothing remembered."""
        return torch.zeros(1, envs, self.size), torch.zeros(1, envs, self.size)

    def take_in(self, observations: Tensor) -> None:
        """Add a rollout to the moments that normalise observations; never between acting and learning from it."""
        count = observations[..., 0].numel()
        self.seen += count
        self.mean += (observations.mean((0, 1)) - self.mean) * count / self.seen
        self.square += (observations.square().mean((0, 1)) - self.square) * count / self.seen

    def read(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """An encoding of the whole, and an embedding of each slot with its neighbours."""
        deviation = (self.square - self.mean.square()).clamp(min=1e-4).sqrt()
        normal = ((observations - self.mean) / deviation).clamp(-10, 10)
        shared, slots = normal[..., : self.shared], normal[..., self.shared :].unflatten(-1, (self.slots, self.width))
        padded = nn.functional.pad(slots, (0, 0, 1, 1))
        whole = shared[..., None, :].expand(*slots.shape[:-1], -1)
        embedded = self.embed(torch.cat([whole, padded[..., :-2, :], slots, padded[..., 2:, :]], -1))
        return self.encode(torch.cat([shared, embedded.mean(-2), embedded.amax(-2)], -1)), embedded

    def remember(self, encoded: Tensor, starts: Tensor, state: State) -> tuple[Tensor, State]:
        """The LSTM's outputs, in one call from one step at which some episode starts to the next."""
        outputs, cuts = [], [0, *(starts[1:].any(1).nonzero().flatten() + 1).tolist(), len(starts)]
        for begin, end in pairwise(cuts):
            hidden, cell = (part * ~starts[begin, :, None] for part in state)
            output, state = self.lstm(encoded[begin:end], (hidden, cell))
            outputs.append(output)
        return torch.cat(outputs), state

    def choose(self, features: Tensor, slots: Tensor, masks: Heads, actions: Heads | None, greedy: bool) -> Choice:
        """Draw actions, unless they are given, the op first."""
        chosen, log_probs, entropies = dict(actions or {}), {}, {}
        hidden, op = self.actor(features), torch.zeros(features.shape[:-1], dtype=torch.long)
        for head in esper_env.HEADS:
            legal = masks[head].take_along_dim(op[..., None, None], -2).squeeze(-2)
            logits = self.heads[head](torch.tanh(hidden))
            if head == "slot":
                logits = logits + (slots @ self.query(torch.tanh(hidden))[..., None]).squeeze(-1)
            distribution = Categorical(logits=logits.masked_fill(~legal, -1e4), validate_args=False)
            if actions is None:
                chosen[head] = distribution.logits.argmax(-1) if greedy else distribution.sample()
            log_probs[head], entropies[head] = distribution.log_prob(chosen[head]), distribution.entropy()
            if head == OP:  # the arguments see the op, and its row of the masks
                op = chosen[OP]
                hidden = hidden + self.op_embedding(op)
        return Choice(chosen, log_probs, entropies)

    def forward(
        self, observations: Tensor, masks: Heads, starts: Tensor, state: State, actions: Heads | None = None,
        greedy: bool = False,
    ) -> tuple[Choice, Tensor, State]:  # fmt: skip
        """What is chosen, the values, and the memory afterwards; all of [steps, envs, ...]."""
        encoded, slots = self.read(observations)
        features, state = self.remember(encoded, starts, state)
        return self.choose(features, slots, masks, actions, greedy), self.critic(features).squeeze(-1), state

    @torch.no_grad()
    def act(self, now: Now, greedy: bool = False) -> tuple[Choice, Tensor, State]:
        """One step of all environments."""
        masks = {head: mask[None] for head, mask in now.masks.items()}
        choice, values, state = self(now.observation[None], masks, now.start[None], now.state, greedy=greedy)
        return Choice(*({head: part[0] for head, part in each.items()} for each in choice)), values[0], state


def collect(agent: Agent, env: Env, args: Args, now: Now) -> tuple[Rollout, Now]:
    """Play `num_steps` in all environments."""
    steps, first = [], now.state
    for _ in range(args.num_steps):
        choice, value, state = agent.act(now)
        observation, reward, terminated, _, infos = env.step(choice.actions)
        steps.append((now, choice, value, args.reward_scale * reward.float()))
        now = Now.of(observation, infos, terminated, state)
    moments, choices, values, rewards = zip(*steps, strict=True)
    following, advantage, advantages = agent.act(now)[1], torch.zeros(args.num_envs), []
    for step in reversed(range(args.num_steps)):  # generalised advantage estimation
        gamma = env.unwrapped.gamma * ~(moments[step + 1] if step + 1 < args.num_steps else now).start
        delta = rewards[step] + gamma * following - values[step]
        advantage = delta + gamma * args.gae_lambda * advantage
        following = values[step]
        advantages.insert(0, advantage)

    def stack(parts: list[Heads]) -> Heads:
        return {head: torch.stack([part[head] for part in parts]) for head in esper_env.HEADS}

    rollout = Rollout(
        observations=torch.stack([moment.observation for moment in moments]),
        masks=stack([moment.masks for moment in moments]),
        starts=torch.stack([moment.start for moment in moments]),
        actions=stack([choice.actions for choice in choices]),
        log_prob=torch.stack([choice.log_prob for choice in choices]),
        rewards=torch.stack(rewards),
        advantages=torch.stack(advantages),
        returns=torch.stack(advantages) + torch.stack(values),
        state=first,
    )
    return rollout, now


def loss_of(agent: Agent, batch: Rollout, args: Args) -> tuple[Tensor, float]:
    """The clipped surrogate, the value loss and the entropies, with an estimate of the KL divergence."""
    choice, values, _ = agent(batch.observations, batch.masks, batch.starts, batch.state, batch.actions)
    log_ratio = choice.log_prob - batch.log_prob
    ratio, clipped = log_ratio.exp(), log_ratio.exp().clamp(1 - args.clip_coef, 1 + args.clip_coef)
    advantages = (batch.advantages - batch.advantages.mean()) / (batch.advantages.std() + 1e-8)
    policy_loss = -torch.min(ratio * advantages, clipped * advantages).mean()
    value_loss = nn.functional.mse_loss(values, batch.returns)
    arguments = torch.stack([choice.entropies[head] for head in ARGUMENTS]).sum(0)
    entropy = args.ent_coef_op * choice.entropies[OP].mean() + args.ent_coef_arguments * arguments.mean()
    return policy_loss + args.vf_coef * value_loss - entropy, float((ratio - 1 - log_ratio).detach().mean())


def update(agent: Agent, optimizer: torch.optim.Optimizer, rollout: Rollout, args: Args) -> None:
    """Some epochs over a rollout, in minibatches of whole sequences; stops where the policy has moved far enough."""
    for _ in range(args.update_epochs):
        for envs in torch.randperm(args.num_envs).chunk(args.num_minibatches):
            loss, kl = loss_of(agent, rollout.select(envs), args)
            if kl > args.target_kl:
                return
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()


def train(args: Args) -> Agent:
    """Train a new agent."""
    torch.manual_seed(args.seed)
    env = gymnasium.make_vec(args.env_id, num_envs=args.num_envs, autoreset_mode="same_step", output="torch")
    agent = Agent(env, args.wait_bias)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    observation, infos = env.reset(seed=args.seed)
    now = Now.of(observation, infos, torch.ones(args.num_envs, dtype=torch.bool), agent.initial_state(args.num_envs))
    agent.take_in(now.observation[None])
    rollouts = args.total_timesteps // (args.num_envs * args.num_steps)
    for number in range(rollouts):
        optimizer.param_groups[0]["lr"] = args.learning_rate * (1 - 0.9 * number / rollouts)
        rollout, now = collect(agent, env, args, now)
        update(agent, optimizer, rollout, args)
        agent.take_in(rollout.observations)
        mean = rollout.rewards.sum(0).mean() / args.reward_scale
        print(f"{(number + 1) * rollout.starts.numel():>7} steps, mean return {mean:.3f}", flush=True)
    return agent


def evaluate(agent: Agent, env_id: str, episodes: int, seed: int) -> np.ndarray:
    """The discounted return of one greedy episode on each of some held-out instances."""
    env = gymnasium.make_vec(
        env_id, num_envs=episodes, instances="validation", autoreset_mode="disabled", output="torch"
    )
    observation, infos = env.reset(seed=seed)
    now = Now.of(observation, infos, torch.ones(episodes, dtype=torch.bool), agent.initial_state(episodes))
    total, discount = torch.zeros(episodes), torch.ones(episodes)
    while discount.any():
        choice, _, state = agent.act(now, greedy=True)
        observation, reward, terminated, _, infos = env.step(choice.actions)
        total += discount * reward
        discount *= env.unwrapped.gamma * ~terminated
        now = Now.of(observation, infos, torch.zeros(episodes, dtype=torch.bool), state)
    return total.numpy()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Args):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=field.type, default=field.default)
    args = Args(**vars(parser.parse_args()))
    torch.set_num_threads(1)
    returns = evaluate(train(args), args.env_id, episodes=128, seed=10_000)
    print(f"return on 128 held-out instances: {returns.mean():.3f} (never grow 0.353, plateau rule 0.437)")
