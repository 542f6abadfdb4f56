"""The forward pass of a plan: one fused call per block, and at each slot one per blueprint present.

With the population of the example in `plan.py`, three rows and two slots, and five samples for each row:

>>> passes = Passes(population, training_plan(population), training=True)
>>> logits, outputs = passes.run(torch.ones(3, 5, 4))

Block 0 computes the three rows. So does block 1, although the plan has four: the variant of row 2 starts there from row
2's output, and only the head computes all four. A newborn seed is silent, so the variant answers as its row does:

>>> [tuple(h.shape) for h in outputs], tuple(logits.shape)
([(3, 5, 3), (3, 5, 3)], (4, 5, 2))
>>> torch.equal(logits[3], logits[2])
True

What the variant answers teaches its newborn alone, whose layer scale is the first to learn. Parameters are leaves with
a row per member: the body's, and those of the seeds by slot and blueprint.

>>> body = torch.autograd.grad(logits[3].sum(), passes.body, retain_graph=True, allow_unused=True)
>>> any(bool(grad.any()) for grad in body if grad is not None)
False
>>> newborn = torch.autograd.grad(logits[3].sum(), passes.seeds[1, 0], allow_unused=True)
>>> entries = population.engine.seed_layouts[1][0].entries
>>> [entry.name for entry, grad in zip(entries, newborn) if grad is not None and grad.any()]
['last.scale']
"""

import numpy as np
import torch
from torch import Tensor

from esper_env.fused.layers import dense
from esper_env.fused.layout import Params
from esper_env.population.cohort import Cohort
from esper_env.population.plan import Graft, Plan, SeedGroup
from esper_env.population.population import Population


class Passes:
    """Forward passes over a population whose membership does not change meanwhile.

    Args:
        population: The population, or a window of one.
        plan: What to compute.
        training: Whether the parameters shall be differentiable.
    """

    def __init__(self, population: Population, plan: Plan, training: bool) -> None:
        self.plan, self.host = plan, population.engine.host
        self.activations = self.host.activations
        self.population, self.engine = population, population.engine
        self.body = _parameters(population.body, training)
        self.seeds = {key: _parameters(cohort, training) for key, cohort in population.seeds.items()}
        self.lesions = [self._lesion(population, slot) for slot in range(len(self.host.slots))]
        self.alphas = [self._alpha(population, slot, graft) for slot, graft in enumerate(plan.grafts)]
        self.gains = [self._gain(graft) for graft in plan.grafts]

    def _lesion(self, population: Population, slot: int) -> Tensor | None:
        if not self.plan.lesioned[slot]:
            return None
        return _extended(population.lesions[slot], self.plan.variants)[: self.plan.under_way[slot]]

    def _alpha(self, population: Population, slot: int, graft: Graft | None) -> Tensor | None:
        if graft is None:
            return None
        alpha = population.alpha[:, slot].index_select(0, graft.hosts)
        return alpha if graft.forced is None else alpha.masked_fill(graft.forced, 1.0)

    def _gain(self, graft: Graft | None) -> Tensor:
        groups = () if graft is None else graft.groups
        gains = np.array([self.engine.blueprints[group.key[1]].gain for group in groups])
        return torch.from_numpy(gains.repeat([group.count for group in groups])[:, None]).to(self.population.alpha)

    def run(self, inputs: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Logits of all rows of the plan on samples [n, batch, ...], and each block's output."""
        plan, axis = self.plan, self.activations.row_axis
        x, outputs = self.host.enter(self._part("enter", len(self.population)), inputs), []
        for slot, (starting, graft) in enumerate(zip(plan.starting, plan.grafts, strict=True)):
            h = self._block(slot, x)
            outputs.append(h)
            if starting is not None:
                h = torch.cat([h, h.detach().index_select(axis, starting)], axis)
            y = h if graft is None else self._graft(graft, slot, x, h, starting)
            x = self.host.bridge(slot, self._part(f"bridges.{slot}", y.shape[axis]), y)
        return self.host.head(self._part("head", plan.count), x), outputs

    def _part(self, name: str, rows: int) -> Params:
        """The parameters of a part of the host for the first rows of the plan, under names local to the part."""
        variants, early = self.plan.variants, rows - len(self.population)
        again = variants[:early] if variants is not None and early else None
        part = self.engine.body_layout.part(name)
        return {local: _extended(self.body[number], again) for local, number in part}

    def _block(self, slot: int, x: Tensor) -> Tensor:
        params, alive = self._part(f"blocks.{slot}", self.plan.under_way[slot]), self.lesions[slot]
        return self.host.block(slot, params, x) if alive is None else self.host.lesioned_block(slot, params, x, alive)

    def _graft(self, graft: Graft, slot: int, x: Tensor, h: Tensor, fresh: Tensor | None) -> Tensor:
        axis = self.activations.row_axis
        inputs = self._inputs(graft, x)
        shares = torch.split(inputs, [group.count for group in graft.groups], axis)
        deltas, gates = [], []
        scales: list[Tensor] = []
        for group, share in zip(graft.groups, shares, strict=True):
            layout = self.engine.seed_layouts[slot][group.key[1]]
            params = self._seed_parameters(group)
            body = {name: params[number] for name, number in layout.part("body")}
            deltas.append(self.engine.seed_bodies[slot][group.key[1]](body, share))
            scales.extend(params[number] for _, number in layout.part("last"))
            gates.append({name: params[number] for name, number in layout.part("gate")})
        scale = self.activations.per_unit(_joined(scales, 0) * self.gains[slot])
        delta = _joined(deltas, axis) * scale
        effect = self._multiplied(graft, delta, h) * self._strength(graft, slot, gates, inputs)
        # Where variants start, h is a fresh copy that nothing else needs, so it may be added to in place.
        return h.index_add(axis, graft.rows, effect) if fresh is None else h.index_add_(axis, graft.rows, effect)

    def _inputs(self, graft: Graft, x: Tensor) -> Tensor:
        """What each seed reads; a variant that starts here reads its host's input, without a way back."""
        inputs = x.index_select(self.activations.row_axis, graft.sources)
        if graft.attached is not None and inputs.requires_grad:
            attached = self.activations.per_row(graft.attached)
            inputs.register_hook(lambda grad: grad * attached)
        return inputs

    def _seed_parameters(self, group: SeedGroup) -> list[Tensor]:
        if group.again is None:
            return self.seeds[group.key]
        cohort = self.population.seeds[group.key]
        return cohort.layout.unpack(cohort.values.index_select(0, group.again))

    def _multiplied(self, graft: Graft, delta: Tensor, h: Tensor) -> Tensor:
        """The seeds' deltas, with h * tanh(delta) in place of delta where the blend is MULTIPLY."""
        if graft.multiply is None:
            return delta
        axis = self.activations.row_axis
        scaled = h.index_select(axis, graft.rows[graft.multiply]) * delta.index_select(axis, graft.multiply).tanh()
        return delta.index_copy(axis, graft.multiply, scaled)

    def _strength(self, graft: Graft, slot: int, gates: list[Params], inputs: Tensor) -> Tensor:
        """How much of each seed acts: its alpha, times the opening of its gate where the blend is GATE."""
        alpha = self.alphas[slot]
        assert alpha is not None
        if graft.gate is None:
            return self.activations.per_row(alpha)
        weight, bias = (torch.cat([gate[name] for gate in gates]) for name in ("weight", "bias"))
        opening = dense(self.activations.summary(inputs), weight, bias).sigmoid()
        gated = (alpha * graft.gate).view(-1, 1, 1)
        strength = torch.addcmul((alpha - alpha * graft.gate).view(-1, 1, 1), gated, opening)
        return self.activations.per_sample(strength, inputs)


def _joined(parts: list[Tensor], axis: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, axis)


def _parameters(cohort: Cohort, training: bool) -> list[Tensor]:
    return cohort.layout.leaves(cohort.values) if training else cohort.layout.unpack(cohort.values)


def _extended(values: Tensor, again: Tensor | None) -> Tensor:
    """All rows, followed by copies of some without gradient."""
    return values if again is None else torch.cat([values, values.detach().index_select(0, again)])
