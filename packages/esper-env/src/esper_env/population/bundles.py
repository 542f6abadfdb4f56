"""Bundles: the seeds of one stack in a pass, forward and backward as two batched products each way.

Activations are [m, units, samples]: products of many samples are fast however few the units are, while those with few
columns take up to four times as long as their size asks for.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from esper_env.fused.layout import Params
from esper_env.population.stacks import Kind, Stack


@dataclass(frozen=True)
class Run:
    """Seeds of one kind, one after the other in a bundle."""

    kind: Kind
    start: int
    stop: int


class Bundle:
    """Seeds of one stack that act at a slot.

    Args:
        stack: Where their parameters lie.
        values: The stack's rows.
        runs: Their kinds.
        index: Their rows of the stack, which act once more and do not learn; None: all of its rows, and they learn.
    """

    def __init__(self, stack: Stack, values: Tensor, runs: list[Run], index: Tensor | None) -> None:
        self.stack, self.values, self.runs, self.index = stack, values, runs, index
        self.parameters: Params = stack.unpack(values)
        self.gated: list[tuple[Tensor, Tensor]] = []

    def __len__(self) -> int:
        return self.runs[-1].stop

    def forward(self, x: Tensor, factor: Tensor, out: Tensor) -> None:
        """Write what the seeds make of inputs [m, inputs, samples], times a factor [m, 1, 1]."""
        if self.index is not None:
            self.parameters = self.stack.unpack(self.values.index_select(0, self.index))
        p = self.parameters
        self.x, self.factor = x, factor
        # The layer scale goes into the weights, which are smaller than activations.
        self.scale = p["scale"] * factor
        self.up = p["up.weight"] * self.scale
        self.hidden = torch.baddbmm(p["down.bias"].mT, p["down.weight"].mT, x)
        self._activate()
        torch.baddbmm((p["up.bias"] * self.scale).mT, self.up.mT, self.hidden, out=out)

    def _activate(self) -> None:
        self.gated = []
        for run in self.runs:
            hidden, units = self.hidden[run.start : run.stop], run.kind.hidden
            if run.kind.activation == "relu":
                hidden.relu_()
            elif run.kind.activation == "gated":
                value, opening = hidden[:, :units].clone(), hidden[:, units : 2 * units].sigmoid()
                torch.mul(value, opening, out=hidden[:, :units])
                hidden[:, units:] = 0.0
                self.gated.append((value, opening))

    def openings(self) -> Tensor:
        """How far each seed's gate opens for each sample, [m, 1, samples]."""
        p = self.parameters
        return torch.baddbmm(p["gate.bias"], p["gate.weight"].mT, self.x).sigmoid_()

    def backward(self, grad: Tensor) -> Tensor:
        """From the gradient of the outputs to that of the hidden units."""
        return self._deactivate(torch.bmm(self.up, grad))

    def learn(self, grad: Tensor, hidden: Tensor, gate: Tensor | None, grads: Params) -> None:
        """Write the gradients of the parameters from those of the outputs, hidden units and gates."""
        p = self.parameters
        # Products into rows of a matrix would be one by one, so they are copied there.
        weight, bias = torch.bmm(self.hidden, grad.mT), grad.sum(dim=2).unsqueeze(1)
        scaled = (weight * p["up.weight"]).sum(dim=1, keepdim=True)
        torch.mul(scaled.addcmul_(bias, p["up.bias"]), self.factor, out=grads["scale"])
        torch.mul(weight, self.scale, out=grads["up.weight"])
        torch.mul(bias, self.scale, out=grads["up.bias"])
        grads["down.weight"].copy_(torch.bmm(self.x, hidden.mT))
        torch.sum(hidden, 2, out=grads["down.bias"].squeeze(1))
        self._learn_gate(gate, grads)
        for run in self.runs:
            if not run.kind.biased:
                for name in ("up.bias", "down.bias"):
                    grads[name][run.start : run.stop] = 0.0

    def _deactivate(self, grad: Tensor) -> Tensor:
        """From the gradient of activated hidden units to that of the product before, in place."""
        gated = iter(self.gated)
        for run in self.runs:
            part, units = grad[run.start : run.stop], run.kind.hidden
            if run.kind.activation == "relu":
                kept = self.hidden[run.start : run.stop]
                torch.ops.aten.threshold_backward.grad_input(part, kept, 0, grad_input=part)
            elif run.kind.activation == "gated":
                value, opening = next(gated)
                part[:, :units].mul_(opening)
                torch.mul(part[:, :units], value * (1.0 - opening), out=part[:, units : 2 * units])
        return grad

    def _learn_gate(self, grad: Tensor | None, grads: Params) -> None:
        if grad is None:
            grads["gate.weight"].zero_()
            grads["gate.bias"].zero_()
            return
        grads["gate.weight"].copy_(torch.bmm(grad, self.x.mT).mT)
        torch.sum(grad, 2, keepdim=True, out=grads["gate.bias"])

    def inputs_grad(self, hidden: Tensor, gate_grad: Tensor | None, out: Tensor) -> None:
        """Write the gradient of the inputs."""
        p = self.parameters
        torch.bmm(p["down.weight"], hidden, out=out)
        if gate_grad is not None:
            out.baddbmm_(p["gate.weight"], gate_grad)
