"""Find the constants of the scripted baselines on validation instances, and store them with the package.

    python benchmarks/tune_controls.py --env Esper-v0
    python benchmarks/tune_controls.py --env Esper-v0 --settings '{"rent": 0.1}' --out tuned.json   # try other settings
    python benchmarks/tune_controls.py --env Esper-CIFAR10-v0 --rules grow_everything plateau --schedule-trials 0
    python benchmarks/tune_controls.py --env Esper-v0 --rules gradmax senn --add           # keep all others as stored

Every baseline with constants gets the same number of trials. The open-loop schedule gets more, since it has more to
choose. The oracle's trials are per kind of lesion. All maximise the discounted return, which is what agents maximise,
and play the same instances. Two further baselines, for a comparison at equal parameters, maximise validation accuracy
under the limit of what the oracle adds on average: another schedule, and grow-everything with whichever blueprint fits
into the limit. Where steps are expensive, some may be left out by --rules, and without trials for schedules these and
the two further baselines are.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from operator import attrgetter
from pathlib import Path
from typing import Any

import esper_env  # noqa: F401 (registers the environments)
import torch
from common import provenance, write_json
from esper_agent.baselines.schedules import Planting
from esper_agent.baselines.search import Found
from esper_agent.baselines.tuned import TUNABLE, TUNED, load_tuned, make_baseline
from esper_agent.baselines.tuning import (
    constants_to_try,
    search_constants,
    search_oracle,
    search_schedule,
    seed_sizes,
)
from esper_agent.evaluation.episodes import Env
from esper_agent.evaluation.paired import make_test_env, play
from esper_env import Blend

FIRST_SEED = 0  # of the validation instances
VAL_ACCURACY = attrgetter("val_accuracy")  # the committed network's, whatever it cost


def plain(schedule: Sequence[Planting]) -> list[dict[str, int]]:
    return [asdict(planting) for planting in schedule]


def report(name: str, found: Found[Any]) -> None:
    print(f"{name:<40} {found.score:.4f}  {found.best}", flush=True)


def tune_constants(env: Env, options: argparse.Namespace) -> dict[str, Any]:
    tuned = {}
    for name in options.rules:
        found = search_constants(name, env, FIRST_SEED, options.trials, options.seed)
        report(name, found)
        tuned[name] = found.best
    return tuned


def tune_schedule(env: Env, options: argparse.Namespace, name: str, **limits: Any) -> dict[str, Any]:
    found = search_schedule(env, FIRST_SEED, options.schedule_trials, options.seed, **limits)
    report(name, found)
    return {"plantings": plain(found.best)}


def tune_oracle(env: Env, options: argparse.Namespace) -> dict[str, Any]:
    table = {}
    for kind, found in search_oracle(env, FIRST_SEED, options.oracle_trials, options.seed).items():
        report(f"oracle, {kind}", found)
        table[kind] = plain(found.best)
    return {"table": table}


def tune_within(limit: float, env: Env, options: argparse.Namespace) -> dict[str, Any]:
    """Baselines that add at most `limit` parameters; grow-everything more, if its smallest blueprint does."""
    totals = seed_sizes(env).sum(axis=0)[:, Blend.ADD]
    fitting = tuple(int(kind) for kind in (totals <= limit).nonzero()[0]) or (int(totals.argmin()),)
    ungated = (int(Blend.ADD), int(Blend.MULTIPLY))
    choices = constants_to_try("grow_everything", env) | {"blueprint": fitting, "blend": ungated}
    everything = search_constants(
        "grow_everything", env, FIRST_SEED, options.trials, options.seed, objective=VAL_ACCURACY, choices=choices
    )
    report("grow_everything, equal parameters", everything)
    schedule = tune_schedule(env, options, "fixed_schedule, equal parameters", objective=VAL_ACCURACY, most_added=limit)
    return {"limit": limit, "grow_everything": everything.best, "fixed_schedule": schedule}


def tune(options: argparse.Namespace) -> dict[str, Any]:
    env = make_test_env(options.env, options.instances, **(options.settings | {"instances": "validation"}))
    baselines = tune_constants(env, options)
    if options.add:
        stored = load_tuned(options.env, options.out)
        by = stored.get("added", {}) | dict.fromkeys(options.rules, provenance())
        return stored | {"baselines": stored["baselines"] | baselines, "added": by}
    baselines["oracle"] = tune_oracle(env, options)
    tuned = {
        "environment": options.env,
        "config": asdict(env.unwrapped.config),  # type: ignore[attr-defined]
        "provenance": provenance(),
        "baselines": baselines,
    }
    if options.schedule_trials:
        baselines["fixed_schedule"] = tune_schedule(env, options, "fixed_schedule")
        oracle = play(make_baseline("oracle", env, baselines["oracle"]), env, FIRST_SEED)
        tuned["equal_parameters"] = tune_within(float(oracle.added_parameters.mean()), env, options)
    return tuned


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", required=True, help="the environment's id")
    parser.add_argument("--trials", type=int, default=24, help="candidates for each baseline with constants")
    parser.add_argument("--rules", nargs="+", choices=TUNABLE, default=list(TUNABLE), help="whose constants to tune")
    parser.add_argument("--add", action="store_true", help="tune --rules alone, and keep the others as they are stored")
    parser.add_argument("--schedule-trials", type=int, default=96, help="candidates for each schedule, or 0")
    parser.add_argument("--oracle-trials", type=int, default=48, help="candidates for each kind of lesion")
    parser.add_argument("--instances", type=int, default=64, help="validation instances that every candidate plays")
    parser.add_argument("--seed", type=int, default=0, help="of the search")
    parser.add_argument("--settings", type=json.loads, default={}, help="settings of the environment, as JSON")
    parser.add_argument("--out", type=Path, help="where to write; inside the package unless given")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of torch")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    write_json(options.out or TUNED / f"{options.env}.json", tune(options))


if __name__ == "__main__":
    main()
