"""Instances: what an episode draws. Where, what, when and whether to grow differs by instance."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper_env.config import EsperConfig, Price, Range, ends
from esper_env.fused.minibatches import Minibatches
from esper_env.fused.randomness import Purpose, integers, permutation, random_bits, uniform
from esper_env.mdp.stream import counted_samples, phase_members, phase_starts, places_in_phase, present_phase
from esper_env.tasks.base import Data, Split, Task

_KEY_BITS = (1 << 62) - 1


@dataclass(frozen=True)
class Instance:
    """What the rows' episodes drew."""

    key: Tensor  # [n], what all randomness of the episode is drawn from
    lr: Tensor  # [n]
    label_noise: Tensor  # [n], share of training labels that are redrawn
    subset: Tensor  # [n, pool], a permutation of the training samples; the first subset_size are used
    subset_size: Tensor  # [n]
    live_units: NDArray[np.int64]  # [n, slots], on the host
    rent: Tensor  # [n]
    slot_rent: Tensor  # [n]
    budget: Tensor  # [n], how many seeds a host may have at a time
    phase_starts: Tensor  # [n, phases], steps
    phase_members: Tensor  # [n, phases, classes], which classes each phase has

    @property
    def streams(self) -> bool:
        """Whether the data may change."""
        return self.phase_starts.shape[1] > 1

    def phase(self, step: Tensor) -> Tensor:
        """The phase of the data that each row trains on in a step, [n]."""
        return present_phase(self.phase_starts, step)

    def counted(self, split: Split, step: Tensor) -> Tensor | None:
        """Which samples of a split are of the phase that a step trains on, [n, samples]; None if the data are fixed."""
        return counted_samples(self.phase_members, self.phase(step), split.labels) if self.streams else None


def episode_keys(base: Tensor, episode: Tensor, config: EsperConfig) -> Tensor:
    """Keys of episodes: even ones for training, odd ones for validation, negative ones for testing."""
    bits = 2 * (random_bits(base, Purpose.EPISODE, 0, episode) & _KEY_BITS)
    return {"train": bits, "validation": bits + 1, "test": -bits - 1}[config.instances]


def draw(key: Tensor, task: Task, data: Data, config: EsperConfig) -> Instance:
    """Everything that the episodes with these keys differ in: a pure function of the keys."""
    zero = torch.zeros_like(key)

    def between(purpose: Purpose, bounds: Range) -> Tensor:
        return bounds[0] + (bounds[1] - bounds[0]) * uniform(key, purpose, 0, zero)

    share = between(Purpose.SUBSET_SIZE, config.subset)
    return Instance(
        key=key,
        lr=between(Purpose.LEARNING_RATE, config.learning_rate),
        label_noise=between(Purpose.NOISE_LEVEL, config.label_noise),
        subset=permutation(key, Purpose.SUBSET, len(data.train)),
        subset_size=(share * len(data.train)).long().clamp(min=1),
        live_units=_widths(key, task, config) if config.shapes == "widths" else _lesions(key, task, config),
        rent=_price(key, Purpose.RENT, config.rent),
        slot_rent=_price(key, Purpose.SLOT_RENT, config.slot_rent),
        budget=_budget(key, len(task.host.slots), config),
        phase_starts=phase_starts(key, config),
        phase_members=phase_members(key, data.classes, config),
    )


def _price(key: Tensor, purpose: Purpose, price: Price) -> Tensor:
    """A price per row: log-uniform over its range, or uniform if that begins at 0."""
    low, high = ends(price)
    share = uniform(key, purpose, 0, torch.zeros_like(key))
    return low * (high / low) ** share if low > 0 else high * share


def _budget(key: Tensor, slots: int, config: EsperConfig) -> Tensor:
    """How many seeds a host may have at a time, uniform over the range, [n]."""
    low, high = ends(slots if config.budget is None else config.budget)
    span = int(high) - int(low) + 1
    return int(low) + integers(key, Purpose.BUDGET, 0, torch.zeros_like(key), span)


def _block_widths(task: Task) -> NDArray[np.int64]:
    return np.array([slot.outputs[0] for slot in task.host.slots])


def _widths(key: Tensor, task: Task, config: EsperConfig) -> NDArray[np.int64]:
    """The width of each block, log-uniform over the integers of the range, [n, slots]."""
    low, high = config.live_units
    narrowest = _block_widths(task).min()
    if high > narrowest:
        raise ValueError(f"live_units is {config.live_units}; allowed: at most the narrowest block's {narrowest}")
    index = torch.arange(len(task.host.slots), device=key.device)
    share = uniform(key[:, None], Purpose.LIVE_UNITS, 0, index).cpu().numpy()
    return np.minimum(low * ((high + 1) / low) ** share, high).astype(np.int64)


def _lesions(key: Tensor, task: Task, config: EsperConfig) -> NDArray[np.int64]:
    """How many units of each block stay alive, [n, slots]."""
    widths = _block_widths(task)
    weights = np.cumsum(config.lesion_weights) / np.sum(config.lesion_weights)
    zero = torch.zeros_like(key)
    count = np.searchsorted(weights, uniform(key, Purpose.LESION_COUNT, 0, zero).cpu().numpy(), side="right")
    rank = permutation(key, Purpose.LESION_PLACE, len(widths)).argsort(dim=1).cpu().numpy()
    low, high = config.live_units
    if high >= widths.min():
        raise ValueError(f"live_units is {config.live_units}; allowed: less than the narrowest block's {widths.min()}")
    index = torch.arange(len(widths), device=key.device)
    units = low + integers(key[:, None], Purpose.LIVE_UNITS, 0, index, high - low + 1).cpu().numpy()
    return np.where(rank < count[:, None], units, widths)


def minibatches(instance: Instance, step: Tensor, task: Task, data: Data) -> Minibatches:
    """The samples and (partly redrawn) labels of each row's next training step."""
    shape = (task.minibatches_per_step, task.batch_size)
    place = torch.arange(shape[0] * shape[1], device=step.device)
    key, when = instance.key[:, None], step[:, None]
    if instance.streams:
        counted = counted_samples(instance.phase_members, instance.phase(step), data.train.labels[instance.subset])
        bits = integers(key, Purpose.MINIBATCH, when, place, _KEY_BITS)
        pick = places_in_phase(counted, instance.subset_size, bits)
    else:
        pick = integers(key, Purpose.MINIBATCH, when, place, instance.subset_size[:, None])
    index = instance.subset.gather(1, pick)
    labels = noisy_labels(instance, index, data)
    plain = Minibatches(data.train.inputs, index.view(-1, *shape), labels.view(-1, *shape, *labels.shape[2:]))
    return plain if task.augmentation is None else task.augmentation.applied(plain, instance.key, step)


def noisy_labels(instance: Instance, index: Tensor, data: Data) -> Tensor:
    """Labels of training samples [n, m]; which are redrawn depends on the sample, not on when it is seen."""
    labels = data.train.labels[index]
    each = labels[0, 0].numel()  # a text has one label per position
    place = index[..., None] * each + torch.arange(each, device=index.device)
    key, noise = (values[:, None, None] for values in (instance.key, instance.label_noise))
    redrawn = uniform(key, Purpose.LABEL_NOISE, 0, place) < noise
    other = integers(key, Purpose.NOISY_LABEL, 0, place, data.classes)
    return torch.where(redrawn.view_as(labels), other.view_as(labels), labels)
