"""The parts of a result: every seed by itself, and every stratum of the instances."""

from math import isnan

import numpy as np

from esper_agent.comparison.results import Results
from esper_agent.evaluation.episodes import Flags

RETURN = "discounted_return"
Rows = list[list[str]]


def seeds_table(results: Results) -> tuple[list[str], Rows]:
    """The return of every seed, the worst one named."""
    return ["agent", "worst seed", "return of every seed"], [_seeds_row(results, name) for name in results.learners]


def _seeds_row(results: Results, agent: str) -> list[str]:
    scores, seeds = results.scores(agent, RETURN), [run["plan"]["seed"] for run in results.runs[agent]]
    worst = int(np.argmin(scores))
    told = f"{scores[worst]:.3f}, seed {seeds[worst]}{percent(results.share(scores[worst], RETURN))}"
    return [agent, told, ", ".join(f"{score:.3f}" for score in scores)]


def strata_table(results: Results) -> tuple[list[str], Rows]:
    """The return in every stratum, and the share of the oracle's gain there."""
    strata = results.strata
    header = ["agent", *(f"{name} ({flags.sum()})" for name, flags in strata.items())]
    return header, [[agent, *(_cell(results, agent, of) for of in strata.values())] for agent in results.runs if strata]


def _cell(results: Results, agent: str, of: Flags) -> str:
    estimate = results.iqm(agent, RETURN, of)
    return f"{estimate}{percent(results.share(estimate.point, RETURN, of))}"


def percent(share: float) -> str:
    """A share as it follows a number; nothing where there is none."""
    return "" if isnan(share) else f", {share:z.0%}"
