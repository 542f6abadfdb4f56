"""The pass of a plan over MLPs whose seeds are two products each, forward and backward, without autograd.

It computes what `Passes` does, with activations as [rows, units, samples] (see `bundles.py`), every product written
where it is needed, and the gradients of all parameters of a cohort or stack in one matrix.
"""

from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from esper_env.fused.layout import Params
from esper_env.hosts.mlp import LEAK
from esper_env.population.bundles import Bundle, Run
from esper_env.population.grafted import Grafted
from esper_env.population.plan import Graft, Plan, SeedGroup
from esper_env.population.population import Population, SeedKey
from esper_env.population.stacks import Kind, Stack


class Layer:
    """A dense layer of all rows, and of variants that repeat the weights of some.

    Args:
        weight: [n, inputs, outputs].
        bias: [n, 1, outputs].
        again: The row of each variant, or None.
        alive: [n, 1, outputs], zero for dead units, or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor, again: Tensor | None, alive: Tensor | None) -> None:
        if alive is not None:
            weight, bias = weight * alive, bias * alive
        self.parts = [(slice(0, len(weight)), weight, bias)]
        self.alive, self.own = alive, slice(0, len(weight))
        if again is not None:
            rows = slice(len(weight), len(weight) + len(again))
            self.parts.append((rows, weight.index_select(0, again), bias.index_select(0, again)))

    def forward(self, x: Tensor, more: int = 0) -> Tensor:
        """Outputs [rows, outputs, samples] of inputs [rows, inputs, samples], with room for some rows more."""
        out = x.new_empty(len(x) + more, self.parts[0][1].shape[2], x.shape[2])
        if x.stride(0) == 0:  # all rows read the same samples, so one product serves them
            _, weight, bias = self.parts[0]
            together = out[: len(x)].flatten(0, 1)
            torch.addmm(bias.reshape(-1, 1), weight.mT.flatten(0, 1), x[0], out=together)
            return out
        for rows, weight, bias in self.parts:
            torch.baddbmm(bias.mT, weight.mT, x[rows], out=out[rows])
        return out

    def backward(self, x: Tensor, grad: Tensor, weight: Tensor, bias: Tensor) -> None:
        """Write the gradients of the rows' own weight and bias from that of the outputs."""
        weight.copy_(torch.bmm(x[self.own], grad[self.own].mT))
        torch.sum(grad[self.own], 2, out=bias.squeeze(1))
        if self.alive is not None:
            weight.mul_(self.alive)
            bias.mul_(self.alive)

    def inputs_grad(self, grad: Tensor, out: Tensor) -> None:
        """Write the gradient of the inputs."""
        for rows, weight, _ in self.parts:
            torch.bmm(weight, grad[rows], out=out[rows])


class DensePass:
    """Passes over a population of MLPs whose membership does not change meanwhile.

    Args:
        population: The population, or a window of one.
        plan: What to compute.
        training: Whether `backward` shall follow.
    """

    def __init__(self, population: Population, plan: Plan, training: bool) -> None:
        self.population, self.plan, self.training = population, plan, training
        self.body = population.body.layout.unpack(population.body.values)
        self.grafted = [self._grafted(slot, graft) for slot, graft in enumerate(plan.grafts)]

    def _grafted(self, slot: int, graft: Graft | None) -> Grafted | None:
        if graft is None:
            return None
        alpha = self.population.alpha[:, slot].index_select(0, graft.hosts)
        if graft.forced is not None:
            alpha = alpha.masked_fill(graft.forced, 1.0)
        stacks: dict[int, Bundle] = {}  # by band; those that learn lead
        bundles = []
        for (more, band), parts in groupby(
            graft.groups, key=lambda group: (group.again is not None, self._band(group))
        ):
            groups = list(parts)
            if not more:
                stacks[band] = self._bundle(groups)
            bundles.append(self._again(groups, stacks[band]) if more else stacks[band])
        return Grafted(graft, bundles, alpha)

    def _kind(self, key: SeedKey) -> Kind:
        return self.population.engine.dense_kinds[key[0]][key[1]]

    def _band(self, group: SeedGroup) -> int:
        return self._kind(group.key).band

    def _runs(self, groups: list[SeedGroup]) -> list[Run]:
        stops = np.cumsum([group.count for group in groups]).tolist()
        return [Run(self._kind(g.key), stop - g.count, stop) for g, stop in zip(groups, stops, strict=True)]

    def _bundle(self, groups: list[SeedGroup]) -> Bundle:
        """Every seed of some cohorts."""
        cohorts = [self.population.seeds[group.key] for group in groups]
        stack = Stack([self._kind(group.key) for group in groups], cohorts)
        return Bundle(stack, stack.padded([cohort.values for cohort in cohorts]), self._runs(groups), None)

    def _again(self, groups: list[SeedGroup], own: Bundle) -> Bundle:
        """Some seeds of a bundle once more."""
        first = {run.kind: run.start for run in own.runs}
        index = torch.cat([group.again + first[self._kind(group.key)] for group in groups if group.again is not None])
        return Bundle(own.stack, own.values, self._runs(groups), index)

    def learning(self) -> list[tuple[int, Bundle]]:
        """The slot of each bundle that learns, and the bundle."""
        pairs = [(slot, bundle) for slot, g in enumerate(self.grafted) if g is not None for bundle in g.bundles]
        return [(slot, bundle) for slot, bundle in pairs if bundle.index is None]

    def run(self, inputs: Tensor) -> Tensor:
        """Logits [rows, classes, samples] of all rows of the plan on samples [n, batch, ...]."""
        x = inputs.flatten(2).mT
        self.inputs, self.outputs = [], []
        self.layers: list[Layer] = []
        for slot, grafted in enumerate(self.grafted):
            h = self._block(slot, x)
            y = h if grafted is None else grafted.forward(x, h, self.training)
            if self.training:
                self.inputs.append(x)
                self.outputs.append(h)
            x = y
        self.inputs.append(x)
        return self._layer("head", self.plan.variants, None).forward(x)

    def _block(self, slot: int, x: Tensor) -> Tensor:
        plan, n = self.plan, len(self.population)
        started, starting = plan.under_way[slot], plan.starting[slot]
        again = None if plan.variants is None or started == n else plan.variants[: started - n]
        alive = self.population.lesions[slot].unsqueeze(1) if plan.lesioned[slot] else None
        h = self._layer(f"blocks.{slot}.0", again, alive).forward(x, 0 if starting is None else len(starting))
        torch.nn.functional.leaky_relu_(h[:started], LEAK)
        if starting is not None:
            torch.index_select(h[:n], 0, starting, out=h[started:])
        return h

    def _layer(self, name: str, again: Tensor | None, alive: Tensor | None) -> Layer:
        weight, bias = (self.body[number] for _, number in self.population.body.layout.part(name))
        self.layers.append(Layer(weight, bias, again, alive))
        return self.layers[-1]

    def backward(self, grad: Tensor, body: list[Tensor], seeds: list[list[Params]]) -> Tensor:
        """Write the gradients of all parameters from that of the logits.

        Args:
            grad: Of the logits, of any sum of the rows' losses.
            body: Where to write the hosts', in the order of their layout.
            seeds: Where to write the seeds', by slot and learning bundle.

        Returns:
            Norms of the gradients of the blocks' outputs, [n, slots].
        """
        n, slots, norms = len(self.population), len(self.grafted), []
        grad = self._through(slots, "head", grad, body)
        for slot in reversed(range(slots)):
            grafted, started = self.grafted[slot], self.plan.under_way[slot]
            if grafted is not None:
                grafted.backward(grad, seeds[slot])
            norms.append(torch.linalg.vector_norm(grad[:n], dim=(1, 2)))
            product = torch.ops.aten.leaky_relu_backward(grad[:started], self.outputs[slot][:started], LEAK, True)
            grad = self._through(slot, f"blocks.{slot}.0", product, body)
            if slot and grafted is not None:
                # What variants that start here read is their host's, and nothing goes back there.
                grad.index_add_(0, grafted.graft.rows.clamp(max=started), grafted.inputs_grad(grad))
        return torch.stack(norms[::-1], dim=1)

    def _through(self, number: int, name: str, grad: Tensor, body: list[Tensor]) -> Tensor:
        """From the gradient of a layer's outputs to that of its inputs, with a row more for what goes nowhere."""
        layer, x = self.layers[number], self.inputs[number]
        weight, bias = (body[place] for _, place in self.population.body.layout.part(name))
        layer.backward(x, grad, weight, bias)
        if not number:
            return grad  # samples need none
        inputs = grad.new_empty(len(x) + 1, *x.shape[1:])
        layer.inputs_grad(grad, inputs)
        return inputs
