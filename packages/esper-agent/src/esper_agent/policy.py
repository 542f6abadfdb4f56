"""The network: encoder, LSTM, factored action heads and critic. Everything is [batch, time, ...]."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from esper_agent.actions import ActionSpec
from esper_agent.config import PPOConfig
from esper_agent.distribution import FactoredDistribution
from esper_agent.normalization import ObservationNormalizer, ValueNormalizer
from esper_agent.recurrent import ResettingLSTM, State

HIDDEN_GAIN = 2**0.5


@dataclass(frozen=True)
class Evaluation:
    """What the policy says about a batch of sequences."""

    distribution: FactoredDistribution
    values: Tensor  # [batch, time], in normalised units
    hidden: Tensor  # [batch, time, size], the LSTM's output


class Policy(nn.Module):
    """An actor and a critic on one recurrent trunk. The critic sees neither masks nor actions.

    Args:
        observation_size: width of an encoded observation.
        actions: the heads.
        config: widths, norms, gains.
    """

    padding: Tensor  # bool [cells, width]: which entries of the cells exist

    def __init__(self, observation_size: int, actions: ActionSpec, config: PPOConfig) -> None:
        super().__init__()
        self.observation_size = observation_size
        self.actions = actions
        self.normalizer = (
            ObservationNormalizer(observation_size, config.observation_clip) if config.normalize_observations else None
        )
        self.encoder = _encoder(observation_size, config)
        self.lstm = ResettingLSTM(config.encoder_sizes[-1], config.lstm_size, config.lstm_layers, config.forget_bias)
        self.decoder = Decoder(actions, config)
        self.values = ValueNormalizer(self.decoder.value, float(config.value_window))
        self.register_buffer("padding", actions.padding_mask(), persistent=False)
        self.encode_call: Callable[[Tensor], Tensor] = self.encode
        self.decode_call: Callable[[Tensor], tuple[Tensor, Tensor]] = self.decoder.forward

    def encode(self, observations: Tensor) -> Tensor:
        """Normalise and encode observations, [batch, time, observation_size]."""
        if observations.dim() != 3 or observations.shape[-1] != self.observation_size:
            raise ValueError(
                f"observations have shape {tuple(observations.shape)}; "
                f"allowed: [batch, time, {self.observation_size}] (a single step has time 1)"
            )
        if self.normalizer is not None:
            observations = self.normalizer(observations)
        encoded: Tensor = self.encoder(observations)
        return encoded

    def initial_state(self, batch: int) -> State:
        """The state at the start of an episode."""
        return self.lstm.initial_state(batch)

    def forward(
        self, observations: Tensor, state: State, starts: Tensor, max_resets: int, penalty: Tensor
    ) -> Evaluation:
        """Run over whole sequences.

        Args:
            observations: [batch, time, observation_size], not normalised.
            state: the state before the first step.
            starts: bool [batch, time], where an episode starts.
            max_resets: at least the number of starts after the first step in any sequence.
            penalty: of `Legality`, broadcastable to [cells, width, batch, time].
        """
        hidden = self.lstm(self.encode_call(observations), state, starts, max_resets)
        logits, values = self.decode_call(hidden)
        return Evaluation(FactoredDistribution(self.actions, logits, penalty), values, hidden)

    def step(self, observations: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        """One step for acting: [batch, 1, observation_size] to the LSTM's output [batch, 1, size] and state."""
        keep = (~starts).to(state[0].dtype)
        hidden, after = self.lstm.step(self.encode(observations)[:, 0], (state[0] * keep, state[1] * keep))
        return hidden[:, None], after

    def value(self, observations: Tensor, state: State, starts: Tensor) -> Tensor:
        """Normalised values of single observations, [batch, 1, observation_size] to [batch]."""
        hidden, _ = self.step(observations, state, starts)
        return self.decoder.values(hidden)[:, 0]

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """All parameters by part: trunk, each head, critic."""
        heads = {f"head_{name}": list(head.parameters()) for name, head in self.decoder.heads.items()}
        critic = [*self.decoder.critic.parameters(), *self.decoder.value.parameters()]
        taken = {id(p) for group in [*heads.values(), critic] for p in group}
        trunk = [p for p in self.parameters() if id(p) not in taken]
        return {"trunk": trunk, **heads, "critic": critic}


def follower_scatter(actions: ActionSpec) -> Tensor:
    """Which output of the followers' layers stands at each entry of a row's cells; any of the head's for padding."""
    starts = [sum(actions.sizes[1:index]) for index in range(1, len(actions.sizes))]
    entries = [
        start + min(value, size - 1)
        for start, size in zip(starts, actions.sizes[1:], strict=True)
        for value in range(actions.width)
    ]
    return torch.tensor(entries, dtype=torch.long)


class Decoder(nn.Module):
    """From the LSTM's output to logits of all cells and to the normalised value."""

    scatter: Tensor

    def __init__(self, actions: ActionSpec, config: PPOConfig) -> None:
        super().__init__()
        self.actions = actions
        size, width = config.lstm_size, config.head_hidden
        self.norm = nn.LayerNorm(size) if config.recurrent_norm else nn.Identity()
        self.actor = orthogonal(nn.Linear(size, width), HIDDEN_GAIN)
        self.heads = nn.ModuleDict(
            {
                name: orthogonal(nn.Linear(width, n), config.policy_gain)
                for name, n in zip(actions.heads, actions.sizes, strict=True)
            }
        )
        conditioned = actions.by_op and config.condition_on_op and actions.followers > 0
        self.op_embedding = nn.Parameter(torch.randn(actions.rows, width) * 0.5) if conditioned else None
        self.register_buffer("scatter", follower_scatter(actions), persistent=False)
        self.critic = orthogonal(nn.Linear(size, width), HIDDEN_GAIN)
        self.value = orthogonal(nn.Linear(width, 1), config.value_gain)

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [cells, width, batch, time] and normalised values [batch, time]."""
        features = self.norm(hidden)
        return self._logits(features), self._values(features)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits alone, for acting."""
        return self._logits(self.norm(hidden))

    def values(self, hidden: Tensor) -> Tensor:
        """Normalised values alone, for bootstrapping."""
        return self._values(self.norm(hidden))

    def _values(self, features: Tensor) -> Tensor:
        values: Tensor = self.value(torch.tanh(self.critic(features)))
        return values.squeeze(-1).float()

    def _logits(self, features: Tensor) -> Tensor:
        batch, time, _ = features.shape
        # Steps come last from here on, as the distribution wants them: no layer then reads across memory.
        actor = torch.addmm(self.actor.bias[:, None], self.actor.weight, features.flatten(0, 1).T)
        weight, bias = self.heads[self.actions.heads[0]].parameters()
        leading = torch.addmm(bias[:, None], weight, torch.tanh(actor))
        leading = functional.pad(leading, (0, 0, 0, self.actions.width - self.actions.sizes[0]))[None]
        if self.actions.followers:
            leading = torch.cat([leading, self._follower_logits(actor)])
        return leading.view(*leading.shape[:-1], batch, time)

    def _follower_logits(self, actor: Tensor) -> Tensor:
        """All followers in all rows with one multiplication, [width, steps] to [cells - 1, width, steps]."""
        parts = [tuple(self.heads[name].parameters()) for name in self.actions.heads[1:]]
        weight = torch.cat([part[0] for part in parts]).index_select(0, self.scatter)
        bias = torch.cat([part[1] for part in parts]).index_select(0, self.scatter)
        rows = torch.tanh(self._per_row(actor))
        logits = torch.baddbmm(bias[:, None], weight.expand(len(rows), -1, -1), rows)
        return logits.view(-1, self.actions.width, actor.shape[1])

    def _per_row(self, actor: Tensor) -> Tensor:
        """The actor's hidden layer once per row of followers, [width, steps] to [rows, width, steps]."""
        if self.op_embedding is not None:
            return actor + self.op_embedding[:, :, None]
        return actor.expand(self.actions.rows, *actor.shape)


def _encoder(observation_size: int, config: PPOConfig) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in zip((observation_size, *config.encoder_sizes), config.encoder_sizes, strict=False):
        layers += [orthogonal(nn.Linear(inputs, outputs), HIDDEN_GAIN), nn.Tanh()]
    if config.encoder_norm:
        layers.append(nn.LayerNorm(config.encoder_sizes[-1]))
    return nn.Sequential(*layers)


def orthogonal(layer: nn.Linear, gain: float) -> nn.Linear:
    """Initialise a layer with orthogonal weights and zero biases."""
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def check_shapes(saved: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Refuse the parameters of another network.

    Raises:
        ValueError: naming the first difference.
    """
    for name in sorted(set(saved) | set(own)):
        theirs, ours = (tuple(part[name].shape) if name in part else None for part in (saved, own))
        if theirs != ours:
            raise ValueError(f"the saved parameter {name} has shape {theirs}; this agent's has {ours}")
