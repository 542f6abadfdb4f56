"""Acting with a policy: one step for a batch of environments, without gradients."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from esper_agent.distributed import ALONE, Ranks
from esper_agent.networks.distribution import MASKED_LOGIT, FactoredDistribution
from esper_agent.networks.policy import Policy
from esper_agent.networks.recurrence import State


@dataclass(frozen=True)
class Act:
    """What the policy does, the state it is in afterwards, and what it drew from."""

    actions: Tensor  # long [heads, N]
    state: State
    distribution: FactoredDistribution


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """The precision of a run, for acting, for the old policy and for learning alike."""
    return torch.autocast(device.type, dtype=torch.bfloat16) if precision == "bfloat16" else nullcontext()


def act(
    policy: Policy,
    precision: str,
    observations: Tensor,
    state: State,
    starts: Tensor,
    masks: Tensor | None,
    generator: torch.Generator | None,
    ranks: Ranks = ALONE,
) -> Act:
    """Choose actions.

    Args:
        policy: the network.
        precision: "float32" or "bfloat16".
        observations: [N, observation_size].
        state: the recurrent state before this step.
        starts: bool [N], where an episode starts.
        masks: bool [cells, width, N]; None for no restriction.
        generator: draws the actions; None takes the most likely ones.
        ranks: whose environments these are a part of.
    """
    with torch.inference_mode():
        with autocast(observations.device, precision):
            hidden, after = policy.step(observations[:, None], state, starts[:, None])
            logits = policy.decoder.logits(hidden)
        legal = policy.padding[..., None] if masks is None else masks
        penalty = torch.where(legal, 0.0, MASKED_LOGIT)
        distribution = FactoredDistribution(policy.actions, logits[..., 0], penalty)
        actions = distribution.sample(generator, ranks)
    # An environment may learn: it must not be handed a tensor that autograd refuses.
    return Act(actions.clone(), after, distribution)


def predict_values(policy: Policy, precision: str, observations: Tensor, state: State, starts: Tensor) -> Tensor:
    """Normalised values of observations [N, observation_size]."""
    with torch.inference_mode(), autocast(observations.device, precision):
        return policy.value(observations[:, None], state, starts[:, None])
