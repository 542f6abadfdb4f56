"""The baselines with the constants that were found for an environment, shipped with the package.

`python benchmarks/tune_controls.py --env ID` finds and stores them, by Optuna. Those that are shipped were found by the
search of version 0.1.0, random draws and then neighbours of the best, on train instances.
"""

import inspect
import json
from pathlib import Path
from typing import Any

from esper_agent.baselines.judging import GreedyScore, TryAndPrune
from esper_agent.baselines.oracle import Oracle
from esper_agent.baselines.planner import Planner
from esper_agent.baselines.published import (
    AutoGrow,
    GradMax,
    GrowPeriodically,
    GrowWhenUnderfitting,
    North,
    RigL,
    Senn,
    Tiny,
)
from esper_agent.baselines.schedules import FixedSchedule, Planting
from esper_agent.baselines.scripted import Baseline, GrowEverything, GrowOnPlateau, NeverGrow, RandomLegal
from esper_agent.evaluation.episodes import Env

TUNED = Path(__file__).parent / "constants"
UNTUNED: dict[str, type[Baseline]] = {"never": NeverGrow, "random": RandomLegal}
SEARCHED: dict[str, type[Baseline]] = {"planner": Planner}  # plays each instance a hundred times before it acts
PUBLISHED: dict[str, type[Baseline]] = {
    "gradmax": GradMax,
    "rigl": RigL,
    "tiny": Tiny,
    "senn": Senn,
    "north": North,
    "autogrow": AutoGrow,
    "periodic": GrowPeriodically,
    "underfitting": GrowWhenUnderfitting,
}
TUNABLE: dict[str, type[Baseline]] = {
    "grow_everything": GrowEverything,
    "plateau": GrowOnPlateau,
    "greedy": GreedyScore,
    "try_and_prune": TryAndPrune,
    **PUBLISHED,
}
BASELINES = (*UNTUNED, *TUNABLE, "fixed_schedule", "oracle", *SEARCHED)


def load_tuned(env_id: str, path: Path | None = None) -> dict[str, Any]:
    """What `tune_controls.py` found for an environment, as plain data.

    Args:
        env_id: The environment.
        path: Where it was stored; unless given, inside this package.
    """
    path = path or TUNED / f"{env_id}.json"
    if not path.exists():
        known = ", ".join(sorted(one.stem for one in TUNED.glob("*.json"))) or "none"
        tune = f"`python benchmarks/tune_controls.py --env {env_id}` makes them"
        raise ValueError(f"no tuned baselines for {env_id!r} in {path.parent}; known: {known}; {tune}")
    tuned: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return tuned


def make_baseline(name: str, env: Env, constants: dict[str, Any]) -> Baseline:
    """One of BASELINES from its constants as plain data."""
    if name not in BASELINES:
        raise ValueError(f"baseline is {name!r}; allowed: {', '.join(BASELINES)}")
    if name == "fixed_schedule":
        return FixedSchedule(env, _plantings(constants["plantings"]))
    if name == "oracle":
        return Oracle(env, {kind: _plantings(schedule) for kind, schedule in constants["table"].items()})
    return (UNTUNED | TUNABLE | SEARCHED)[name](env, **constants)


def settable(name: str) -> tuple[str, ...]:
    """The constants that a baseline may be given by name: none whose constants are a table."""
    names: list[str] = []
    for kind in (UNTUNED | TUNABLE | SEARCHED).get(name, object).__mro__:
        if kind is not object and "__init__" in vars(kind):
            taken = inspect.signature(vars(kind)["__init__"]).parameters.values()
            names += [one.name for one in taken if one.kind is one.POSITIONAL_OR_KEYWORD]
            if all(one.kind is not one.VAR_KEYWORD for one in taken):  # it passes none on to the class above
                break
    return tuple(name for name in dict.fromkeys(names) if name not in ("self", "env"))


def _plantings(schedule: list[dict[str, int]]) -> list[Planting]:
    return [Planting(**planting) for planting in schedule]


def make_baselines(env: Env, tuned: dict[str, Any]) -> dict[str, Baseline]:
    """Those of BASELINES that were tuned or need no tuning, but none that is searched, for the id of `tuned`."""
    constants = {name: {} for name in UNTUNED} | tuned["baselines"]
    return {name: make_baseline(name, env, constants[name]) for name in BASELINES if name in constants}
