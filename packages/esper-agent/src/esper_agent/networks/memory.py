"""What a policy remembers between steps: an LSTM, a GRU, or nothing."""

import torch
from torch import Tensor, nn

from esper_agent.config import PPOConfig
from esper_agent.networks.gru import ResettingGRU
from esper_agent.networks.lstm import ResettingLSTM
from esper_agent.networks.recurrence import ResettingRecurrence, State, require_state


class NoMemory(nn.Module):
    """Passes on what it is given: a feed-forward policy."""

    empty: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("empty", torch.empty(0), persistent=False)

    def initial_state(self, batch: int) -> State:
        """A state that holds no number."""
        return self.empty.new_zeros(0, batch, 0), self.empty.new_zeros(0, batch, 0)

    def forward(self, inputs: Tensor, state: State, starts: Tensor, max_resets: int) -> Tensor:
        """The inputs."""
        del starts, max_resets
        self.check_state(state, inputs.shape[0])
        return inputs

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """The input."""
        return inputs, state

    def check_state(self, state: State, batch: int) -> None:
        """Refuse a state that holds numbers."""
        require_state(state, [(0, batch, 0)] * 2)


def make_memory(input_size: int, config: PPOConfig) -> ResettingRecurrence | NoMemory:
    """The memory that the settings ask for."""
    if config.memory == "none":
        return NoMemory()
    kind = {"lstm": ResettingLSTM, "gru": ResettingGRU}[config.memory]
    return kind(input_size, config.lstm_size, config.lstm_layers, config.forget_bias)


def memory_size(config: PPOConfig) -> int:
    """The width of a memory's output."""
    return config.encoder_sizes[-1] if config.memory == "none" else config.lstm_size
