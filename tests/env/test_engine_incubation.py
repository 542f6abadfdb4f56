"""An incubating seed learns behind its host: the host does not notice, and the seed is fit to act when it is let."""

from math import sqrt

import pytest
import torch
from engine_tools import (
    HOSTS,
    Place,
    PlainRow,
    Stage,
    assortment,
    build,
    clone,
    columns,
    full_width,
    grow,
    logits,
    minibatches,
    some_lesions,
    train_plain,
    validation,
)
from esper_env.population.evaluation import evaluate
from esper_env.population.population import Blend, Population
from esper_env.population.training import TrainingReport, train_epoch

EPOCHS = {"digits_mlp": (200, 48), "digits_cnn": (200, 48), "text": (24, 12)}  # minibatches, and their size
ROWS = {"digits_mlp": 45, "digits_cnn": 15, "text": 15}  # every blueprint under every blend; in the MLP in every slot


def incubator(
    task: str, live_units: int | None, lr: float = 0.05, max_grad_norm: float | None = None
) -> tuple[Population, list[Place]]:
    """One incubating seed per row, beside a block lesioned to so many units.

    In float64: hundreds of minibatches amplify float32's rounding until every processor trains other seeds.
    """
    rows, widths = ROWS[task], full_width(task, ROWS[task])
    places = [Place(r, (r // 15 + r) % 3, r % 5, Blend(r // 5 % 3), Stage.INCUBATING) for r in range(rows)]
    if live_units is not None:
        for place in places:
            widths[place.row, place.slot] = live_units
    population = build(task, rows, live_units=widths, lr=lr, max_grad_norm=max_grad_norm)
    grow(population, places)
    return population, places


def incubate(task: str, population: Population) -> TrainingReport:
    count, batch = EPOCHS[task]
    return train_epoch(population, minibatches(task, population, count=count, batch=batch))


def switched_on(population: Population, places: list[Place]) -> Population:
    grown = clone(population)
    grown.advance(*columns(places))
    grown.alpha[columns(places)] = 1.0
    return grown


@pytest.mark.parametrize("task", HOSTS)
@pytest.mark.parametrize("max_grad_norm", [None, 0.3])
def test_the_host_learns_exactly_as_without_incubating_seeds(task: str, max_grad_norm: float | None) -> None:
    """Also where other seeds live beside them."""
    settings = {"max_grad_norm": max_grad_norm, "live_units": some_lesions(task, 9)}
    without, within = build(task, 9, **settings), build(task, 9, **settings)
    places = assortment(within)
    grow(without, [place for place in places if place.stage is not Stage.INCUBATING])
    grow(within, places)
    reports = [train_epoch(p, minibatches(task, p, count=20)) for p in (without, within)]
    assert within.census.live.any()
    assert (~within.census.live & (within.census.blueprint >= 0)).any()
    torch.testing.assert_close(within.body.values, without.body.values, rtol=0.0, atol=1e-9)
    for place in places:
        if place.stage is not Stage.INCUBATING:
            mine, theirs = PlainRow(within, place.row), PlainRow(without, place.row)
            pairs = zip(mine.seeds[place.slot].parameters, theirs.seeds[place.slot].parameters, strict=True)
            assert all(torch.allclose(a, b, rtol=0.0, atol=1e-9) for a, b in pairs)
    torch.testing.assert_close(reports[1].loss, reports[0].loss, rtol=0.0, atol=1e-9)
    torch.testing.assert_close(reports[1].block_grad_norm, reports[0].block_grad_norm, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("task", HOSTS)
def test_the_shadow_pass_equals_plain_torch(task: str) -> None:
    population = build(task, 6, live_units=some_lesions(task, 6))
    grow(population, assortment(population, [Stage.INCUBATING], empty=0.0))
    plain = [PlainRow(population, row) for row in range(6)]
    data = minibatches(task, population, count=10)
    report, expected = train_epoch(population, data), [train_plain(row, data) for row in plain]
    assert max(row.largest_difference(population) for row in plain) < 1e-9
    norms = torch.tensor([e.seed_grad_norm for e in expected], dtype=torch.float64)
    assert bool((norms > 0).all())
    torch.testing.assert_close(report.seed_grad_norm, norms, rtol=0.0, atol=1e-9)


def test_a_seed_beside_a_lesioned_block_gets_real_feedback() -> None:
    """Its shadow loss falls, and falls below the host's own, for every blueprint that adds."""
    population, places = incubator("digits_mlp", live_units=2)
    data = validation("digits_mlp", population)
    born = evaluate(switched_on(population, places), *data).loss
    incubate("digits_mlp", population)
    host, shadow = evaluate(population, *data).loss, evaluate(switched_on(population, places), *data).loss
    adds = torch.tensor([place.blend is not Blend.MULTIPLY for place in places])
    assert bool((shadow < born).all())
    assert (shadow < host)[adds].float().mean() > 0.9
    by_blueprint = (host - shadow).view(3, 3, 5)[:, [Blend.ADD, Blend.GATE]].mean(dim=(0, 1))
    assert bool((by_blueprint > 0.05).all())


def right_answers(population: Population, task: str) -> torch.Tensor:
    inputs, labels = validation(task, population)
    return (logits(population, inputs).argmax(dim=-1) == labels).flatten(1)


@pytest.mark.parametrize("live_units", [None, 3])
@pytest.mark.parametrize(
    ("task", "lr", "max_grad_norm"),
    [("digits_mlp", 0.05, None), ("digits_mlp", 0.14, 1.0), ("digits_cnn", 0.22, 1.0), ("text", 0.02, 1.0)],
)
def test_switching_an_incubated_seed_on_does_no_harm(
    task: str, lr: float, max_grad_norm: float | None, live_units: int | None
) -> None:
    """Validation accuracy does not fall by more than noise when alpha jumps from zero to one.

    The noise of a paired comparison: if a switch did nothing systematic, each answer whose correctness changes would be
    as likely won as lost, so the net loss over c changes has a standard deviation of sqrt(c). Three of those are the
    bound for the population. At the higher learning rate this needs the limit on gradients.
    """
    population, places = incubator(task, live_units, lr, max_grad_norm)
    incubate(task, population)
    off, on = right_answers(population, task), right_answers(switched_on(population, places), task)
    lost, changed = (off & ~on).sum() - (on & ~off).sum(), (off ^ on).sum()
    assert changed > 20
    assert lost <= 3 * sqrt(changed)
    assert (off.float().mean(dim=1) - on.float().mean(dim=1)).max() < 0.1  # and no row falls off a cliff
