"""Settings of every learning agent for an environment, by random search on train instances.

    python benchmarks/tune_agents.py --env Esper-v0 --trials 16 --steps 60000 --jobs 2

Every recipe gets the same number of trials: the first one is its defaults, the others are drawn from its search space
with a fixed seed. A trial trains from scratch, with seeds that no comparison uses, and is scored by its mean discounted
return over the same train instances. The best settings and all trials go to the JSON file that recipes read. Finished
trials are kept in --work and not repeated.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from common import command_line, write_json
from esper_agent.baselines.recipes import RECIPES, TUNED
from esper_agent.comparison.command import names
from esper_agent.comparison.contestants import check_names
from esper_agent.comparison.processes import run_plans
from esper_agent.comparison.run import Plan
from esper_agent.runs.directory import RunError

FIRST_SEED = 1_000
TUNABLE = tuple(name for name, recipe in RECIPES.items() if recipe.tuned_as is None)

NUMBERS = {
    "trials": (16, "settings that are tried for each agent"),
    "steps": (60_000, "environment steps of a trial"),
    "seeds": (1, "trainings of each trial"),
    "rows": (64, "environments side by side while training"),
    "episodes": (128, "train instances that a trial is scored by"),
    "jobs": (1, "trainings at a time, one thread each"),
}


def plans_of(options: argparse.Namespace, name: str) -> list[dict[Path, Plan]]:
    """The runs of each trial of a recipe, by the file of their result."""
    trials = []
    for trial, settings in enumerate(RECIPES[name].candidates(options.trials)):
        rollout = options.rows * settings["n_steps"]
        steps = max(options.steps // rollout, 1) * rollout
        terms = (steps, options.rows, options.episodes, 1, settings, "train")
        files = [options.work / f"{name}_trial{trial}_seed{seed}.json" for seed in range(options.seeds)]
        trials.append({file: Plan(options.env, name, FIRST_SEED + seed, *terms) for seed, file in enumerate(files)})
    return trials


def judge(trials: list[dict[Path, Plan]]) -> dict[str, Any]:
    """The trial with the highest return, and all of them."""
    judged: list[dict[str, Any]] = []
    for trial in trials:
        ends = [json.loads(file.read_text(encoding="utf-8"))["curve"][-1] for file in trial]
        score = round(float(np.mean([end["discounted_return"] for end in ends])), 4)
        seconds = round(float(np.mean([end["seconds"] for end in ends])), 1)
        judged.append({"settings": next(iter(trial.values())).settings, "return": score, "seconds": seconds})
    best = max(judged, key=lambda trial: trial["return"])
    return {"settings": best["settings"], "return": best["return"], "trials": judged}


def store(options: argparse.Namespace, judged: dict[str, Any]) -> None:
    """Write what was found; recipes that were left out keep what they have."""
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
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the settings go (the file that recipes read)")
    options = parser.parse_args()
    if not set(options.agents) <= set(TUNABLE):
        parser.error(f"--agents is {','.join(options.agents)}; allowed: {', '.join(TUNABLE)}")
    options.work = options.work or Path("runs") / f"tune_agents_{options.env}"
    options.json = options.json or TUNED / f"{options.env}.json"
    try:
        check_names(options.agents)
        trials = {name: plans_of(options, name) for name in options.agents}
        # Trial by trial, so that a change of the machine's load meets all recipes alike.
        rounds = [trial for same_number in zip(*trials.values(), strict=True) for trial in same_number]
        run_plans({file: plan for trial in rounds for file, plan in trial.items()}, options.jobs)
    except RunError as error:
        sys.exit(f"tune_agents.py: error: {error}")
    judged = {name: judge(trials[name]) for name in options.agents}
    store(options, judged)
    for name, result in judged.items():
        print(f"{name}: return {result['return']:.3f} with {result['settings']}")


if __name__ == "__main__":
    main()
