"""The network: encoder, memory, factored action heads and critic. Everything is [batch, time, ...]."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from esper_agent.config import PPOConfig
from esper_agent.networks.action_spec import ActionSpec
from esper_agent.networks.distribution import FactoredDistribution
from esper_agent.networks.entity_encoder import Entities, EntityEncoder
from esper_agent.networks.memory import NoMemory, make_memory, memory_size
from esper_agent.networks.normalization import ObservationNormalizer, ValueNormalizer
from esper_agent.networks.recurrence import State

HIDDEN_GAIN = 2**0.5


@dataclass(frozen=True)
class Evaluation:
    """What the policy says about a batch of sequences."""

    distribution: FactoredDistribution
    values: Tensor  # [batch, time], in normalised units
    hidden: Tensor  # [batch, time, size], the memory's output; size 0 without a memory


class Policy(nn.Module):
    """An actor and a critic on one trunk. The critic sees neither masks nor actions.

    Args:
        observation_size: width of an encoded observation.
        actions: the heads.
        config: widths, norms, gains.
        entities: parts of the observation among which a head chooses, if there are any.
    """

    padding: Tensor  # bool [cells, width]: which entries of the cells exist

    def __init__(
        self, observation_size: int, actions: ActionSpec, config: PPOConfig, entities: Entities | None = None
    ) -> None:
        super().__init__()
        self.observation_size = observation_size
        self.encoding = config.encoder_sizes[-1]
        self.actions = actions
        self.normalizer = (
            ObservationNormalizer(observation_size, config.observation_clip) if config.normalize_observations else None
        )
        self.encoder = _encoder(observation_size, config) if entities is None else _entity_encoder(entities, config)
        self.memory = make_memory(self.encoding, config)
        self.skip = _skip(self.encoding, config)
        self.decoder = Decoder(actions, config, entities)
        self.values = ValueNormalizer(self.decoder.value, float(config.value_window))
        self.register_buffer("padding", actions.padding_mask(), persistent=False)
        self.encode_call: Callable[[Tensor], Tensor] = self.encode
        self.decode_call: Callable[[Tensor], tuple[Tensor, Tensor]] = self.decoder.forward

    def encode(self, observations: Tensor) -> Tensor:
        """Normalise and encode observations, [batch, time, observation_size]; embeddings of entities come last."""
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
        return self.memory.initial_state(batch)

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
        encoded = self.encode_call(observations)
        hidden = self.memory(encoded[..., : self.encoding], state, starts, max_resets)
        logits, values = self.decode_call(self._features(hidden, encoded))
        remembered = hidden[..., :0] if isinstance(self.memory, NoMemory) else hidden
        return Evaluation(FactoredDistribution(self.actions, logits, penalty), values, remembered)

    def step(self, observations: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        """One step for acting: [batch, 1, observation_size] to the decoder's features [batch, 1, ...] and state."""
        keep = (~starts).to(state[0].dtype)
        encoded = self.encode(observations)
        hidden, after = self.memory.step(encoded[:, 0, : self.encoding], (state[0] * keep, state[1] * keep))
        return self._features(hidden[:, None], encoded), after

    def _features(self, hidden: Tensor, encoded: Tensor) -> Tensor:
        """What the decoder reads: the memory's output and, past the memory, the embeddings of entities."""
        encoding, embedded = encoded[..., : self.encoding], encoded[..., self.encoding :]
        if self.skip is not None:
            hidden = hidden + self.skip(encoding)
        return torch.cat([hidden, embedded], -1) if embedded.shape[-1] else hidden

    def value(self, observations: Tensor, state: State, starts: Tensor) -> Tensor:
        """Normalised values of single observations, [batch, 1, observation_size] to [batch]."""
        features, _ = self.step(observations, state, starts)
        return self.decoder.values(features)[:, 0]

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """All parameters by part: trunk, each head, critic."""
        heads = {f"head_{name}": list(head.parameters()) for name, head in self.decoder.heads.items()}
        if self.decoder.entities is not None:
            heads[f"head_{self.decoder.entities.head}"] += self.decoder.query.parameters()
        critic = [*self.decoder.critic.parameters(), *self.decoder.value.parameters()]
        taken = {id(p) for group in [*heads.values(), critic] for p in group}
        trunk = [p for p in self.parameters() if id(p) not in taken]
        return {"trunk": trunk, **heads, "critic": critic}


def argument_scatter(actions: ActionSpec) -> Tensor:
    """Which output of the argument heads' layers stands at each entry of a row's cells; padding takes any."""
    starts = [sum(actions.sizes[1:index]) for index in range(1, len(actions.sizes))]
    entries = [
        start + min(value, size - 1)
        for start, size in zip(starts, actions.sizes[1:], strict=True)
        for value in range(actions.width)
    ]
    return torch.tensor(entries, dtype=torch.long)


class Decoder(nn.Module):
    """From the memory's output, and the embeddings of entities if there are any, to logits and the normalised value."""

    scatter: Tensor

    def __init__(self, actions: ActionSpec, config: PPOConfig, entities: Entities | None = None) -> None:
        super().__init__()
        self.actions, self.entities = actions, entities
        self.size, width = memory_size(config), config.head_hidden
        normed = config.recurrent_norm and config.memory != "none"
        self.norm = nn.LayerNorm(self.size) if normed else nn.Identity()
        self.actor = orthogonal(nn.Linear(self.size, width), HIDDEN_GAIN)
        self.heads = nn.ModuleDict(
            {
                name: orthogonal(nn.Linear(width, n), config.policy_gain)
                for name, n in zip(actions.heads, actions.sizes, strict=True)
            }
        )
        nn.init.constant_(self._layers()[0].bias[:1], config.idle_bias)
        conditioned = config.condition_on_op and actions.rows > 1 and actions.arguments > 0
        self.op_embedding = nn.Parameter(torch.randn(actions.rows, width) * 0.5) if conditioned else None
        self.register_buffer("scatter", argument_scatter(actions), persistent=False)
        self.critic = orthogonal(nn.Linear(self.size, width), HIDDEN_GAIN)
        self.value = orthogonal(nn.Linear(width, 1), config.value_gain)
        if entities is not None:
            self.query = orthogonal(nn.Linear(width, config.entity_size), config.policy_gain)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [cells, width, batch, time] and normalised values [batch, time]."""
        hidden, embedded = self._parts(features)
        return self._logits(hidden, embedded), self._values(hidden)

    def logits(self, features: Tensor) -> Tensor:
        """Logits alone, for acting."""
        return self._logits(*self._parts(features))

    def values(self, features: Tensor) -> Tensor:
        """Normalised values alone, for bootstrapping."""
        return self._values(self._parts(features)[0])

    def _parts(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """The memory's output, normalised, and the embeddings of entities."""
        return self.norm(features[..., : self.size]), features[..., self.size :]

    def _values(self, hidden: Tensor) -> Tensor:
        values: Tensor = self.value(torch.tanh(self.critic(hidden)))
        return values.squeeze(-1).float()

    def _logits(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        batch, time, _ = hidden.shape
        # Steps come last from here on, as the distribution wants them: no layer then reads across memory.
        actor = torch.addmm(self.actor.bias[:, None], self.actor.weight, hidden.flatten(0, 1).T)
        layers = self._layers()
        logits = torch.addmm(layers[0].bias[:, None], layers[0].weight, torch.tanh(actor))
        logits = functional.pad(logits, (0, 0, 0, self.actions.width - self.actions.sizes[0]))[None]
        if self.actions.arguments:
            logits = torch.cat([logits, self._argument_logits(layers[1:], actor, embedded)])
        return logits.view(*logits.shape[:-1], batch, time)

    def _argument_logits(self, layers: list[nn.Linear], actor: Tensor, embedded: Tensor) -> Tensor:
        """All argument heads in all rows with one multiplication, [width, steps] to [cells - 1, width, steps]."""
        weight = torch.cat([layer.weight for layer in layers]).index_select(0, self.scatter)
        bias = torch.cat([layer.bias for layer in layers]).index_select(0, self.scatter)
        rows = torch.tanh(self._per_row(actor))
        logits = torch.baddbmm(bias[:, None], weight.expand(len(rows), -1, -1), rows)
        if self.entities is not None:
            logits = logits + self._entity_scores(rows, embedded)
        return logits.view(-1, self.actions.width, actor.shape[1])

    def _entity_scores(self, rows: Tensor, embedded: Tensor) -> Tensor:
        """How well entities answer each row's query, [rows, width, steps] to [rows, entries, steps]; 0 elsewhere."""
        assert self.entities is not None
        queries = torch.baddbmm(self.query.bias[:, None], self.query.weight.expand(len(rows), -1, -1), rows)
        answers = embedded.flatten(0, 1).T.unflatten(0, (self.entities.count, -1))
        scores = (queries[:, None] * answers).sum(2)
        before = (self.actions.heads.index(self.entities.head) - 1) * self.actions.width
        after = self.actions.arguments * self.actions.width - before - self.entities.count
        return functional.pad(scores, (0, 0, before, after))

    def _layers(self) -> list[nn.Linear]:
        """The last layer of each head. Asking them for `parameters()` would take longer than their product does."""
        return [layer for layer in self.heads.values() if isinstance(layer, nn.Linear)]

    def _per_row(self, actor: Tensor) -> Tensor:
        """The actor's hidden layer once per row of argument heads, [width, steps] to [rows, width, steps]."""
        if self.op_embedding is not None:
            return actor + self.op_embedding[:, :, None]
        return actor.expand(self.actions.rows, *actor.shape)


def _skip(encoding: int, config: PPOConfig) -> nn.Module | None:
    """The path around the memory; a matrix where the widths differ."""
    if not config.memory_skip or config.memory == "none":
        return None
    size = memory_size(config)
    return nn.Identity() if size == encoding else orthogonal(nn.Linear(encoding, size), 1.0)


def _encoder(observation_size: int, config: PPOConfig) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in zip((observation_size, *config.encoder_sizes), config.encoder_sizes, strict=False):
        layers += [orthogonal(nn.Linear(inputs, outputs), HIDDEN_GAIN), nn.Tanh()]
    if config.encoder_norm:
        layers.append(nn.LayerNorm(config.encoder_sizes[-1]))
    return nn.Sequential(*layers)


def _entity_encoder(entities: Entities, config: PPOConfig) -> EntityEncoder:
    width = config.encoder_sizes[0]
    seen = entities.width * (3 if config.entity_neighbours else 1)
    hidden = orthogonal(nn.Linear(entities.shared + seen, width), HIDDEN_GAIN)
    embed = orthogonal(nn.Linear(width, config.entity_size), HIDDEN_GAIN)
    return EntityEncoder(entities, hidden, embed, _encoder(entities.shared + 2 * config.entity_size, config))


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
