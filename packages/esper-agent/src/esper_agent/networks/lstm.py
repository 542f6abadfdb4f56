"""An LSTM that forgets at episode starts inside a sequence, in one call per layer.

A reset step is inserted before each episode start: its input saturates the input, forget and output gates, so that the
cell and the output become exactly 0 and no gradient passes. Sequences with and without resets thus run in the same
fused kernel, without a Python loop over time and without splitting the batch.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

State = tuple[Tensor, Tensor]
"""Hidden and cell state, each [layers, batch, size]."""

GATE_CLOSED = -1e4
WEIGHTS = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


class ResettingLSTM(nn.Module):
    """A stack of LSTM layers over [batch, time, features] with resets.

    Args:
        input_size: width of the input.
        size: width of each layer.
        layers: number of layers.
        forget_bias: initial bias of the forget gates.
    """

    def __init__(self, input_size: int, size: int, layers: int, forget_bias: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.LSTM(input_size if index == 0 else size, size, batch_first=True) for index in range(layers)
        )
        for lstm in self.layers:
            assert isinstance(lstm, nn.LSTM)
            initialize_lstm(lstm, forget_bias)
        closed = torch.tensor([GATE_CLOSED, GATE_CLOSED, 0.0, GATE_CLOSED])
        self.register_buffer("reset_column", closed.repeat_interleave(size)[:, None], persistent=False)

    reset_column: Tensor

    def initial_state(self, batch: int) -> State:
        """A state of zeros, shaped by the modules themselves."""
        first = self._weights(0)[1]
        shape = (len(self.layers), batch, first.shape[1])
        return torch.zeros(shape, device=first.device), torch.zeros(shape, device=first.device)

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
            return torch.lstm(inputs, (hidden, cell), weights, True, 1, 0.0, True, False, True)[0]
        batch, steps, width = inputs.shape
        weights[0] = torch.cat([weights[0], self.reset_column.to(weights[0].dtype)], 1)
        # Whole rows move, faster than elements, and to time-major order on the way, as the kernel wants them.
        padded = inputs.new_ones((steps + resets) * batch, width + 1)
        padded = padded.index_copy(0, places, functional.pad(inputs, (0, 1)).flatten(0, 1))
        padded = padded.view(steps + resets, batch, width + 1)
        output = torch.lstm(padded, (hidden, cell), weights, True, 1, 0.0, True, False, False)[0]
        return output.flatten(0, 1).index_select(0, places).view(batch, steps, -1)

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """One step for acting, [batch, features], from a state that is already reset."""
        hidden, cell = state
        after: list[State] = []
        for index in range(len(self.layers)):
            inputs, memory = torch.lstm_cell(inputs, (hidden[index], cell[index]), *self._weights(index))
            after.append((inputs, memory))
        if len(after) == 1:
            return inputs, (inputs[None], after[0][1][None])
        return inputs, (torch.stack([h for h, _ in after]), torch.stack([c for _, c in after]))

    def check_state(self, state: State, batch: int) -> None:
        """Refuse a state of the wrong shape.

        Raises:
            ValueError: naming the shapes.
        """
        expected = (len(self.layers), batch, len(self.reset_column) // 4)
        for part in state:
            if tuple(part.shape) != expected:
                raise ValueError(f"state has shape {tuple(part.shape)}; allowed: [layers, batch, size] = {expected}")

    def _weights(self, index: int) -> list[Tensor]:
        lstm = self.layers[index]
        return [getattr(lstm, name) for name in WEIGHTS]  # much faster than `all_weights`


def _places(starts: Tensor) -> Tensor:
    """Where each step of each sequence goes among rows of time-major order, after a reset step before later starts.

    The first step needs none: the initial state handles it.
    """
    batch, steps = starts.shape
    seen = starts.cumsum(1)
    places = torch.arange(steps * batch, device=starts.device).view(steps, batch).T
    return places.add(seen - seen[:, :1], alpha=batch).flatten()


def initialize_lstm(lstm: nn.LSTM, forget_bias: float) -> None:
    """Orthogonal weights per gate, zero biases but for the forget gates."""
    for name, parameter in lstm.named_parameters():
        if name.startswith("weight"):
            for gate in parameter.data.chunk(4):
                nn.init.orthogonal_(gate)
    set_forget_bias(lstm, forget_bias)


def set_forget_bias(lstm: nn.LSTM, value: float) -> None:
    """Set all biases of a single-layer LSTM to 0 and those of its forget gates to `value`.

    Raises:
        RuntimeError: when the cell does not then retain sigmoid(value) of its content.
    """
    size = lstm.hidden_size
    w_ih, w_hh, b_ih, b_hh = lstm.all_weights[0]
    with torch.no_grad():
        b_ih.zero_()
        b_hh.zero_()
        b_ih[size : 2 * size] = value
        inputs, state = w_ih.new_zeros(1, lstm.input_size), w_ih.new_ones(1, size)
        silent = torch.zeros_like(w_ih), torch.zeros_like(w_hh)
        _, cell = torch.lstm_cell(inputs, (state, state), silent[0], silent[1], b_ih, b_hh)
    retained = 1 / (1 + math.exp(-value))
    if not torch.allclose(cell, torch.full_like(cell, retained), atol=1e-5):
        raise RuntimeError("torch's LSTM gates are not ordered input, forget, cell, output")
