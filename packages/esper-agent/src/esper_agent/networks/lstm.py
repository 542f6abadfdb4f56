"""The LSTM as a memory."""

import math

import torch
from torch import Tensor, nn

from esper_agent.networks.recurrence import GATE_CLOSED, ResettingRecurrence, State, initialize_gates


class ResettingLSTM(ResettingRecurrence):
    """A stack of LSTM layers over [batch, time, features] with resets.

    Args:
        input_size: width of the input.
        size: width of each layer.
        layers: number of layers.
        forget_bias: initial bias of the forget gates.
    """

    closed: Tensor

    def __init__(self, input_size: int, size: int, layers: int, forget_bias: float) -> None:
        stack = [nn.LSTM(input_size if index == 0 else size, size, batch_first=True) for index in range(layers)]
        super().__init__([*stack], (size, size))
        for lstm in stack:
            initialize_gates(lstm, 4)
            set_forget_bias(lstm, forget_bias)
        closed = torch.tensor([GATE_CLOSED, GATE_CLOSED, 0.0, GATE_CLOSED])
        self.register_buffer("closed", closed.repeat_interleave(size)[:, None], persistent=False)

    def run(self, inputs: Tensor, state: State, weights: list[Tensor], *, batch_first: bool) -> Tensor:
        """The outputs of one layer."""
        return torch.lstm(inputs, state, weights, True, 1, 0.0, True, False, batch_first)[0]

    def cell(self, inputs: Tensor, state: State, weights: list[Tensor]) -> State:
        """One step of one layer."""
        hidden, cell = torch.lstm_cell(inputs, state, *weights)
        return hidden, cell

    def reset_column(self, weights: list[Tensor]) -> Tensor:
        """Closes the input, forget and output gates."""
        return self.closed.to(weights[0].dtype)


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
