"""A recurrent network that forgets at episode starts inside a sequence, in one call per layer.

A reset step is inserted before each episode start: its input drives the gates so far that the state and the output
become exactly 0 and no gradient passes. Sequences with and without resets thus run in the same fused kernel, without a
Python loop over time and without splitting the batch.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional

State = tuple[Tensor, Tensor]
"""Two parts, each [layers, batch, width]: hidden and cell of an LSTM; what a memory does not need has width 0."""

GATE_CLOSED = -1e4
WEIGHTS = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


class ResettingRecurrence(nn.Module, ABC):
    """A stack of recurrent layers over [batch, time, features] with resets.

    Args:
        layers: torch's own, one each.
        widths: of the two parts of the state.
    """

    def __init__(self, layers: list[nn.RNNBase], widths: tuple[int, int]) -> None:
        super().__init__()
        self.layers, self.widths = nn.ModuleList(layers), widths

    @abstractmethod
    def run(self, inputs: Tensor, state: State, weights: list[Tensor], *, batch_first: bool) -> Tensor:
        """The outputs of one layer, by torch's fused kernel; the state has one layer."""

    @abstractmethod
    def cell(self, inputs: Tensor, state: State, weights: list[Tensor]) -> State:
        """The state of one layer after one step, each part [batch, width]; the output is its first part."""

    @abstractmethod
    def reset_column(self, weights: list[Tensor]) -> Tensor:
        """What an additional input of 1 adds to the gates so that the state becomes 0, [gates x size, 1]."""

    def initial_state(self, batch: int) -> State:
        """A state of zeros."""
        like = self._weights(0)[1]
        hidden, cell = (like.new_zeros(len(self.layers), batch, width) for width in self.widths)
        return hidden, cell

    def forward(self, inputs: Tensor, state: State, starts: Tensor, max_resets: int) -> Tensor:
        """The outputs of the last layer, [batch, time, size].

        Args:
            inputs: [batch, time, features].
            state: the state before the first step.
            starts: bool [batch, time], where an episode starts: the state before that step is 0.
            max_resets: at least the number of episode starts after the first step in any sequence.
        """
        self.check_state(state, inputs.shape[0])
        keep = (~starts[:, 0]).to(inputs.dtype)[:, None]
        places = _places(starts) if max_resets else None
        for index, (hidden, cell) in enumerate(zip(*state, strict=True)):
            inputs = self._layer(index, inputs, (hidden * keep, cell * keep), places, max_resets)
        return inputs

    def _layer(self, index: int, inputs: Tensor, state: State, places: Tensor | None, resets: int) -> Tensor:
        weights = self._weights(index)
        hidden, cell = (part[None].to(inputs.dtype) for part in state)
        if places is None:
            return self.run(inputs, (hidden, cell), weights, batch_first=True)
        batch, steps, width = inputs.shape
        weights[0] = torch.cat([weights[0], self.reset_column(weights)], 1)
        # Whole rows move, faster than elements, and to time-major order on the way, as the kernel wants them.
        resetting = functional.pad(inputs.new_zeros((steps + resets) * batch, width), (0, 1), value=1.0)
        padded = resetting.index_copy(0, places, functional.pad(inputs, (0, 1)).flatten(0, 1))
        padded = padded.view(steps + resets, batch, width + 1)
        output = self.run(padded, (hidden, cell), weights, batch_first=False)
        return output.flatten(0, 1).index_select(0, places).view(batch, steps, -1)

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """One step for acting, [batch, features], from a state that is already reset."""
        after: list[State] = []
        for index, (hidden, cell) in enumerate(zip(*state, strict=True)):
            after.append(self.cell(inputs, (hidden, cell), self._weights(index)))
            inputs = after[-1][0]
        if len(after) == 1:
            return inputs, (inputs[None], after[0][1][None])
        return inputs, (torch.stack([h for h, _ in after]), torch.stack([c for _, c in after]))

    def check_state(self, state: State, batch: int) -> None:
        """Refuse a state of the wrong shape."""
        require_state(state, [(len(self.layers), batch, width) for width in self.widths])

    def _weights(self, index: int) -> list[Tensor]:
        layer = self.layers[index]
        return [getattr(layer, name) for name in WEIGHTS]  # much faster than `all_weights`


def require_state(state: State, shapes: list[tuple[int, int, int]]) -> None:
    """Refuse a state of the wrong shape.

    Raises:
        ValueError: naming the shapes.
    """
    for part, expected in zip(state, shapes, strict=True):
        if tuple(part.shape) != expected:
            raise ValueError(f"state has shape {tuple(part.shape)}; allowed: [layers, batch, size] = {expected}")


def _places(starts: Tensor) -> Tensor:
    """Where each step of each sequence goes among rows of time-major order, after a reset step before later starts.

    The first step needs none: the initial state handles it.
    """
    batch, steps = starts.shape
    seen = starts.cumsum(1)
    places = torch.arange(steps * batch, device=starts.device).view(steps, batch).T
    return places.add(seen - seen[:, :1], alpha=batch).flatten()


def initialize_gates(layer: nn.RNNBase, gates: int) -> None:
    """Orthogonal weights per gate."""
    for name, parameter in layer.named_parameters():
        if name.startswith("weight"):
            for gate in parameter.data.chunk(gates):
                nn.init.orthogonal_(gate)
