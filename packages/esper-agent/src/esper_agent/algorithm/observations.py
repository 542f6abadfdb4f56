"""The observation encoder: batches of any supported observation as float vectors, and spaces as plain data."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional

IMAGE_AXES = 3


@dataclass(frozen=True)
class ObservationEncoder:
    """Turns batches of observations into float vectors: boxes are flattened, discrete values one-hot, dicts joined."""

    shape: tuple[int, ...]  # of a single observation
    sizes: tuple[int, ...] | None  # numbers of discrete values; None for numbers that are taken as they are
    parts: tuple[tuple[str, "ObservationEncoder"], ...] = ()  # of a dict, in the order of its space

    @classmethod
    def of(cls, space: spaces.Space[Any]) -> "ObservationEncoder":
        """The encoder of a single environment's observation space.

        Raises:
            ValueError: for a space that is not a Box, made of discrete values starting at 0, or a Dict of such.
        """
        shape = tuple(space.shape or ())
        if isinstance(space, spaces.Dict):
            return cls(shape, None, tuple((name, cls.of(part)) for name, part in space.items()))
        if isinstance(space, spaces.Discrete) and space.start == 0:
            return cls(shape, (int(space.n),))
        if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1 and not space.start.any():
            return cls(shape, tuple(int(n) for n in space.nvec))
        if not isinstance(space, spaces.Box | spaces.MultiBinary):
            raise ValueError(
                f"observation space {space} is not supported; allowed: Box, Discrete, MultiDiscrete, MultiBinary, or a "
                "Dict of them (gymnasium.wrappers.FlattenObservation turns others into a Box)"
            )
        return cls(shape, None)

    @property
    def size(self) -> int:
        """Width of an encoded observation."""
        if self.parts:
            return sum(part.size for _, part in self.parts)
        return math.prod(self.shape) if self.sizes is None else sum(self.sizes)

    @property
    def numeric(self) -> bool:
        """Whether there are numbers that have a scale, and not discrete values alone."""
        return any(part.numeric for _, part in self.parts) if self.parts else self.sizes is None

    def __call__(self, observations: Any, device: torch.device) -> Tensor:
        """Encode a batch, [N, ...] to float32 [N, size]."""
        if self.parts:
            return torch.cat([part(observations[name], device) for name, part in self.parts], 1)
        batch = torch.as_tensor(observations, device=device)
        if self.sizes is None:
            return batch.to(torch.float32).flatten(1)
        columns = batch.long().view(len(batch), len(self.sizes))
        encoded = [functional.one_hot(columns[:, i], n) for i, n in enumerate(self.sizes)]
        return torch.cat(encoded, 1).float()

    def is_batch(self, observations: Any) -> bool:
        """Whether these are the observations of several environments rather than of one."""
        if self.parts:
            name, part = self.parts[0]
            return part.is_batch(observations[name])
        return np.ndim(observations) > len(self.shape)

    def as_batch(self, observation: Any) -> Any:
        """One environment's observation as a batch of one."""
        if self.parts:
            return {name: part.as_batch(observation[name]) for name, part in self.parts}
        return np.asarray(observation)[None]

    def note(self) -> str | None:
        """What a user should know about how observations are read; None if there is nothing to say."""
        images = [shape for shape in self._shapes() if len(shape) >= IMAGE_AXES]
        if images:
            return (
                f"observations of shape {images[0]} are flattened into {self.size} numbers: this agent has no "
                "convolutions; give it features if they are images"
            )
        if self.parts:
            return f"the parts {', '.join(name for name, _ in self.parts)} of the observation are joined to one vector"
        return None

    def _shapes(self) -> list[tuple[int, ...]]:
        return [shape for _, part in self.parts for shape in part._shapes()] if self.parts else [self.shape]


def say_how_observations_are_read(encoder: ObservationEncoder) -> None:
    """Warn where flattening loses something, or changes an order that a user may rely on."""
    note = encoder.note()
    if note is not None:
        warnings.warn(note, stacklevel=2)


def describe_space(space: spaces.Space[Any]) -> dict[str, Any]:
    """A supported observation space as tensors and plain data."""
    if isinstance(space, spaces.Dict):
        return {"kind": "dict", "parts": [[name, describe_space(part)] for name, part in space.items()]}
    if isinstance(space, spaces.Discrete):
        return {"kind": "discrete", "n": int(space.n)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"kind": "multi_discrete", "nvec": space.nvec.tolist()}
    if isinstance(space, spaces.MultiBinary):
        return {"kind": "multi_binary", "shape": list(space.shape)}
    assert isinstance(space, spaces.Box)
    low, high = torch.from_numpy(space.low.copy()), torch.from_numpy(space.high.copy())
    return {"kind": "box", "low": low, "high": high}


def restore_space(state: Mapping[str, Any]) -> spaces.Space[Any]:
    """The space that `describe_space` wrote down."""
    kind = state["kind"]
    if kind == "dict":
        return spaces.Dict({name: restore_space(part) for name, part in state["parts"]})
    if kind == "discrete":
        return spaces.Discrete(state["n"])
    if kind == "multi_discrete":
        return spaces.MultiDiscrete(state["nvec"])
    if kind == "multi_binary":
        return spaces.MultiBinary(state["shape"])
    if kind == "unbounded":
        return spaces.Box(-np.inf, np.inf, tuple(state["shape"]))
    low, high = state["low"].numpy(), state["high"].numpy()
    return spaces.Box(low, high, dtype=low.dtype.type)


def described_size(state: Mapping[str, Any]) -> int:
    """Width of the encoded observations of a described space, found without making the space."""
    kind = state["kind"]
    if kind == "dict":
        return sum(described_size(part) for _, part in state["parts"])
    if kind == "box":
        return int(state["low"].numel())
    if kind == "discrete":
        return int(state["n"])
    return sum(state["nvec"]) if kind == "multi_discrete" else math.prod(state["shape"])
