"""Recorded episodes as padded sequences, in the layout that the learner reads rollouts in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from esper_agent.algorithm.rollout_buffer import SequenceBatch
from esper_agent.networks.action_spec import ActionSpec, masks_to_cells
from esper_agent.networks.distribution import Legality, flat_index
from esper_agent.offline.dataset import Recorded
from esper_agent.ppo import FactoredRecurrentPPO
from esper_agent.runs.directory import RunError

MASKS = ("action_mask", "action_mask_by_op")


@dataclass(frozen=True)
class EpisodeBatch:
    """Whole episodes, each from its first observation to the one after its last action, [episodes, time].

    Where an episode is shorter than the longest, and at its last observation, `steps` is False.
    """

    batch: SequenceBatch  # `decisions`: steps whose recorded action is legal by the recorded masks
    steps: Tensor  # bool: an action was recorded
    rewards: Tensor
    terminated: Tensor  # bool: nothing follows this step
    returns: Tensor  # discounted rewards to the end of the record

    def select(self, rows: Tensor) -> "EpisodeBatch":
        """Some of the episodes."""
        parts = (part.index_select(0, rows) for part in (self.steps, self.rewards, self.terminated, self.returns))
        return EpisodeBatch(self.batch.select(rows), *parts)

    @property
    def count(self) -> int:
        """The number of episodes."""
        return len(self.steps)


def as_sequences(recorded: Recorded, model: FactoredRecurrentPPO) -> EpisodeBatch:
    """The episodes as an agent reads them.

    Raises:
        RunError: when the agent needs masks and the dataset has none.
    """
    spec, device = model.action_spec, model.device
    lengths = np.array([len(episode.rewards) for episode in recorded.episodes])
    time = int(lengths.max()) + 1
    inside = torch.as_tensor(np.arange(time) < lengths[:, None], device=device)
    actions = _actions(recorded, spec, time).to(device)
    masks = _masks(recorded, spec, time, device)
    legality = Legality.of(spec, spec.padding_mask().to(device)[..., None, None] if masks is None else masks)
    decided = inside if masks is None else inside & _legalize(spec, actions, masks)
    starts = torch.zeros_like(inside)
    starts[:, 0] = True
    batch = SequenceBatch(
        observations=_observations(recorded, model, time),
        starts=starts,
        decisions=decided,
        legality=legality,
        actions=actions,
        entries=flat_index(spec, actions),
        index=torch.arange(inside.numel(), device=device).view_as(inside),
        state=model.policy.initial_state(len(lengths)),
        max_resets=0,
        masked=masks is not None,
    )
    rewards = _padded([episode.rewards for episode in recorded.episodes], time).float().to(device)
    terminated = _padded([episode.terminations for episode in recorded.episodes], time).to(device)
    return EpisodeBatch(batch, inside, rewards, terminated, rewards_to_go(rewards, model.gamma))


def rewards_to_go(rewards: Tensor, gamma: float) -> Tensor:
    """Discounted rewards from each step to the end, [episodes, time]."""
    returns = rewards.clone()
    for moment in reversed(range(returns.shape[1] - 1)):
        returns[:, moment] += gamma * returns[:, moment + 1]
    return returns


def _observations(recorded: Recorded, model: FactoredRecurrentPPO, time: int) -> Tensor:
    encoded = [model.observation_encoder(episode.observations, model.device) for episode in recorded.episodes]
    return torch.stack([torch.nn.functional.pad(one, (0, 0, 0, time - len(one))) for one in encoded])


def _actions(recorded: Recorded, spec: ActionSpec, time: int) -> Tensor:
    """[heads, episodes, time]."""
    return torch.stack([
        _padded([_head(episode.actions, spec, index) for episode in recorded.episodes], time).long()
        for index in range(len(spec.heads))
    ])  # fmt: skip


def _head(actions: Any, spec: ActionSpec, index: int) -> Any:
    if spec.kind == "dict":
        return actions[spec.heads[index]]
    return actions if spec.kind == "discrete" else actions[:, index]


def _masks(recorded: Recorded, spec: ActionSpec, time: int, device: torch.device) -> Tensor | None:
    """Bool [cells, width, episodes, time]; where nothing was recorded everything that exists is legal."""
    if not spec.masked:
        return None
    cells = spec.padding_mask().to(device)[..., None, None].repeat(1, 1, len(recorded.episodes), time)
    for row, episode in enumerate(recorded.episodes):
        found = masks_to_cells(spec, _infos_with_masks(recorded, spec, episode), device)
        cells[:, :, row, : found.shape[-1]] = found
    return cells


def _infos_with_masks(recorded: Recorded, spec: ActionSpec, episode: Any) -> Mapping[str, Any]:
    infos = episode.infos or {}
    for name in MASKS[: 1 + spec.by_op]:
        if name not in infos:
            raise RunError(f"the dataset {recorded.dataset} has no {name} in its infos; record it with masks")
    return {name: infos[name] for name in MASKS if name in infos}


def _legalize(spec: ActionSpec, actions: Tensor, masks: Tensor) -> Tensor:
    """Give heads that an op does not use their one legal value, in place; says which actions are then legal."""
    flat = masks.flatten(0, 1)
    begin = flat_index(spec, torch.cat([actions[:1], torch.zeros_like(actions[1:])]))
    for head, size in enumerate(spec.sizes[1:], start=1):
        legal = torch.stack([flat.gather(0, begin[None, head] + value)[0] for value in range(size)])
        actions[head] = torch.where(legal.sum(0) == 1, legal.int().argmax(0), actions[head])
    return flat.gather(0, flat_index(spec, actions)).all(0)


def _padded(columns: Sequence[Any], time: int) -> Tensor:
    """Arrays of different lengths as rows that zeros fill up."""
    padded = np.zeros((len(columns), time), dtype=np.asarray(columns[0]).dtype)
    for row, column in enumerate(columns):
        padded[row, : len(column)] = column
    return torch.from_numpy(padded)
