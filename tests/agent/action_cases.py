"""Action spaces, masks and logits to try the distribution on, and the joint distribution by enumeration."""

import itertools

import torch
from esper_agent.networks.action_spec import ActionSpec
from hypothesis import strategies as st
from torch import Tensor


@st.composite
def specs(draw: st.DrawFn) -> ActionSpec:
    """Any small spec: one head, independent heads, or heads whose legality depends on the first."""
    sizes = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    by_op = len(sizes) > 1 and draw(st.booleans())
    kind = "discrete" if len(sizes) == 1 else "dict"
    return ActionSpec(kind, tuple(f"h{i}" for i in range(len(sizes))), sizes, by_op, masked=True)


def random_mask(spec: ActionSpec, generator: torch.Generator, *batch: int) -> Tensor:
    """Bool [cells, width, ...]: every cell keeps at least one existing value."""
    exists = spec.padding_mask().view(spec.cells, spec.width, *[1] * len(batch))
    drawn = torch.rand(spec.cells, spec.width, *batch, generator=generator) < 0.5
    sizes = exists.sum(1, keepdim=True)
    kept = (torch.rand(spec.cells, 1, *batch, generator=generator) * sizes).long()
    return (drawn | torch.zeros_like(drawn).scatter(1, kept, True)) & exists


def random_logits(spec: ActionSpec, generator: torch.Generator, *batch: int, scale: float = 3.0) -> Tensor:
    return torch.randn(spec.cells, spec.width, *batch, generator=generator) * scale


def joint_log_probabilities(spec: ActionSpec, logits: Tensor, mask: Tensor) -> dict[tuple[int, ...], float]:
    """Every legal joint action of a single step and its log-probability, head by head in float64."""
    table = {}
    for action in itertools.product(*(range(size) for size in spec.sizes)):
        total, legal = 0.0, True
        for head, value in enumerate(action):
            row = action[0] if spec.by_op else 0
            cell = 0 if head == 0 else 1 + row * spec.arguments + head - 1
            allowed = mask[cell]
            legal &= bool(allowed[value])
            total += float(logits[cell].double()[value] - logits[cell].double()[allowed].logsumexp(0))
        if legal:
            table[action] = total
    return table
