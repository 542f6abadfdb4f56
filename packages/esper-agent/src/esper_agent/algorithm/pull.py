"""The pull: what keeps a policy near the one that its training started from, and fades as the training goes on."""

import copy

import torch
from torch import Tensor

from esper_agent.algorithm.acting import autocast
from esper_agent.algorithm.rollout_buffer import SequenceBatch
from esper_agent.networks.distribution import cross_entropy, joint
from esper_agent.networks.policy import Evaluation, Policy


class Pull:
    """The KL divergence of a policy from a copy of it as it is now.

    Args:
        policy: the policy; later changes of it do not change the copy.
        weight: of the divergence in the loss at the beginning; it falls linearly to 0.
        precision: "float32" or "bfloat16".
    """

    def __init__(self, policy: Policy, weight: float, precision: str = "float32") -> None:
        self.weight, self.precision = weight, precision
        self.start = copy.deepcopy(policy).requires_grad_(False)
        self.start.encode_call, self.start.decode_call = self.start.encode, self.start.decoder.forward

    def __call__(self, evaluation: Evaluation, batch: SequenceBatch) -> Tensor:
        """KL(start || policy) of the joint action at each step, [sequences, time].

        The memory of the start is begun at each sequence's first step where an episode does, as the policy's is, and
        elsewhere from the policy's own state: whole episodes as sequences make both the same.
        """
        with torch.no_grad(), autocast(batch.observations.device, self.precision):
            inputs = (batch.observations, batch.state, batch.starts, batch.max_resets, batch.legality.penalty)
            wanted = self.start(*inputs).distribution
            p = joint(wanted.spec, wanted.p)
            entropy: Tensor = wanted.entropy()
        return cross_entropy(p, evaluation.distribution.log_p) - entropy
