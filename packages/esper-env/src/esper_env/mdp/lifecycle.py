"""The life of a seed: gates that say what is legal, the operations, and what time does."""

from dataclasses import dataclass

import torch
from torch import Tensor

from esper_env.config import TEMPI, EsperConfig
from esper_env.mdp.actions import HEADS, Op
from esper_env.mdp.state import OCCUPIED, PRUNABLE, Stage, State


@dataclass(frozen=True)
class Gates:
    """Which operation each slot allows now, [n, slots] each."""

    germinate: Tensor
    advance: Tensor
    fossilize: Tensor
    prune: Tensor

    def by_op(self) -> Tensor:
        """[n, ops, slots]; WAIT needs no slot and allows none."""
        tables = {
            Op.WAIT: torch.zeros_like(self.germinate),
            Op.GERMINATE: self.germinate,
            Op.ADVANCE: self.advance,
            Op.FOSSILIZE: self.fossilize,
            Op.PRUNE: self.prune,
        }
        return torch.stack([tables[op] for op in Op], dim=1)


def seeds_left(state: State, budget: Tensor) -> Tensor:
    """How many more seeds the rows' budgets allow, [n]."""
    return budget - state.in_stage(OCCUPIED).sum(dim=1)


def gates(state: State, config: EsperConfig, budget: Tensor) -> Gates:
    """What each slot allows; `budget` is how many seeds each row may have at a time, [n]."""
    stage, dwell = state.stage, state.stage_age
    free = (state.step >= config.warmup_steps) & (seeds_left(state, budget) > 0)
    return Gates(
        germinate=(stage == Stage.DORMANT) & free[:, None],
        advance=(stage == Stage.TRAINING) & (dwell >= config.training_steps),
        fossilize=(stage == Stage.HOLDING) & (dwell >= config.holding_steps),
        prune=state.in_stage(PRUNABLE) & (state.age >= config.prune_age),
    )


def is_legal(actions: Tensor, allowed: Gates) -> Tensor:
    """Which canonical actions [n, heads] may be executed, [n]."""
    op, slot = actions[:, 0], actions[:, 1]
    table = allowed.by_op()
    return (op == Op.WAIT) | table[torch.arange(len(op), device=op.device), op, slot]


def apply_operations(state: State, actions: Tensor) -> None:
    """Carry out legal canonical actions [n, heads] on the lifecycle, in place."""
    op = actions[:, 0, None]
    here = torch.arange(state.stage.shape[1], device=actions.device) == actions[:, 1, None]
    chosen = {each: here & (op == each) for each in Op}
    birth = chosen[Op.GERMINATE]
    ramps = torch.tensor(TEMPI, device=actions.device)[actions[:, HEADS.index("tempo"), None]]
    state.ramp = torch.where(birth, ramps, state.ramp)
    state.age = torch.where(birth | chosen[Op.PRUNE], 0, state.age)
    for each, stage in _LEADS_TO.items():
        _enter(state, chosen[each], stage)
    state.prunes = state.prunes + chosen[Op.PRUNE].any(dim=1)


_LEADS_TO = {
    Op.GERMINATE: Stage.TRAINING,
    Op.ADVANCE: Stage.BLENDING,
    Op.FOSSILIZE: Stage.FOSSILIZED,
    Op.PRUNE: Stage.EMBARGOED,
}


def _enter(state: State, where: Tensor, stage: Stage) -> None:
    state.stage = torch.where(where, int(stage), state.stage)
    state.stage_age = torch.where(where, 0, state.stage_age)


def tick(state: State, config: EsperConfig) -> None:
    """One step of time: ages grow, ramps rise, a full ramp leads to HOLDING, a served embargo to DORMANT."""
    state.stage_age = torch.where(state.stage == Stage.DORMANT, 0, state.stage_age + 1)
    state.age = torch.where(state.in_stage(OCCUPIED), state.age + 1, 0)
    _enter(state, (state.stage == Stage.BLENDING) & (state.stage_age >= state.ramp), Stage.HOLDING)
    _enter(state, (state.stage == Stage.EMBARGOED) & (state.stage_age > config.embargo_steps), Stage.DORMANT)
