"""Scores of slots are the formulas of their papers, computed row by row in plain torch."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from engine_tools import HOSTS, assortment, build, grow, minibatches, some_lesions, unsilence
from esper_env.population.export import GrownNetwork, export_host
from esper_env.population.scores import DAMPING, RANK_TOLERANCE, slot_scores
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, cross_entropy

ROWS = 6


def plain_parts(network: GrownNetwork, inputs: Tensor, labels: Tensor) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Of every block: what it reads, what it gives, the gradient by that, and where its own gradient step moves it."""
    seen: list[tuple[Tensor, Tensor]] = []

    def note(slot: int, x: Tensor, h: Tensor) -> Tensor:
        alive = getattr(network, f"alive{slot}").to(h.dtype)
        h = h * (alive.view(-1, 1, 1) if h.dim() == 4 else alive)
        h.retain_grad()
        seen.append((x.detach(), h))
        return network._with_seed(str(slot), x, h) if str(slot) in network.seeds else h

    logits = network.host(inputs, note)
    cross_entropy(logits.flatten(0, -2), labels.flatten()).backward()
    found = []
    for slot, (x, h) in enumerate(seen):
        block, alive = network.host.blocks[slot], getattr(network, f"alive{slot}").to(h.dtype)
        params = dict(block.named_parameters())

        def out(own: dict[str, Tensor], block=block, x=x, alive=alive) -> Tensor:
            y = torch.func.functional_call(block, own, (x,))
            return y * (alive.view(-1, 1, 1) if y.dim() == 4 else alive)

        steps = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in params.items()}
        detached = {name: p.detach() for name, p in params.items()}
        moved = along(out, detached, steps)
        found.append((x, h.detach(), h.grad, moved))
    return found


def along(out: Callable[[dict[str, Tensor]], Tensor], at: dict[str, Tensor], steps: dict[str, Tensor]) -> Tensor:
    """A directional derivative by central differences."""
    size = 1e-7 / max(step.abs().max().item() for step in steps.values())
    there, back = (out({name: at[name] + sign * size * steps[name] for name in at}) for sign in (1, -1))
    return (there - back) / (2 * size)


def samples(x: Tensor) -> Tensor:
    return x.flatten(2).mT.flatten(0, 1) if x.dim() == 4 else x.flatten(0, -2)


def root(matrix: Tensor) -> Tensor:
    ridge = DAMPING * matrix.diagonal().mean() * torch.eye(len(matrix), dtype=matrix.dtype)
    values, vectors = torch.linalg.eigh(matrix + ridge)
    return vectors @ torch.diag(values.rsqrt()) @ vectors.T


def expected(x: Tensor, h: Tensor, g: Tensor, moved: Tensor) -> dict[str, float]:
    if x.dim() == 4:
        x = adaptive_avg_pool2d(x, h.shape[-1])
    x, h, g, moved = (samples(one) for one in (x, h, g, moved))
    number = len(h)
    missing = sum(torch.outer(a, b) for a, b in zip(x, g, strict=True))
    r = g - (g * moved).sum() / (moved * moved).sum() * moved
    white = root(x.T @ x / number) @ (x.T @ r)
    gain = white @ root(number * g.T @ g)
    singular = torch.linalg.svdvals(h - h.mean(dim=0))
    return {
        "gradmax": torch.linalg.svdvals(missing)[0].item(),
        "rigl": missing.abs().max().item(),
        "tiny": torch.linalg.svdvals(white)[0].item(),
        "senn": torch.linalg.svdvals(gain).square().sum().item(),
        "north": (singular > RANK_TOLERANCE * singular[0]).sum().item() / (h.std(dim=0) > 0).sum().item(),
    }


@pytest.mark.parametrize("task", HOSTS)
def test_scores_are_those_of_each_row_in_plain_torch(task: str) -> None:
    population = build(task, ROWS, live_units=some_lesions(task, ROWS))
    grow(population, assortment(population))
    unsilence(population, 0.05)
    population.census.blend[:] = 0  # what a seed adds leaves the gradient at its block's output as it is
    batches = minibatches(task, population, count=1, batch=40)
    before = population.body.values.clone()
    found = slot_scores(population, batches)
    assert torch.equal(before, population.body.values)
    for row in range(ROWS):
        inputs, labels = (one[0] for one in batches.batch(0, row, row + 1))
        parts = plain_parts(export_host(population, row), inputs, labels)
        for slot, part in enumerate(parts):
            for name, value in expected(*part).items():
                np.testing.assert_allclose(getattr(found, name)[row, slot].item(), value, rtol=1e-4, err_msg=name)


def test_a_narrowed_block_uses_all_that_it_has() -> None:
    widths = np.array([[24, 24, 24]] * 3)
    widths[np.arange(3), np.arange(3)] = 2
    population = build("digits_mlp", 3, live_units=widths)
    scores = slot_scores(population, minibatches("digits_mlp", population, count=1, batch=128))
    assert scores.north.diagonal().tolist() == [1, 1, 1]  # dead units are not counted
    assert (scores.north[:2, 2] < 0.5).all()  # what is behind a narrow block cannot use its own
    assert torch.isfinite(torch.stack([*vars(scores).values()])).all()
