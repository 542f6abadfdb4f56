"""Settings of every agent for an environment, by a search on train instances.

    python benchmarks/tune_agents.py --env Esper-v0 --trials 16 --steps 60000 --jobs 2

Every agent gets the same number of trials: the first one is its defaults, the others are what Optuna's TPE sampler
proposes with a fixed seed. A trial trains from scratch, with seeds that no comparison uses, and is scored by its mean
discounted return over the same train instances. The best settings and all trials go to the JSON file that comparisons
read. Finished trials are kept in --work and not repeated.
"""

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from common import command_line, write_json
from esper_agent.baselines.agents import AGENTS, TUNED
from esper_agent.baselines.tuning import settings_search
from esper_agent.comparison.command import names
from esper_agent.comparison.participants import check_arms
from esper_agent.comparison.processes import run_plans
from esper_agent.comparison.run import Plan
from esper_agent.runs.directory import RunError

FIRST_SEED = 1_000
TUNABLE = tuple(name for name, spec in AGENTS.items() if spec.tuned_as is None)

NUMBERS = {
    "trials": (16, "settings that are tried for each agent"),
    "steps": (60_000, "environment steps of a trial"),
    "seeds": (1, "trainings of each trial"),
    "rows": (64, "environments side by side while training"),
    "episodes": (128, "train instances that a trial is scored by"),
    "jobs": (1, "trainings at a time, one thread each"),
}


def plans_of(options: argparse.Namespace, name: str, trial: int, settings: dict[str, Any]) -> dict[Path, Plan]:
    """The runs of a trial, by the file of their result."""
    rollout = options.rows * settings["n_steps"]
    terms = (max(options.steps // rollout, 1) * rollout, options.rows, options.episodes, 1, settings, "train")
    files = [options.work / f"{name}_trial{trial}_seed{seed}.json" for seed in range(options.seeds)]
    return {file: Plan(options.env, name, FIRST_SEED + seed, *terms) for seed, file in enumerate(files)}


def judge(files: Iterable[Path], settings: dict[str, Any]) -> dict[str, Any]:
    """How a trial did."""
    ends = [json.loads(file.read_text(encoding="utf-8"))["curve"][-1] for file in files]
    score, seconds = (float(np.mean([end[name] for end in ends])) for name in ("discounted_return", "seconds"))
    return {"settings": settings, "return": round(score, 4), "seconds": round(seconds, 1)}


def tune(options: argparse.Namespace) -> dict[str, Any]:
    """All trials of all agents, trial by trial, so that a change of the machine's load meets all agents alike."""
    searches = {name: settings_search(AGENTS[name]) for name in options.agents}
    trials: dict[str, list[dict[str, Any]]] = {name: [] for name in options.agents}
    for trial in range(options.trials):
        asked = {name: search.ask() for name, search in searches.items()}
        plans = {name: plans_of(options, name, trial, settings) for name, settings in asked.items()}
        run_plans({file: plan for own in plans.values() for file, plan in own.items()}, options.jobs)
        for name, search in searches.items():
            trials[name].append(judge(plans[name], asked[name]))
            search.tell(trials[name][-1]["return"])
    best = {name: max(own, key=lambda trial: trial["return"]) for name, own in trials.items()}
    return {
        name: {"settings": best[name]["settings"], "return": best[name]["return"], "trials": own}
        for name, own in trials.items()
    }


def store(options: argparse.Namespace, judged: dict[str, Any]) -> None:
    """Write what was found; agents that were left out keep what they have."""
    before = json.loads(options.json.read_text(encoding="utf-8"))["agents"] if options.json.exists() else {}
    terms = {name: getattr(options, name) for name in ("env", "trials", "steps", "seeds", "rows", "episodes")}
    write_json(options.json, {"command": command_line(), **terms, "agents": {**before, **judged}})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", required=True, metavar="ID", help="id of an Esper environment")
    parser.add_argument(
        "--agents", type=names, default=TUNABLE, metavar="NAME,...", help=f"whose settings ({', '.join(TUNABLE)})"
    )
    for name, (default, meaning) in NUMBERS.items():
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{meaning} ({default})")
    parser.add_argument("--work", type=Path, metavar="DIR", help="where finished trials stay (runs/tune_agents_<ID>)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the settings go (what comparisons read)")
    options = parser.parse_args()
    if not set(options.agents) <= set(TUNABLE):
        parser.error(f"--agents is {','.join(options.agents)}; allowed: {', '.join(TUNABLE)}")
    options.work = options.work or Path("runs") / f"tune_agents_{options.env}"
    options.json = options.json or TUNED / f"{options.env}.json"
    try:
        check_arms(options.agents)
        judged = tune(options)
    except RunError as error:
        sys.exit(f"tune_agents.py: error: {error}")
    store(options, judged)
    for name, result in judged.items():
        print(f"{name}: return {result['return']:.3f} with {result['settings']}")


if __name__ == "__main__":
    main()
