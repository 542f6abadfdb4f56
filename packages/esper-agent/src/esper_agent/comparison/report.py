"""The report of a study: Markdown tables and a picture, from the files of its runs alone."""

import json
from pathlib import Path

import numpy as np
from esper_env.files import replace_text
from jinja2 import Environment, PackageLoader, StrictUndefined

from esper_agent.comparison.figure import draw
from esper_agent.comparison.parts import seeds_table, strata_table
from esper_agent.comparison.results import NEVER, ORACLE, SCORES, Results, read_results
from esper_agent.evaluation.statistics import (
    Estimate,
    difference,
    hierarchical_difference,
    hierarchical_improvement,
)

FLOPS = "training_flops"
BUDGETS = (0.25, 0.5, 0.75, 1.0)
CLOCKS = {"step": "steps", "seconds": "wall-clock time", "cpu_seconds": "CPU time"}
Rows = list[list[str]]


def write_report(directory: Path, stem: Path, command: str) -> None:
    """Write `stem`.md and `stem`.png about the finished runs of a directory.

    Args:
        directory: where the runs are.
        stem: the report's path without suffix.
        command: what made it.

    Raises:
        RunError: when there are no finished runs.
    """
    results = read_results(directory)
    picture = stem.with_name(f"{stem.name}.png")
    draw(results, picture)
    others = [agent for agent in results.runs if agent != results.ours] if results.ours else []
    here = PackageLoader("esper_agent.comparison", ".")
    templates = Environment(loader=here, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    text = templates.get_template("report.md").render(
        plan=results.plan,
        command=command,
        picture=picture.name,
        final=_final_table(results),
        differences=_differences(results, others),
        budgets=_budgets(results, others),
        seeds=seeds_table(results),
        strata=strata_table(results),
        ours=results.ours,
        settings=[[name, f"`{json.dumps(own)}`"] for name in results.runs if (own := results.settings(name))],
        versions=next(iter(results.runs.values()))[0]["versions"],
    )
    replace_text(stem.with_name(f"{stem.name}.md"), text)


def _final_table(results: Results) -> tuple[list[str], Rows]:
    with_shares = {NEVER, ORACLE} <= set(results.runs)
    shares = [f"share of the oracle's gain in {name}" for name in SCORES.values() if with_shares]
    costs = ["added parameters", *(["training GFLOPs per episode"] if results.has(FLOPS) else [])]
    header = ["agent", "seeds", *(f"{name} (IQM)" for name in SCORES.values()), *costs, *shares]
    speeds = ["steps", "steps per second", "steps per CPU-second", "minutes of training"]
    return [*header, *speeds], [_final_row(results, agent, with_shares) for agent in results.runs]


def _final_row(results: Results, agent: str, with_shares: bool) -> list[str]:
    estimates = {measure: results.iqm(agent, measure) for measure in SCORES}
    scores = [str(estimate) for estimate in estimates.values()]
    added = [f"{results.scores(agent, 'added_parameters').mean():.0%}"]
    added += [f"{results.scores(agent, FLOPS).mean() / 1e9:.3g}"] if results.has(FLOPS) else []
    shares = [f"{results.share(own.point, measure):z.0%}" for measure, own in estimates.items() if with_shares]
    if agent not in results.learners:
        return [agent, "-", *scores, *added, *shares, "-", "-", "-", "-"]
    speeds = [f"{results.speed(agent, clock):.0f}" for clock in ("seconds", "cpu_seconds")]
    steps, minutes = f"{results.end(agent, 'step'):,.0f}", f"{results.end(agent, 'seconds') / 60:.1f}"
    return [agent, str(len(results.runs[agent])), *scores, *added, *shares, steps, *speeds, minutes]


def _differences(results: Results, others: list[str]) -> tuple[list[str], Rows]:
    """Ours against each of the others at the end."""
    header = [f"{results.ours} minus", *SCORES.values(), "probability of improvement in return"]
    return header, [_difference_row(results, other) for other in others]


def _difference_row(results: Results, other: str) -> list[str]:
    ours, theirs = results.pairs(results.ours, other)
    pairs = [(results.final(results.ours, name)[ours], results.final(other, name)[theirs]) for name in SCORES]
    cells = [results.judged(results.ours, hierarchical_difference(*pair)) for pair in pairs]
    finals = [results.final(agent, "discounted_return") for agent in (results.ours, other)]
    chance = results.judged(results.ours, hierarchical_improvement(*finals))
    return [other, *(f"{cell} {cell.verdict}" for cell in cells), str(chance)]


def _budgets(results: Results, others: list[str]) -> tuple[list[str], Rows]:
    """Ours against each of the others on the way; a baseline's one score stands against ours over our steps."""
    rows = []
    for other in others:
        for clock in CLOCKS if other in results.learners else ["step"]:
            cells = [standing(results, other, clock, budget) for budget in BUDGETS]
            rows.append([other, CLOCKS[clock], *(f"{cell} {cell.verdict}" for cell in cells)])
    return [f"{results.ours} minus", "budget of", *(f"{budget:.0%}" for budget in BUDGETS)], rows


def standing(results: Results, other: str, axis: str, budget: float) -> Estimate:
    """Return of ours minus another's when both have used a share of the smaller of their two budgets."""
    ends = [results.end(agent, axis) for agent in (results.ours, other) if agent in results.learners]
    ours, theirs = results.pairs(results.ours, other)
    grid = np.array([budget * min(ends)])
    curves = [results.curve(agent, axis, "discounted_return", grid)[:, 0] for agent in (results.ours, other)]
    return difference(curves[0][ours], curves[1][theirs])
