"""The growth of one module in a user's own loop: the environment's state, observation and masks, measured there."""

from collections.abc import Callable
from math import isfinite, log
from typing import Any

import torch
from torch import Tensor, nn

from esper_env.blueprints.blends import Blend
from esper_env.config import EsperConfig
from esper_env.growing.module import GrowingModule
from esper_env.mdp.actions import HEADS, Op, canonical, head_sizes, inside, refuse, stack_actions
from esper_env.mdp.lifecycle import Gates, apply_operations, gates, is_legal, tick
from esper_env.mdp.masks import marginal_masks, masks_by_op
from esper_env.mdp.observation import Schema, View
from esper_env.mdp.recording import record_evaluation, record_training
from esper_env.mdp.state import State
from esper_env.population.evaluation import Evaluation
from esper_env.population.population import EMPTY
from esper_env.population.training import TrainingReport

Evaluate = Callable[[], tuple[float, float]]  # validation loss, and a metric in [0, 1]


class Growth:
    """One episode of growth, step by step, with the environment's default dwell times.

    Rules that play an environment read `config`, `head_sizes` and `schema`, and find them here as well.

    Args:
        module: What grows.
        evaluate: Gives validation loss and metric of the module as it is; called once more per seed.
        horizon: Epochs of the training.
    """

    def __init__(self, module: GrowingModule, evaluate: Evaluate, horizon: int) -> None:
        self.module, self.evaluate = module, evaluate
        self.config = EsperConfig(task="", horizon=horizon)
        slots, blueprints = len(module.slots), len(module.blueprints)
        self.schema, self.head_sizes = Schema(slots, blueprints), head_sizes(slots, blueprints)
        self.budget = torch.tensor([slots])
        self.largest_seed, self.seed_gradients = module.largest_seeds(), [torch.zeros(slots, dtype=torch.float64)]
        self.state = State.blank(1, slots, "cpu")
        self.state.looked_at = torch.ones_like(self.state.looked_at)
        self._begin(*self._measure())

    @property
    def unwrapped(self) -> "Growth":
        """Itself, as an environment without wrappers."""
        return self

    @property
    def over(self) -> bool:
        """Whether the last step was taken."""
        return int(self.state.step.item()) >= self.config.horizon

    def _begin(self, loss: float, metric: float) -> None:
        state = self.state
        state.loss, state.previous_loss = (torch.full_like(state.loss, loss) for _ in range(2))
        for name in ("metric", "previous_metric", "best_metric", "all_off", "committed"):
            setattr(state, name, torch.full_like(state.metric, metric))
        state.last_executed = torch.ones_like(state.last_executed)

    def _measure(self) -> tuple[float, float]:
        loss, metric = _two_numbers(self.evaluate())
        if not (isfinite(loss) and loss >= 0.0):
            raise ValueError(f"evaluate gives the loss {loss}; allowed: numbers from 0.0 on")
        if not 0.0 <= metric <= 1.0:
            raise ValueError(f"evaluate gives the metric {metric}; allowed: numbers from 0.0 to 1.0")
        return loss, metric

    def gates(self) -> Gates:
        """What each slot allows now."""
        return gates(self.state, self.config, self.budget)

    # One step: act, let the user train, then take note

    def read(self, action: Any) -> Tensor:
        """An action of the environment's form as numbers, [1, heads]; one error if it is not of the space."""
        stacked = stack_actions(action, 1, "cpu")
        if not inside(stacked, self.head_sizes).all():
            refuse(stacked, self.head_sizes)
        return stacked

    def act(self, action: Any) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Carry out an action of the environment's form; an illegal one is WAIT.

        Returns:
            The parameters that were born and those that are gone.
        """
        requested = canonical(self.read(action))
        legal = is_legal(requested, self.gates())
        executed = requested * legal[:, None]
        apply_operations(self.state, executed)
        self.state.last_op, self.state.last_executed = executed[:, 0], legal
        chosen = dict(zip(HEADS, executed[0].tolist(), strict=True))
        changed = self._operate(Op(chosen["op"]), chosen)
        self._set_alpha()
        return changed

    def _operate(self, op: Op, chosen: dict[str, int]) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        module, slot = self.module, chosen["slot"]
        if op is Op.GERMINATE:
            return module.germinate(slot, module.blueprints[chosen["blueprint"]], Blend(chosen["blend"])), []
        if op is Op.PRUNE:
            return [], module.prune(slot)
        if op is Op.ADVANCE:
            module.advance(slot)
        if op is Op.FOSSILIZE:
            module.fossilize(slot)
        return [], []

    def _set_alpha(self) -> None:
        for slot, alpha in zip(self.module.slots, self.state.alpha[0], strict=True):
            slot.alpha.fill_(alpha.item())

    def note_seed_gradients(self) -> None:
        """Take note of the gradients of the seeds; to be called between `backward` and the optimiser's step."""
        norms = [_norm(slot.seed) for slot in self.module.slots]
        self.seed_gradients.append(torch.tensor(norms, dtype=torch.float64))

    def record(self) -> None:
        """An epoch was trained: time goes on, and everything is measured."""
        record_training(self.state, self._trained())
        tick(self.state, self.config)
        self._set_alpha()
        sizes = self.module.seed_sizes()[None]
        record_evaluation(self.state, self._evaluated(), sizes, self.config.plateau_tolerance)
        self.state.step = self.state.step + 1

    def _trained(self) -> TrainingReport:
        losses, slots = self.module.losses, self.module.slots
        if not losses:
            raise ValueError("no minibatch was trained since the last step; allowed: losses made by GrowingModule.loss")
        count = len(losses)
        blocks = torch.stack([torch.stack([*slot.gradients, losses[0].new_zeros(())]).sum() for slot in slots]) / count
        seeds = torch.stack(self.seed_gradients).sum(dim=0) / count
        report = TrainingReport(torch.stack(losses).mean()[None].cpu(), blocks[None].cpu(), seeds[None])
        losses.clear()
        self.seed_gradients = [torch.zeros(len(slots), dtype=torch.float64)]
        for slot in slots:
            slot.gradients.clear()
        return report

    def _evaluated(self) -> Evaluation:
        loss, metric = self._measure()
        with_or_without = torch.zeros(2, len(self.module.slots), dtype=torch.float64)
        for number, slot in enumerate(self.module.slots):
            if slot.seed is not None:
                with self.module.switched(slot, on=not slot.live):
                    other = self._measure()[1]
                with_or_without[0 if slot.live else 1, number] = metric - other if slot.live else other - metric
        contribution, prospect = with_or_without[:, None]
        score = torch.tensor([metric], dtype=torch.float64)
        # Without any seed, and with the committed ones alone: only rewards read these, and there is none here.
        return Evaluation(
            torch.tensor([loss], dtype=torch.float64),
            score,
            contribution,
            prospect,
            score,
            score,
            score.new_empty(1, 0),
        )

    # What a policy sees

    def observation(self) -> Tensor:
        """The observation, float32 [1, size]."""
        slots, names = self.module.slots, self.module.blueprints
        kinds = [names.index(slot.blueprint) if slot.seed is not None else EMPTY for slot in slots]
        view = View(
            self.state,
            self.gates(),
            *(torch.zeros(1), torch.zeros(1), self.budget),  # there are no prices
            blueprint=torch.tensor([kinds]),
            blend=torch.tensor([[int(slot.blend) for slot in slots]]),
            config=self.config,
            baseline_loss=log(self.module.classes),
            predictions=max(slot.samples for slot in slots),
            largest_seed=self.largest_seed,
        )
        return self.schema.encode(view)

    def infos(self) -> dict[str, Any]:
        """The masks as the infos of a vector environment of one row give them."""
        by_op = masks_by_op(self.gates(), self.head_sizes)
        tables = {"action_mask": marginal_masks(by_op), "action_mask_by_op": by_op}
        return {name: {head: table.numpy() for head, table in tables[name].items()} for name in tables}


def _two_numbers(found: Any) -> tuple[float, float]:
    try:
        loss, metric = (float(number) for number in found)
    except (TypeError, ValueError) as error:
        raise TypeError(f"evaluate gives {found!r}; allowed: a pair of numbers, loss and metric") from error
    return loss, metric


def _norm(seed: nn.Module | None) -> float:
    grads = [] if seed is None else [p.grad for p in seed.parameters() if p.grad is not None]
    return float(torch.linalg.vector_norm(torch.stack([g.norm() for g in grads]))) if grads else 0.0
