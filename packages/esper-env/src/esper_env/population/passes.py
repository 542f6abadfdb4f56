"""One forward pass of a plan: blocks of all rows fused, and at each slot one fused call per blueprint present."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from esper_env.hosts.base import Host
from esper_env.population.layers import dense
from esper_env.population.layout import Params, Part
from esper_env.population.plan import Graft, Plan, SeedGroup
from esper_env.population.population import Population, SeedKey


@dataclass
class Trace:
    """What a base pass leaves for its branches and for gradient norms: each block's input and output."""

    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)


class Passes:
    """Forward passes over a population whose membership does not change meanwhile.

    Args:
        population: The population, or a window of one.
        training: Whether parameters shall be differentiable.
    """

    def __init__(self, population: Population, training: bool) -> None:
        self.population = population
        self.host: Host = population.engine.host
        body = population.body
        self.blocks = [body.layout.part(f"blocks.{slot}") for slot in range(len(self.host.slots))]
        self.head = body.layout.part("head")
        self.body: Params = body.leaves() if training else body.layout.unpack(body.values)
        self.seeds: dict[SeedKey, Params] = {
            key: cohort.leaves() if training else cohort.layout.unpack(cohort.values)
            for key, cohort in population.seeds.items()
        }

    def base(self, plan: Plan, inputs: Tensor) -> tuple[Tensor, Trace]:
        """Logits of every row on samples [n, batch, ...], and the trace for branches."""
        trace, x = Trace(), self.host.enter(inputs)
        for slot, block in enumerate(self.blocks):
            h = self._block(slot, block.of(self.body), x, self.population.lesions[slot], plan)
            trace.inputs.append(x)
            trace.outputs.append(h)
            x = self.host.bridge(slot, self._graft(plan.grafts[slot], slot, x, h))
        return self.host.head(self.head.of(self.body), x), trace

    def branches(self, plan: Plan, trace: Trace) -> Tensor:
        """Logits of a branch plan's rows; nothing but whole groups of seeds receives gradient."""
        body = self.population.body
        params = body.layout.unpack(body.values.index_select(0, plan.rows))
        x: Tensor | None = None
        for slot, block in enumerate(self.blocks):
            started, ready = plan.starts[slot], plan.starts[slot + 1]
            if not ready:
                continue
            x, h = self._joined(slot, block, params, x, plan, trace, started, ready)
            x = self.host.bridge(slot, self._graft(plan.grafts[slot], slot, x, h))
        assert x is not None
        return self.host.head(self.head.of(params), x)

    def _joined(
        self,
        slot: int,
        block: Part,
        params: Params,
        x: Tensor | None,
        plan: Plan,
        trace: Trace,
        started: int,
        ready: int,
    ) -> tuple[Tensor, Tensor]:
        """Input and output of a block for the rows under way and for those that start here from the trace."""
        parts = []
        if x is not None:
            lesion = self.population.lesions[slot].index_select(0, plan.rows[:started])
            parts.append((x, self._block(slot, block.of(params, started), x, lesion, plan)))
        if ready > started:
            rows, axis = plan.rows[started:ready], self.host.row_axis
            recorded = (trace.inputs[slot].detach(), trace.outputs[slot].detach())
            parts.append((recorded[0].index_select(axis, rows), recorded[1].index_select(axis, rows)))
        if len(parts) == 1:
            return parts[0]
        inputs, outputs = zip(*parts, strict=True)
        return torch.cat(inputs, self.host.row_axis), torch.cat(outputs, self.host.row_axis)

    def _block(self, slot: int, params: Params, x: Tensor, lesion: Tensor, plan: Plan) -> Tensor:
        h = self.host.block(slot, params, x)
        return h * self.host.per_unit(lesion) if plan.lesioned[slot] else h

    def _graft(self, graft: Graft | None, slot: int, x: Tensor, h: Tensor) -> Tensor:
        if graft is None:
            return h
        axis = self.host.row_axis
        inputs = x.index_select(axis, graft.rows)
        pieces = torch.split(inputs, [group.count for group in graft.groups], axis)
        params = [self._params(group) for group in graft.groups]
        deltas = [
            group.blueprint.apply(group.layout.part("body").of(p), piece)
            for group, p, piece in zip(graft.groups, params, pieces, strict=True)
        ]
        delta = deltas[0] if len(deltas) == 1 else torch.cat(deltas, axis)
        effect = self._blended(graft, params, inputs, delta, h)
        return h.index_add(axis, graft.rows, effect * self.host.per_row(self._alpha(graft, slot)))

    def _blended(self, graft: Graft, params: list[Params], inputs: Tensor, delta: Tensor, h: Tensor) -> Tensor:
        effect = delta
        if graft.gate is not None:
            weight, bias = (torch.cat([p[f"gate.{name}"] for p in params]) for name in ("weight", "bias"))
            opening = dense(self.host.summary(inputs), weight, bias).sigmoid()
            gated = graft.gate.view(-1, 1, 1)
            effect = effect * self.host.per_sample(1.0 - gated + gated * opening)
        if graft.multiply is not None:
            scaled = h.index_select(self.host.row_axis, graft.rows) * delta.tanh()
            effect = torch.lerp(effect, scaled, self.host.per_row(graft.multiply))
        return effect

    def _alpha(self, graft: Graft, slot: int) -> Tensor:
        alpha = self.population.alpha[:, slot].index_select(0, graft.base_rows)
        return alpha if graft.forced is None else alpha.masked_fill(graft.forced, 1.0)

    def _params(self, group: SeedGroup) -> Params:
        if group.index is None:
            return self.seeds[group.key]
        values = self.population.seeds[group.key].values
        return group.layout.unpack(values.index_select(0, group.index))
