"""The report of a study: Markdown tables and a picture, from the files of its runs alone."""

import json
from pathlib import Path

import numpy as np
from esper_env.files import replace_text

from esper_agent.comparison.figure import draw
from esper_agent.comparison.results import SCORES, Results, read_results
from esper_agent.evaluation.statistics import Estimate, difference, improvement, interquartile_mean, iqm

OURS, NEVER, ORACLE = "ours", "never", "oracle"
BUDGETS = (0.25, 0.5, 0.75, 1.0)
CLOCKS = {"step": "steps", "seconds": "wall-clock time", "cpu_seconds": "CPU time"}
METHOD = """\
Every run has a process and a thread to itself. An agent is evaluated by playing the same {episodes} held-out
instances with its most likely actions; the clock stands still meanwhile. Return is discounted with the environment's
gamma: that is what agents maximise, and shaping drops out of it. Test accuracy is that of the committed network on the
split that no step reads. The trained agent is the unit of replication: intervals are 95 % over seeds, for the instances
played. Interquartile means and probabilities of improvement come with a stratified bootstrap, as in rliable,
differences (seed by seed, on the same instances) with Student's interval. A baseline learns nothing and plays once."""
HOW_TO_READ_BUDGETS = """\
Difference in return when both have used this share of a budget: of the steps, or of the seconds that the faster of the
two took for all its steps. `ahead` and `behind` are said where the interval excludes 0, `open` where it does not."""


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
    replace_text(stem.with_name(f"{stem.name}.md"), _document(results, command, picture.name))


def _document(results: Results, command: str, picture: str) -> str:
    plan = results.plan
    terms = f"{plan['rows']} rows, {plan['evaluations']} evaluations; steps by agent below"
    versions = ", ".join(
        f"{name} {number}" for name, number in next(iter(results.runs.values()))[0]["versions"].items()
    )
    parts = [
        f"# Agents compared on {plan['env_id']}",
        f"Made by `{command}`: {terms}.\n\n{METHOD.format(episodes=plan['episodes'])}",
        _table(*_final_table(results)),
        f"![Learning curves, final scores and profiles]({picture})",
        *_sections_about_ours(results),
        "## Settings\n\n" + _table(["agent", "settings"], _settings(results)),
        f"Versions: {versions}.",
    ]
    return "\n\n".join(parts) + "\n"


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _final_table(results: Results) -> tuple[list[str], list[list[str]]]:
    with_shares = {NEVER, ORACLE} <= set(results.runs)
    shares = [f"share of the oracle's gain in {name}" for name in SCORES.values() if with_shares]
    header = ["agent", "seeds", *(f"{name} (IQM)" for name in SCORES.values()), "added parameters", *shares]
    speeds = ["steps", "steps per second", "steps per CPU-second", "minutes of training"]
    return [*header, *speeds], [_final_row(results, agent, with_shares) for agent in results.runs]


def _final_row(results: Results, agent: str, with_shares: bool) -> list[str]:
    scores = [str(iqm(results.scores(agent, measure))) for measure in SCORES]
    added = f"{results.scores(agent, 'added_parameters').mean():.0%}"
    shares = [f"{oracle_share(results, agent, measure):.0%}" for measure in SCORES if with_shares]
    if agent not in results.learners:
        return [agent, "-", *scores, added, *shares, "-", "-", "-", "-"]
    speeds = [f"{results.speed(agent, clock):.0f}" for clock in ("seconds", "cpu_seconds")]
    steps, minutes = f"{results.end(agent, 'step'):,.0f}", f"{results.end(agent, 'seconds') / 60:.1f}"
    return [agent, str(len(results.runs[agent])), *scores, added, *shares, steps, *speeds, minutes]


def oracle_share(results: Results, agent: str, measure: str) -> float:
    """How much of the oracle's gain over never growing an agent reaches, by interquartile means."""
    own, never, oracle = (float(interquartile_mean(results.scores(name, measure))) for name in (agent, NEVER, ORACLE))
    return (own - never) / (oracle - never) if oracle != never else float("nan")


def _sections_about_ours(results: Results) -> list[str]:
    """Ours against each of the others, at the end and on the way."""
    others = [agent for agent in results.runs if agent != OURS]
    if OURS not in results.runs or not others:
        return []
    names = [*SCORES.values(), "probability of improvement in return"]
    final = _table(["ours minus", *names], [_difference_row(results, other) for other in others])
    ahead = _table(
        ["ours minus", "budget of", *(f"{budget:.0%}" for budget in BUDGETS)],
        [_budget_row(results, other, axis) for other in others for axis in _axes(results, other)],
    )
    return [
        f"## Ours minus the others, at the end\n\n{final}",
        f"## Who is ahead on the way\n\n{HOW_TO_READ_BUDGETS}\n\n{ahead}",
    ]


def _difference_row(results: Results, other: str) -> list[str]:
    ours, theirs = results.pairs(OURS, other)
    pairs = [(results.scores(OURS, measure)[ours], results.scores(other, measure)[theirs]) for measure in SCORES]
    cells = [difference(*pair) for pair in pairs]
    chance = improvement(results.scores(OURS, "discounted_return"), results.scores(other, "discounted_return"))
    return [other, *(f"{cell} {cell.verdict}" for cell in cells), str(chance)]


def _axes(results: Results, other: str) -> list[str]:
    """A baseline takes no steps: its one score stands against ours over our steps and seconds alike."""
    return list(CLOCKS) if other in results.learners else ["step"]


def _budget_row(results: Results, other: str, axis: str) -> list[str]:
    cells = [standing(results, other, axis, budget) for budget in BUDGETS]
    return [other, CLOCKS[axis], *(f"{cell} {cell.verdict}" for cell in cells)]


def standing(results: Results, other: str, axis: str, budget: float) -> Estimate:
    """Return of ours minus another's when both have used a share of the smaller of their two budgets."""
    ends = [results.end(agent, axis) for agent in (OURS, other) if agent in results.learners]
    ours, theirs = results.pairs(OURS, other)
    grid = np.array([budget * min(ends)])
    curves = [results.curve(agent, axis, "discounted_return", grid)[:, 0] for agent in (OURS, other)]
    return difference(curves[0][ours], curves[1][theirs])


def _settings(results: Results) -> list[list[str]]:
    return [[agent, f"`{json.dumps(results.runs[agent][0]['plan']['settings'])}`"] for agent in results.learners]
