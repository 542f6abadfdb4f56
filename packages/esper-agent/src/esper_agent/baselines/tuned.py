"""The controls with the constants that were found for an environment, shipped with the package.

`python benchmarks/tune_controls.py --env ID` finds and stores them.
"""

import json
from pathlib import Path
from typing import Any

from esper_agent.baselines.controllers import Controller, Env, NeverGrow, RandomLegal
from esper_agent.baselines.oracle import Oracle
from esper_agent.baselines.scripted import FixedSchedule, plantings_of
from esper_agent.baselines.tuning import RULES

TUNED = Path(__file__).parent / "constants"
UNTUNED = ("never", "random")
CONTROLS = (*UNTUNED, *RULES, "fixed_schedule", "oracle")


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
        raise ValueError(f"no tuned controls for {env_id!r} in {path.parent}; known: {known}; {tune}")
    tuned: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return tuned


def make_control(name: str, env: Env, constants: dict[str, Any]) -> Controller:
    """One of CONTROLS from its constants as plain data."""
    if name in RULES:
        return RULES[name](env, **constants)
    if name == "fixed_schedule":
        return FixedSchedule(env, tuple(plantings_of(constants["plantings"])))
    if name == "oracle":
        return Oracle(env, {kind: tuple(plantings_of(schedule)) for kind, schedule in constants["table"].items()})
    if name in CONTROLS:
        return NeverGrow(env) if name == "never" else RandomLegal(env)
    raise ValueError(f"control is {name!r}; allowed: {', '.join(CONTROLS)}")


def make_controls(env: Env, tuned: dict[str, Any]) -> dict[str, Controller]:
    """Those of CONTROLS that were tuned or need no tuning, for an environment whose id `tuned` was loaded for."""
    constants = {name: {} for name in UNTUNED} | tuned["controls"]
    return {name: make_control(name, env, constants[name]) for name in CONTROLS if name in constants}
