"""sb3-contrib's recurrent policy with one LSTM call per batch of sequences, in place of one per step.

RecurrentPPO(OneCallMlpLstmPolicy, env)
"""

from typing import Any

import torch
from torch import Tensor, nn

try:
    from sb3_contrib.ppo_recurrent import MlpLstmPolicy
except ImportError as error:
    raise ImportError("this baseline needs sb3-contrib: pip install 'esper-agent[sb3]'") from error

LstmStates = tuple[Tensor, Tensor]


class OneCallMlpLstmPolicy(MlpLstmPolicy):
    """`MlpLstmPolicy` that resets the memory before its one LSTM call.

    RecurrentPPO cuts its data at episode starts, so only the first step of a sequence ever starts an episode.
    """

    @staticmethod
    def _process_sequence(
        features: Tensor, lstm_states: LstmStates, episode_starts: Tensor, lstm: nn.LSTM
    ) -> tuple[Tensor, Any]:  # sb3-contrib annotates the states as one tensor; they are two
        sequences = lstm_states[0].shape[1]
        steps = features.reshape(sequences, -1, lstm.input_size).swapaxes(0, 1)
        starts = episode_starts.reshape(sequences, -1)
        if bool(starts[:, 1:].any()):
            raise ValueError("an episode starts inside a sequence; only its first step may start one")
        keep = (1.0 - starts[:, 0]).view(1, sequences, 1)
        output, states = lstm(steps, (keep * lstm_states[0], keep * lstm_states[1]))
        return torch.flatten(output.transpose(0, 1), end_dim=1), states
