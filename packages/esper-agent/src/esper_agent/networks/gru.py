"""The GRU as a memory: one state, no cell, three gates."""

import torch
from torch import Tensor, nn

from esper_agent.networks.recurrence import GATE_CLOSED, ResettingRecurrence, State, initialize_gates


class ResettingGRU(ResettingRecurrence):
    """A stack of GRU layers over [batch, time, features] with resets.

    Args:
        input_size: width of the input.
        size: width of each layer.
        layers: number of layers.
        forget_bias: initial bias of the update gates, which say how much of the state stays.
    """

    closed: Tensor

    def __init__(self, input_size: int, size: int, layers: int, forget_bias: float) -> None:
        stack: list[nn.RNNBase] = [
            nn.GRU(input_size if index == 0 else size, size, batch_first=True) for index in range(layers)
        ]
        super().__init__(stack, (size, 0))
        for gru in stack:
            initialize_gates(gru, 3)
            set_update_bias(gru, forget_bias)
        self.register_buffer("closed", torch.full((2 * size,), GATE_CLOSED), persistent=False)

    def run(self, inputs: Tensor, state: State, weights: list[Tensor], *, batch_first: bool) -> Tensor:
        """The outputs of one layer."""
        return torch.gru(inputs, state[0], weights, True, 1, 0.0, True, False, batch_first)[0]

    def cell(self, inputs: Tensor, state: State, weights: list[Tensor]) -> State:
        """One step of one layer."""
        return torch.gru_cell(inputs, state[0], *weights), state[1]

    def reset_column(self, weights: list[Tensor]) -> Tensor:
        """Closes the reset and update gates and takes the bias back from the candidate, which is then 0 as well."""
        bias = weights[2]
        candidate = -bias[len(self.closed) :]
        return torch.cat([self.closed.to(bias.dtype), candidate])[:, None].to(weights[0].dtype)


def set_update_bias(gru: nn.RNNBase, value: float) -> None:
    """Set all biases to 0 and those of the update gates to `value`."""
    size = gru.hidden_size
    _, _, b_ih, b_hh = gru.all_weights[0]
    with torch.no_grad():
        b_ih.zero_()
        b_hh.zero_()
        b_ih[size : 2 * size] = value
