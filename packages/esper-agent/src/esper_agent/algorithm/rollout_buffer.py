"""The rollout: what was seen and done, laid out as sequences, and the advantages of it."""

from dataclasses import dataclass

import torch
from esper_env.fused.structure import require_alike
from torch import Tensor

from esper_agent.networks.action_spec import ActionSpec
from esper_agent.networks.distribution import Legality, flat_index
from esper_agent.networks.recurrence import State


class EmptyRolloutError(ValueError):
    """A rollout holds no step on which the agent decided anything."""


@dataclass(frozen=True)
class Step:
    """One step of all environments."""

    observations: Tensor  # [N, observation_size], not normalised
    starts: Tensor  # bool [N]: an episode starts with this observation
    decisions: Tensor  # bool [N]: the action counts; False where the environment only resets itself or gave no number
    masks: Tensor | None  # bool [cells, width, N]
    actions: Tensor  # long [heads, N]
    rewards: Tensor  # [N]
    terminated: Tensor  # bool [N]
    truncated: Tensor  # bool [N]
    bootstraps: Tensor | None  # [N] normalised value after a truncation that reset at once; None for no truncation


@dataclass(frozen=True)
class SequenceBatch:
    """Some sequences of a rollout."""

    observations: Tensor  # [sequences, time, observation_size]
    starts: Tensor  # bool [sequences, time]
    decisions: Tensor  # bool [sequences, time]
    legality: Legality  # [cells, width, sequences, time], or for every step the same
    actions: Tensor  # long [heads, sequences, time]
    entries: Tensor  # the same as entries of the cells, of `flat_index`
    index: Tensor  # long [sequences, time]: flat step index in the rollout (time * environments + environment)
    state: State  # before each sequence, [layers, sequences, size]
    max_resets: int  # largest number of episode starts after the first step of a sequence
    masked: bool  # legality differs between steps

    def select(self, rows: Tensor) -> "SequenceBatch":
        """Some of the sequences."""
        return SequenceBatch(
            observations=self.observations.index_select(0, rows),
            starts=self.starts.index_select(0, rows),
            decisions=self.decisions.index_select(0, rows),
            legality=self.legality.select(rows) if self.masked else self.legality,
            actions=self.actions.index_select(1, rows),
            entries=self.entries.index_select(1, rows),
            index=self.index.index_select(0, rows),
            state=(self.state[0].index_select(1, rows), self.state[1].index_select(1, rows)),
            max_resets=self.max_resets,
            masked=self.masked,
        )


@dataclass(frozen=True)
class Sequences(SequenceBatch):
    """A complete rollout cut into sequences."""

    decided: Tensor  # long: flat step index of every decision

    @property
    def count(self) -> int:
        """The number of sequences."""
        return self.starts.shape[0]


class RolloutBuffer:
    """Preallocated storage of one rollout, [time, environments, ...]; actions and masks have environments last.

    The recurrent state is kept only where a sequence starts.

    Args:
        n_steps: steps per environment.
        n_envs: environments.
        sequence_length: steps per sequence; divides `n_steps`.
        observation_size: width of an encoded observation.
        actions: the heads.
        state: an initial state, which gives the shape of the states to keep.
    """

    def __init__(
        self,
        n_steps: int,
        n_envs: int,
        sequence_length: int,
        observation_size: int,
        actions: ActionSpec,
        state: State,
    ) -> None:
        device = state[0].device
        self.n_steps, self.n_envs, self.sequence_length = n_steps, n_envs, sequence_length
        self.position = 0

        def allocate(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(n_steps, n_envs, *shape, dtype=dtype, device=device)

        self.observations = allocate(observation_size)
        self.starts = allocate(dtype=torch.bool)
        self.decisions = allocate(dtype=torch.bool)
        self.spec = actions
        self.masks = (
            torch.zeros(n_steps, actions.cells, actions.width, n_envs, dtype=torch.bool, device=device)
            if actions.masked
            else None
        )
        self.actions = torch.zeros(n_steps, len(actions.heads), n_envs, dtype=torch.long, device=device)
        self.rewards = allocate()
        self.terminated = allocate(dtype=torch.bool)
        self.truncated = allocate(dtype=torch.bool)
        self.bootstraps = allocate()
        self.bootstrapped = allocate(dtype=torch.bool)
        chunks = n_steps // sequence_length
        self.hidden = torch.zeros(chunks, *state[0].shape, device=device)
        self.cell = torch.zeros(chunks, *state[1].shape, device=device)

    @property
    def full(self) -> bool:
        """Whether the rollout is complete."""
        return self.position == self.n_steps

    def clear(self) -> None:
        """Begin a new rollout."""
        self.position = 0

    def add(self, step: Step, state: State) -> None:
        """Store a step and, where a sequence starts, the state before it.

        Raises:
            IndexError: when the rollout is complete.
        """
        if self.full:
            raise IndexError(f"the rollout is complete: it holds {self.n_steps} steps")
        time = self.position
        for name in _STORED:
            getattr(self, name)[time] = getattr(step, name)
        if self.masks is not None and step.masks is not None:
            self.masks[time] = step.masks
        if step.bootstraps is None:
            self.bootstrapped[time] = False
        else:
            self.bootstraps[time] = step.bootstraps
            self.bootstrapped[time] = step.truncated
        if time % self.sequence_length == 0:
            self.hidden[time // self.sequence_length] = state[0]
            self.cell[time // self.sequence_length] = state[1]
        self.position += 1

    def sequences(self) -> Sequences:
        """The complete rollout as sequences.

        Raises:
            EmptyRolloutError: when it is incomplete or no step is a decision.
        """
        starts = self.to_sequences(self.starts)
        resets = starts.sum(1) - starts[:, 0].long()
        decisions, max_resets = torch.stack([self.decisions.sum(), resets.max()]).tolist()
        if not self.full or not decisions:
            raise EmptyRolloutError(
                f"the rollout has {self.position} of {self.n_steps} steps and {decisions} decisions; "
                "it needs all steps, and a decision among them"
            )
        index = torch.arange(self.n_steps * self.n_envs, device=starts.device)
        actions = self._batch_last(self.actions)
        return Sequences(
            observations=self.to_sequences(self.observations),
            starts=starts,
            decisions=self.to_sequences(self.decisions),
            legality=self._legality(),
            actions=actions,
            entries=flat_index(self.spec, actions),
            index=self.to_sequences(index.view(self.n_steps, self.n_envs)),
            state=(self.hidden.transpose(0, 1).flatten(1, 2), self.cell.transpose(0, 1).flatten(1, 2)),
            max_resets=max_resets,
            decided=torch.nonzero(self.decisions.flatten())[:, 0],
            masked=self.masks is not None,
        )

    def _legality(self) -> Legality:
        if self.masks is None:
            every_step = self.spec.padding_mask().to(self.starts.device)[..., None, None]
            return Legality.of(self.spec, every_step)
        return Legality.of(self.spec, self._batch_last(self.masks))

    def _batch_last(self, field: Tensor) -> Tensor:
        """Reshape [time, ..., environments] to [..., sequences, sequence_length]."""
        return self.to_sequences(field.movedim(-1, 1)).movedim((0, 1), (-2, -1)).contiguous()

    def to_sequences(self, field: Tensor) -> Tensor:
        """Reshape [time, environments, ...] to [sequences, sequence_length, ...]."""
        chunks: Tensor = field.unflatten(0, (-1, self.sequence_length))
        return chunks.transpose(1, 2).flatten(0, 1)

    def to_time(self, field: Tensor) -> Tensor:
        """Reshape [sequences, sequence_length, ...] to [time, environments, ...]."""
        chunks: Tensor = field.unflatten(0, (-1, self.n_envs))
        return chunks.transpose(1, 2).flatten(0, 1)

    def state_dict(self) -> dict[str, Tensor | int]:
        """The part of the rollout that is filled, for checkpoints."""
        return self._part(self.position)

    def _part(self, position: int) -> dict[str, Tensor | int]:
        """The first steps of the rollout."""
        chunks = -(-position // self.sequence_length)
        tensors = {name: getattr(self, name)[:position] for name in self._time_fields()}
        states = {"hidden": self.hidden[:chunks], "cell": self.cell[:chunks]}
        return {"position": position, **tensors, **states}

    def load_state_dict(self, state: dict[str, Tensor | int]) -> None:
        """Take over a saved part of a rollout.

        Raises:
            ValueError: when it is none of this rollout; nothing has changed then.
        """
        position = state["position"]
        if type(position) is not int or not 0 <= position <= self.n_steps:
            raise ValueError(f"the saved rollout has {position!r} steps; allowed: 0 to {self.n_steps}")
        part = self._part(position)
        require_alike({name: state.get(name) for name in part}, part, "rollout")
        self.position = position
        for name, own in part.items():
            if isinstance(own, Tensor):
                own.copy_(state[name])  # type: ignore[arg-type]

    def _time_fields(self) -> tuple[str, ...]:
        masks = () if self.masks is None else ("masks",)
        return (*_STORED, *masks, "bootstraps", "bootstrapped")


_STORED = ("observations", "starts", "decisions", "actions", "rewards", "terminated", "truncated")


def next_values(buffer: RolloutBuffer, values: Tensor, last_values: Tensor) -> Tensor:
    """The value after each step, [time, environments], in the units of the inputs.

    It is the next step's value, that of the observation after the rollout at its end, and where a truncated episode was
    reset at once, that of the episode's final observation.
    """
    later = torch.cat([values[1:], last_values[None]])
    return torch.where(buffer.bootstrapped, buffer.bootstraps, later)


def reaches_end(buffer: RolloutBuffer) -> Tensor:
    """1 where every step to the end of the episode is in the rollout and a decision, else 0, [time, environments]."""
    ends = (buffer.terminated | buffer.truncated).float()
    nothing = torch.zeros_like(ends)
    # An end is passed back as a reward would be.
    return generalized_advantages(
        ends, nothing, nothing, buffer.terminated, buffer.truncated, buffer.decisions, 1.0, 1.0
    )


def generalized_advantages(
    rewards: Tensor,
    values: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    decisions: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Generalised advantage estimates, all [time, environments].

    A terminated step is followed by nothing; a truncated one by `next_value`, which never is the next episode's value.
    Neither passes on what came after it. A step without a decision has advantage 0 and passes on nothing at all: the
    step before it rests on its value.
    """
    td_error = torch.where(decisions, rewards + gamma * next_value * ~terminated - values, 0.0)
    passed = gamma * gae_lambda * (decisions & ~(terminated | truncated)).to(values.dtype)
    advantages = torch.empty_like(td_error)
    running = torch.zeros_like(td_error[0])
    for time in reversed(range(len(td_error))):
        running = torch.addcmul(td_error[time], passed[time], running)
        advantages[time] = running
    return advantages
