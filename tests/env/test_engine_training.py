"""A population trains exactly as its rows would one by one: plain modules, torch.optim, an ordinary loop."""

import numpy as np
import pytest
import torch
from engine_tools import (
    ALPHA,
    HOSTS,
    TINY_TEXT,
    PlainRow,
    Stage,
    assortment,
    build,
    columns,
    episode_keys,
    grow,
    logits,
    minibatches,
    some_lesions,
    train_plain,
    unsilence,
    validation,
)
from esper_env.fused.optimizers import SGD, AdamW, Optimizer
from esper_env.population.population import Blend, Population
from esper_env.population.training import train_epoch

ROWS = 12
TOLERANCE = dict.fromkeys(HOSTS, 1e-09) | {TINY_TEXT: 1e-6}  # norms behind lesioned blocks amplify rounding


def mixed(task: str, optimizer: Optimizer | None = None, max_grad_norm: float | None = None) -> Population:
    """Lesions, learning rates, and seeds of every blueprint, blend and stage."""
    rates = torch.linspace(0.01, 0.08, ROWS, dtype=torch.float64)
    population = build(
        task,
        ROWS,
        lr=rates if optimizer is None else rates / 10,
        live_units=some_lesions(task, ROWS),
        optimizer=optimizer,
        max_grad_norm=max_grad_norm,
    )
    grow(population, assortment(population))
    unsilence(population)
    return population


def test_the_mixture_has_everything() -> None:
    population = mixed("digits_mlp")
    census = population.census
    assert set(np.unique(census.blueprint)) == {-1, 0, 1, 2, 3, 4}
    assert set(census.blend[census.live]) == set(census.blend[(census.blueprint >= 0) & ~census.live]) == {0, 1, 2}
    assert set(population.alpha[census.live].tolist()) == {0.0, 0.3, 1.0}
    assert (population.lesioned & census.live).any()
    assert (population.lesioned & (census.blueprint >= 0) & ~census.live).any()
    rows, _ = columns(assortment(population))
    assert (np.diff(rows) < 0).any()


@pytest.mark.parametrize("task", HOSTS)
def test_forward_equals_plain_modules(task: str) -> None:
    population = mixed(task)
    inputs, _ = validation(task, population, 30)
    answers = logits(population, inputs)
    for row in range(ROWS):
        plain = PlainRow(population, row)
        torch.testing.assert_close(answers[row], plain.forward(inputs, plain.live), rtol=0.0, atol=1e-11)


@pytest.mark.parametrize("task", HOSTS)
@pytest.mark.parametrize(
    ("optimizer", "max_grad_norm"),
    [(None, None), (SGD(0.9, 0.01), 0.5), (AdamW(weight_decay=0.1), None)],
    ids=["sgd", "sgd-clipped-decayed", "adamw"],
)
def test_training_equals_a_loop_over_plain_modules(
    task: str, optimizer: Optimizer | None, max_grad_norm: float | None
) -> None:
    population = mixed(task, optimizer, max_grad_norm)
    plain = [PlainRow(population, row) for row in range(ROWS)]
    start = population.body.values.clone()
    data = minibatches(task, population, count=6)
    report, expected = train_epoch(population, data), [train_plain(row, data) for row in plain]
    assert (population.body.values - start).norm(dim=1).min() > 1e-3
    assert max(row.largest_difference(population) for row in plain) < TOLERANCE[task]
    for name, value in vars(report).items():
        wanted = torch.tensor([getattr(e, name) for e in expected], dtype=torch.float64)
        torch.testing.assert_close(value, wanted, rtol=0.0, atol=TOLERANCE[task])
    if max_grad_norm is not None:
        assert (
            0.0 < report.seed_grad_norm[report.seed_grad_norm > 0].min() < max_grad_norm < report.seed_grad_norm.max()
        )


@pytest.mark.parametrize("task", HOSTS)
@pytest.mark.parametrize("optimizer", [SGD(0.9), AdamW()], ids=["sgd", "adamw"])
def test_a_life_of_births_and_removals_equals_the_plain_loop(task: str, optimizer: Optimizer) -> None:
    """Optimiser state follows its seed through every row operation."""
    population = build(task, 6, lr=0.02, optimizer=optimizer, live_units=some_lesions(task, 6))
    plain = [PlainRow(population, row) for row in range(6)]
    rng, keys = np.random.default_rng(0), episode_keys(6)
    for step in range(8):
        _random_operations(population, plain, rng, keys, step)
        data = minibatches(task, population, step=step, count=3, batch=8)
        train_epoch(population, data)
        for row in plain:
            train_plain(row, data)
        assert max(row.largest_difference(population) for row in plain) < TOLERANCE[task]
    assert any(seed.committed for row in plain for seed in row.seeds.values())


def _random_operations(
    population: Population, plain: list[PlainRow], rng: np.random.Generator, keys: torch.Tensor, step: int
) -> None:
    rows, slots = rng.permutation(6), rng.integers(3, size=6)
    pairs = list(zip(rows.tolist(), slots.tolist(), strict=True))
    empty = [(r, s) for r, s in pairs if s not in plain[r].seeds]
    incubating = [(r, s) for r, s in pairs if s in plain[r].seeds and not plain[r].seeds[s].live]
    live = [(r, s) for r, s in pairs if s in plain[r].live - plain[r].committed]
    _germinate(population, plain, empty, rng, keys, step)
    population.advance(*_columns(incubating))
    population.remove(*_columns(live[::2]))
    population.commit(*_columns(live[1::2]))
    for row, slot in incubating:
        plain[row].seeds[slot].live = True
        plain[row].seeds[slot].alpha = population.alpha[row, slot] = ALPHA[Stage.BLENDING]
    for row, slot in live[::2]:
        del plain[row].seeds[slot]
    for row, slot in live[1::2]:
        plain[row].seeds[slot].committed = True
        plain[row].seeds[slot].alpha = population.alpha[row, slot] = 1.0


def _columns(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _germinate(
    population: Population,
    plain: list[PlainRow],
    pairs: list[tuple[int, int]],
    rng: np.random.Generator,
    keys: torch.Tensor,
    step: int,
) -> None:
    rows, slots = _columns(pairs)
    kinds, blends = rng.integers(5, size=len(rows)), rng.integers(len(Blend), size=len(rows))
    population.germinate(rows, slots, kinds, blends, keys[rows], torch.full((len(rows),), step))
    for row, slot in pairs:
        plain[row].plant(population, slot)


@pytest.mark.parametrize("task", HOSTS)
def test_no_path_upstream_of_a_blending_seed_is_cut(task: str) -> None:
    """Blocks before a blending seed receive the gradient through the seed as well as through the host."""
    population = build(task, 3)
    grow(population, [p for p in assortment(population, [Stage.BLENDING], empty=0.0) if p.slot == 2])
    unsilence(population)
    plain = [PlainRow(population, row) for row in range(3)]
    start = population.body.values.clone()
    data = minibatches(task, population, count=1)
    train_epoch(population, data)
    update = population.body.values - start
    for row in plain:
        train_plain(row, data)
    assert max(row.largest_difference(population) for row in plain) < 1e-12
    unseeded = build(task, 3)
    train_epoch(unseeded, data)
    width = sum(e.size for e in population.engine.body_layout.entries if e.name.startswith("blocks.0."))
    assert bool(((unseeded.body.values - start)[:, :width] - update[:, :width]).norm(dim=1).min() > 1e-4)
