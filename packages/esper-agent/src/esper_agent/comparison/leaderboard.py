"""The leaderboard: which runs are accepted, and the table that is made of them."""

import json
from collections.abc import Iterable
from math import isfinite, isnan
from pathlib import Path
from typing import Any

from esper_agent.comparison.results import Results, read_results

LEAST_EPISODES = 128
MEASURES = ("discounted_return", "test_accuracy", "added_parameters")
PLAN = ("env_id", "agent", "seed", "steps", "episodes", "instances")
HEADER = (
    "agent",
    "seeds",
    "return (IQM)",
    "share of the oracle's gain",
    "worst seed",
    "added parameters",
    "steps",
    "esper-env",
)


def problems(run: Any) -> list[str]:
    """Why a run, as `esper-agent compare` writes it, is not accepted; nothing if it is."""
    if not isinstance(run, dict) or not all(
        isinstance(run.get(part), dict) for part in ("plan", "episodes", "versions")
    ):
        return ["it is no run: allowed: an object with plan, episodes and versions, as esper-agent compare writes it"]
    plan, episodes = run["plan"], run["episodes"]
    found = [f"plan lacks {name}" for name in PLAN if name not in plan]
    found += [f"episodes lacks {name}" for name in MEASURES if name not in episodes]
    found += [f"versions lacks {name}" for name in ("esper-env",) if name not in run["versions"]]
    if found:
        return found
    if plan["instances"] != "test":
        found.append(f"instances is {plan['instances']!r}; allowed: 'test'")
    if plan.get("env"):
        found.append(f"env is {plan['env']}; allowed: the id's own arguments")
    if plan["episodes"] < LEAST_EPISODES:
        found.append(f"episodes is {plan['episodes']}; allowed: integers from {LEAST_EPISODES} on")
    for name in MEASURES:
        values = episodes[name]
        if len(values) != plan["episodes"] or not all(isfinite(value) for value in values):
            found.append(f"{name} has not a finite number for each of the {plan['episodes']} episodes")
    return found


def check_files(files: Iterable[Path]) -> list[str]:
    """The problems of all files, each with its file's name."""
    return [f"{file}: {one}" for file in files for one in problems(json.loads(file.read_text(encoding="utf-8")))]


def table(directory: Path) -> list[list[str]]:
    """A row for everyone with runs in a directory, the best first.

    Raises:
        RunError: when there are none, or when they did not play the same instances.
    """
    results = read_results(directory)
    order = sorted(results.runs, key=lambda agent: -results.iqm(agent, MEASURES[0]).point)
    return [_row(results, agent) for agent in order]


def _row(results: Results, agent: str) -> list[str]:
    learns, estimate = agent in results.learners, results.iqm(agent, MEASURES[0])
    share, scores = results.share(estimate.point, MEASURES[0]), results.scores(agent, MEASURES[0])
    return [
        f"`{agent}`",
        str(len(scores)) if learns else "-",
        str(estimate),
        "-" if isnan(share) else f"{share:z.0%}",
        f"{scores.min():.3f}" if learns else "-",
        f"{results.scores(agent, MEASURES[2]).mean():.0%}",
        f"{results.end(agent, 'step'):,.0f}" if learns else "-",
        ", ".join(sorted({run["versions"]["esper-env"] for run in results.runs[agent]})),
    ]
