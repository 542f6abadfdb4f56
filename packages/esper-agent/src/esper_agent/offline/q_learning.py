"""Implicit Q-learning: Q and V from recorded steps alone, without asking about actions that were never taken.

Q is factored as the policy is: Q(s, a) = q(op) + the sum over the other heads of q(head | op). The network is the
policy's, and its logits are read as these terms.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from esper_agent.algorithm.rollout_buffer import SequenceBatch
from esper_agent.diagnostics.metrics import Measured
from esper_agent.networks.action_spec import ActionSpec
from esper_agent.networks.distribution import split_rows
from esper_agent.networks.policy import Policy
from esper_agent.offline.config import QLearningConfig
from esper_agent.offline.method import Method, judge_policy, mean_over
from esper_agent.offline.sequences import EpisodeBatch
from esper_agent.ppo import FactoredRecurrentPPO

TWINS = 2


class ImplicitQLearning(Method):
    """Expectile V (the agent's critic), twin Q with targets, and advantage-weighted extraction into the policy."""

    name = "iql"
    watched = None  # no held-out number of an offline method says how well it plays
    config: QLearningConfig

    def __init__(self, model: FactoredRecurrentPPO, config: QLearningConfig, data: EpisodeBatch) -> None:
        super().__init__(model, config, data)
        self.critics = nn.ModuleList(q_network(model, seed) for seed in range(TWINS))
        for critic in self.critics:
            critic.load_state_dict({**critic.state_dict(), **_units(self.policy)})
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.adam = torch.optim.AdamW(self.critics.parameters(), lr=0.0, weight_decay=0.0, fused=True)

    def loss(self, data: EpisodeBatch) -> tuple[Tensor, Measured]:
        """V towards an expectile of the target Q, and the policy towards what was better than V; Q on the way."""
        evaluation, batch, units = self.learner.evaluate(data.batch), data.batch, self.policy.values
        with torch.no_grad():
            q = self.action_values(self.targets, batch).amin(0)
        advantages = q - evaluation.values
        value = mean_over(expectile_loss(advantages, self.config.expectile), batch.decisions)
        weights = self._weights(advantages.detach(), batch.decisions)
        log_p = evaluation.distribution.entry_log_prob(batch.entries).sum(0)
        policy = -mean_over(weights * log_p, batch.decisions) / mean_over(weights, batch.decisions)
        targets = td_targets(data, units.denormalize(evaluation.values.detach()), self.model.gamma, self.config.trace)
        measured = {
            "policy_loss": policy.detach(),
            "value_loss": value.detach(),
            "q_loss": self._fit(data, units.normalize(targets)),
            "advantage": mean_over(advantages.detach(), batch.decisions),
            "weight": mean_over(weights, batch.decisions),
        }
        return policy + value, measured | self.measure(evaluation, data)

    def _weights(self, advantages: Tensor, decisions: Tensor) -> Tensor:
        """How much each step counts in the extraction; advantages are taken in their own standard deviations."""
        scale = advantages[decisions].std(correction=0).clamp(min=self.model.config.advantage_floor)
        return (self.config.inverse_temperature * advantages / scale).exp().clamp(max=self.config.most_weight)

    def _fit(self, data: EpisodeBatch, targets: Tensor) -> Tensor:
        """One step of both critics, unless a number is not finite, and of their targets."""
        self.adam.param_groups[0]["lr"] = self.learner.optimizer.learning_rate
        errors = (self.action_values(self.critics, data.batch) - targets).square()
        loss = sum(mean_over(error, data.batch.decisions) for error in errors)
        assert isinstance(loss, Tensor)
        self.adam.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.critics.parameters(), self.model.config.max_grad_norm)
        self.adam.found_inf = (~norm.isfinite()).float()  # type: ignore[attr-defined]
        self.adam.step()
        with torch.no_grad():
            for slow, fast in zip(self.targets.parameters(), self.critics.parameters(), strict=True):
                slow.lerp_(fast, self.config.target_rate)
        return loss.detach() / TWINS

    def action_values(self, networks: nn.ModuleList, batch: SequenceBatch) -> Tensor:
        """Normalised Q of the recorded actions by each network, [networks, episodes, time]."""
        return torch.stack([of_actions(terms(network, batch), batch.entries) for network in networks])

    @torch.no_grad()
    def judge(self, data: EpisodeBatch) -> dict[str, float]:
        """How the policy stands to recorded decisions, and what Q thinks of them and of its own best ones."""
        evaluation, units = self.learner.evaluate(data.batch), self.policy.values
        entries = torch.stack([terms(network, data.batch) for network in self.targets])
        taken = torch.stack([of_actions(each, data.batch.entries) for each in entries]).amin(0)
        best, values = greedy(self.model.action_spec, entries.mean(0) + data.batch.legality.penalty)
        agreed = (evaluation.distribution.sample(None) == best).all(0)
        q, top = units.denormalize(taken), units.denormalize(values)
        return judge_policy(self.model, evaluation, data) | {
            "q": float(mean_over(q, data.batch.decisions)),
            "q_greedy": float(mean_over(top, data.batch.decisions)),
            "q_error": float(mean_over((q - data.returns).abs(), data.batch.decisions)),
            "greedy_agreement": float(mean_over(agreed, data.batch.decisions)),
        }

    def state_dict(self) -> dict[str, Any]:
        """Both critics, their targets, and the moments of their optimiser."""
        moments = self.adam.state_dict()["state"]
        return {
            "critics": dict(self.critics.state_dict()),
            "targets": dict(self.targets.state_dict()),
            "moments": {str(index): dict(moment) for index, moment in moments.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state."""
        self.critics.load_state_dict(state["critics"])
        self.targets.load_state_dict(state["targets"])
        moments = {int(index): moment for index, moment in state["moments"].items()}
        self.adam.load_state_dict({**self.adam.state_dict(), "state": moments})


def q_network(model: FactoredRecurrentPPO, seed: int) -> Policy:
    """An untrained network in the policy's shape, whose logits are terms of Q.

    They begin near 0, as the policy's do: five terms of unit size would be noise that hides what an action adds.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(model.seed + 1 + seed)
        rescale = model.policy.normalizer is not None
        config = replace(model.config, normalize_observations=rescale, idle_bias=0.0)
        return Policy(model.observation_encoder.size, model.action_spec, config, model.entities).to(model.device)


def _units(policy: Policy) -> dict[str, Tensor]:
    """The scales of observations, which all networks share."""
    return {name: value for name, value in policy.state_dict().items() if name.startswith("normalizer.")}


def terms(network: Callable[..., Any], batch: SequenceBatch) -> Tensor:
    """The terms of Q of all entries, [cells, width, episodes, time]."""
    nothing = batch.observations.new_zeros(())
    evaluation = network(batch.observations, batch.state, batch.starts, batch.max_resets, nothing)
    scores: Tensor = evaluation.distribution.scores
    return scores


def of_actions(entries: Tensor, chosen: Tensor) -> Tensor:
    """Q of actions whose heads stand at these entries, [heads, ...] -> [...]."""
    return entries.flatten(0, 1).gather(0, chosen).sum(0)


def greedy(spec: ActionSpec, entries: Tensor) -> tuple[Tensor, Tensor]:
    """The legal action with the highest Q and that Q: per op the best value of each head, then the best op.

    Args:
        spec: the heads.
        entries: terms of Q with the penalty of illegality added, [cells, width, ...].

    Returns:
        Actions [heads, ...] and their values [...].
    """
    best, values = entries.max(1)
    op = entries[0, : spec.sizes[0]]
    if not spec.arguments:
        return values[:1], best[0]
    arguments, chosen = split_rows(spec, best), split_rows(spec, values)  # [rows, arguments, ...]
    totals = op + arguments.sum(1)
    top, which = totals.max(0)
    row = which if spec.rows > 1 else torch.zeros_like(which)
    picked = chosen.gather(0, row.expand(1, spec.arguments, *row.shape))[0]
    return torch.cat([which[None], picked]), top


def expectile_loss(errors: Tensor, expectile: float) -> Tensor:
    """|expectile - 1(error < 0)| * error^2: where it is least, the mean is one towards the upper end."""
    return torch.where(errors < 0, 1 - expectile, expectile) * errors.square()


def td_targets(data: EpisodeBatch, values: Tensor, gamma: float, trace: float) -> Tensor:
    """Lambda-returns, G = r + gamma ((1 - trace) V(s') + trace G'), and r alone where the episode ended.

    After the last recorded step G' is V: a record that was cut goes on with it.
    """
    follows = gamma * ~data.terminated
    targets, after = torch.zeros_like(values), values[:, -1]
    for moment in reversed(range(values.shape[1] - 1)):
        later = torch.where(data.steps[:, moment + 1], after, values[:, moment + 1])
        mixed = (1 - trace) * values[:, moment + 1] + trace * later
        after = data.rewards[:, moment] + follows[:, moment] * mixed
        targets[:, moment] = after
    return targets
