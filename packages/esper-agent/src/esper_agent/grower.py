"""The grower: a policy decides, once per epoch of a user's own training loop, where, what and when to grow."""

import inspect
from typing import Any

import numpy as np
from esper_env.blueprints.blends import Blend
from esper_env.config import TEMPI
from esper_env.growing import GrowingModule, Growth
from esper_env.growing.growth import Evaluate
from esper_env.mdp.actions import HEADS, Op
from torch import nn
from torch.optim import Optimizer

from esper_agent.evaluation.episodes import Policy

REFUSED = ("LBFGS", "Muon", "SparseAdam")  # they take one group, matrices, or sparse gradients alone


class Grower:
    """Plays a policy in your own training loop.

    Make losses by `model.loss(...)` and call `step` once per epoch:

        for epoch in range(epochs):
            for inputs, labels in batches:
                optimizer.zero_grad()
                model.loss(lambda: cross_entropy(model(inputs), labels)).backward()
                optimizer.step()
            print(grower.step())

    After the last epoch seeds that are not committed are removed; `model.plain()` is the grown module.

    Args:
        model: Your module with slots.
        policy: Anything with `predict`: a trained agent or a rule, for as many slots and blueprints as the module has.
            A rule is made for an environment, so it is given as its class: `GrowOnPlateau`.
        optimizer: That of your loop. Seeds join the group of their block's parameters, so schedules of the learning
            rate hold for them, and leave it when they are pruned.
        evaluate: Gives validation loss and metric, in [0, 1], of the model as it is; called once per epoch, and once
            more per seed.
        horizon: How many epochs the training has.
    """

    def __init__(
        self,
        model: GrowingModule,
        policy: Policy | type[Policy],
        optimizer: Optimizer,
        *,
        evaluate: Evaluate,
        horizon: int,
    ) -> None:
        if not isinstance(model, GrowingModule):
            raise TypeError(f"model is a {type(model).__name__}; allowed: a GrowingModule")
        self.model, self.optimizer = model, optimizer
        self.groups = [_group(optimizer, slot.block) for slot in model.slots]
        self.growth = Growth(model, evaluate, horizon)
        rule: Any = policy if isinstance(policy, type) and hasattr(policy, "predict") else None
        self.policy: Any = rule(self.growth) if rule else policy
        self._check_policy()
        self.memory: Any = None
        self.started = False
        optimizer.register_step_pre_hook(lambda *_: self.growth.note_seed_gradients())
        self._decide()

    def _check_policy(self) -> None:
        if not callable(getattr(self.policy, "predict", None)):
            raise TypeError(f"the policy is a {type(self.policy).__name__}; allowed: anything with SB3's predict")
        known, wanted = getattr(self.policy, "observation_space", None), self.growth.schema
        if known is not None and known.shape != wanted.space().shape:
            raise ValueError(
                f"the policy observes {known.shape} numbers; allowed: {wanted.space().shape}, "
                f"one trained for {wanted.slots} slots and {wanted.blueprints} blueprints"
            )

    def step(self) -> str:
        """An epoch was trained: measure, let the policy decide, and carry out what it decides for the next one.

        Returns:
            One line: the epoch, what was measured, what was done and the evidence for it.
        """
        growth = self.growth
        if growth.over:
            return f"epoch {growth.config.horizon}: growth is over"
        growth.record()
        metric, epoch = growth.state.metric.item(), int(growth.state.step.item())
        done = self._finish() if growth.over else self._decide()
        return f"epoch {epoch}: metric {metric:.3f}, {self.growth.state.added.item():+.1%} parameters; {done}"

    def _decide(self) -> str:
        growth, infos = self.growth, self.growth.infos()
        takes_masks = "action_masks" in inspect.signature(self.policy.predict).parameters
        masks = {"action_masks": infos} if takes_masks else {}
        begun = np.array([not self.started])
        action, self.memory = self.policy.predict(growth.observation().numpy(), self.memory, begun, True, **masks)
        self.started = True
        chosen: list[int] = growth.read(action)[0].tolist()
        why = self._evidence(*chosen)
        born, gone = growth.act(action)
        self._extend(chosen[HEADS.index("slot")], born)
        self._reduce(gone)
        return why if growth.state.last_executed.item() else "an illegal choice, so wait"

    def _evidence(self, op: int, slot: int, blueprint: int, blend: int, tempo: int) -> str:
        state, name = self.growth.state, self.model.names[slot]
        if op == Op.WAIT:
            return "wait"
        if op == Op.GERMINATE:
            total = state.block_grad.sum().item()
            share = state.block_grad[0, slot].item() / total if total else 0.0
            what = f"{self.model.blueprints[blueprint]} ({Blend(blend).name}, blends over {TEMPI[tempo]} epochs)"
            return f"germinate {what} at {name}: gradient share {share:.2f}, plateau {int(state.plateau.item())} epochs"
        if op == Op.ADVANCE:
            return f"advance {name}: it would add {state.prospect[0, slot].item():+.3f}"
        return f"{Op(op).name.lower()} {name}: it contributes {state.contribution[0, slot].item():+.3f}"

    def _finish(self) -> str:
        """Remove what is not committed."""
        open_ones = [n for n, slot in enumerate(self.model.slots) if slot.seed is not None and not slot.committed]
        for number in open_ones:
            self._reduce(self.model.prune(number))
        removed = ", ".join(self.model.names[number] for number in open_ones)
        return f"growth is over, uncommitted seeds removed at {removed}" if open_ones else "growth is over"

    def _extend(self, slot: int, parameters: list[nn.Parameter]) -> None:
        self.groups[slot]["params"].extend(parameters)

    def _reduce(self, parameters: list[nn.Parameter]) -> None:
        gone = {id(parameter) for parameter in parameters}
        for group in self.optimizer.param_groups:
            group["params"] = [parameter for parameter in group["params"] if id(parameter) not in gone]
        for parameter in parameters:
            self.optimizer.state.pop(parameter, None)


def _group(optimizer: Optimizer, block: nn.Module) -> dict[str, Any]:
    """The optimiser's group that a seed beside a block joins."""
    if not isinstance(optimizer, Optimizer) or type(optimizer).__name__ in REFUSED:
        allowed = f"a torch.optim.Optimizer other than {', '.join(REFUSED)}"
        raise TypeError(f"the optimiser is {type(optimizer).__name__}; allowed: {allowed}")
    own = {id(parameter) for parameter in block.parameters()}
    for group in optimizer.param_groups:
        if any(id(parameter) in own for parameter in group["params"]):
            return group
    raise ValueError("the optimiser has no parameter of a slot's block; allowed: one made for the model's parameters")
