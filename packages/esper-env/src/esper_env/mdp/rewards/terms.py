"""Reward terms: each a pure function of (state, outcome, next state) over all slots, with declared bounds."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from esper_env.config import EsperConfig, ends
from esper_env.mdp.scales import relative_loss
from esper_env.mdp.state import LIVE, PRUNABLE, Stage, State
from esper_env.registry import Registry


@dataclass(frozen=True)
class Transition:
    """One step of n rows."""

    before: State
    after: State
    op: Tensor  # [n], the operation that was executed
    invalid: Tensor  # [n], the requested action was illegal
    rolled_back: Tensor  # [n], the governor stepped in
    finished: Tensor  # [n], the budget of steps is used up
    terminated: Tensor  # [n], the episode is over, for whatever reason
    control: Tensor  # [n], metric of the same host without any seed in its life
    control_measured: Tensor  # [n]
    rent: Tensor  # [n], the price of parameters
    slot_rent: Tensor  # [n], the price of a seed
    config: EsperConfig
    baseline_loss: float


@dataclass(frozen=True)
class Limits:
    """What bounds depend on besides the configuration."""

    slots: int
    largest_added: float  # parameters of the largest seeds everywhere, as a share of the host's


@dataclass(frozen=True)
class Term:
    """A reward term and its bounds per step."""

    value: Callable[[Transition], Tensor]
    bounds: Callable[[EsperConfig, Limits], tuple[float, float]]
    needs_control: bool = False


TERMS: Registry[Term] = Registry("reward term")


def stage_progress(state: State, config: EsperConfig) -> Tensor:
    """How far each slot is through its stage, in [0, 1]; the ramp's progress is alpha itself."""
    dwell = torch.ones_like(state.stage)
    dwell = torch.where(state.stage == Stage.TRAINING, config.training_steps, dwell)
    dwell = torch.where(state.stage == Stage.HOLDING, config.holding_steps, dwell)
    waited = (state.stage_age / dwell.double()).clamp(max=1.0)
    return torch.where(state.stage == Stage.BLENDING, state.alpha, waited)


def potential(state: State, config: EsperConfig) -> Tensor:
    """Phi(s) = w_m * metric + w_s * sum over slots of phi(stage, progress), [n]."""
    starts = torch.tensor(config.stage_potential, device=state.stage.device, dtype=torch.float64)
    begin = starts[state.stage]
    on_path = state.in_stage(PRUNABLE)
    end = torch.where(on_path, starts[(state.stage + 1).clamp(max=len(Stage) - 1)], begin)
    phi = begin + (end - begin) * stage_progress(state, config)
    return config.metric_weight * state.metric + config.stage_weight * phi.sum(dim=1)


def largest_potential(config: EsperConfig, limits: Limits) -> float:
    """The greatest value that Phi can take; its least is 0."""
    return config.metric_weight + config.stage_weight * limits.slots * max(config.stage_potential)


def _final_metric(t: Transition) -> Tensor:
    return torch.where(t.finished, t.after.committed, 0.0)


def _online_metric(t: Transition) -> Tensor:
    return t.config.online_weight * t.after.metric / t.config.horizon


def _rent(t: Transition) -> Tensor:
    occupied = (t.after.seed_size > 0).double().sum(dim=1)
    return -(t.rent * t.after.added + t.slot_rent * occupied) / t.config.horizon


def _highest_rent(config: EsperConfig, limits: Limits) -> float:
    parameters, seeds = ends(config.rent)[1] * limits.largest_added, ends(config.slot_rent)[1] * limits.slots
    return (parameters + seeds) / config.horizon


def _shaping(t: Transition) -> Tensor:
    # Phi of a terminal state is 0 and both potentials are the stored ones, so the sum telescopes exactly.
    following = torch.where(t.terminated, 0.0, t.after.potential)
    return t.config.gamma * following - t.before.potential


def _invalid_action(t: Transition) -> Tensor:
    return -t.config.invalid_action_cost * t.invalid.to(torch.float64)


def _rollback(t: Transition) -> Tensor:
    return -t.config.rollback_penalty * t.rolled_back.to(torch.float64)


def gain_and_excess(t: Transition) -> tuple[Tensor, Tensor]:
    """What all seeds together gain, and by how much their removal costs overstate it, [n] each."""
    claimed = t.after.contribution.clamp(min=0.0).sum(dim=1)
    # Between measurements of the control the host without its seeds stands in, which cannot tell on a single seed.
    gain = (t.after.metric - torch.where(t.control_measured, t.control, t.after.all_off)).clamp(min=0.0)
    return gain, (claimed - gain).clamp(min=0.0)


def _contribution(t: Transition) -> Tensor:
    """Credit by removal cost, less for claims that exceed the common gain, and for seeds too young to judge."""
    gain, excess = gain_and_excess(t)
    attribution = (gain + t.config.ratio_epsilon) / (gain + excess + t.config.ratio_epsilon)
    live_age = (t.after.age - t.config.training_steps).clamp(min=0).double()
    legitimacy = (live_age / t.config.legitimate_age).clamp(max=1.0)
    credit = (t.after.contribution * legitimacy * t.after.in_stage(LIVE)).sum(dim=1)
    return t.config.contribution_weight * attribution * credit / t.config.horizon


def _entanglement(t: Transition) -> Tensor:
    gain, excess = gain_and_excess(t)
    return -t.config.entanglement_weight * excess / (gain + excess + t.config.ratio_epsilon) / t.config.horizon


def _holding(t: Transition) -> Tensor:
    waited = torch.where(t.after.stage == Stage.HOLDING, t.after.stage_age, 0).double()
    return -(t.config.holding_slope * waited).clamp(max=t.config.holding_cap).sum(dim=1)


def _alpha_shock(t: Transition) -> Tensor:
    return -t.config.shock_weight * (t.after.alpha - t.before.alpha).square().sum(dim=1)


def _op_cost(t: Transition) -> Tensor:
    return -torch.tensor(t.config.op_costs, device=t.op.device, dtype=torch.float64)[t.op]


def _loss_drop(t: Transition) -> Tensor:
    before, after = (relative_loss(state.loss, t.baseline_loss) for state in (t.before, t.after))
    return t.config.loss_weight * (before - after)


TERMS.register("final_metric", Term(_final_metric, lambda _, __: (0.0, 1.0)))
TERMS.register("online_metric", Term(_online_metric, lambda c, _: (0.0, c.online_weight / c.horizon)))
TERMS.register("rent", Term(_rent, lambda c, m: (-_highest_rent(c, m), 0.0)))
TERMS.register("shaping", Term(_shaping, lambda c, m: (-largest_potential(c, m), c.gamma * largest_potential(c, m))))
TERMS.register("invalid_action", Term(_invalid_action, lambda c, _: (-c.invalid_action_cost, 0.0)))
TERMS.register("rollback", Term(_rollback, lambda c, _: (-c.rollback_penalty, 0.0)))
TERMS.register(
    "contribution",
    Term(
        _contribution,
        lambda c, m: (-c.contribution_weight * m.slots / c.horizon, c.contribution_weight * m.slots / c.horizon),
        needs_control=True,
    ),
)
TERMS.register("entanglement", Term(_entanglement, lambda c, _: (-c.entanglement_weight / c.horizon, 0.0), True))
TERMS.register("holding", Term(_holding, lambda c, m: (-c.holding_cap * m.slots, 0.0)))
TERMS.register("alpha_shock", Term(_alpha_shock, lambda c, m: (-c.shock_weight * m.slots, 0.0)))
TERMS.register("op_cost", Term(_op_cost, lambda c, _: (-max(c.op_costs), 0.0)))
TERMS.register("loss_drop", Term(_loss_drop, lambda c, _: (-c.loss_weight, c.loss_weight)))
