"""Who can take part in a comparison: recipes of learning agents and scripted controls, by name."""

from collections.abc import Sequence
from typing import Any

from gymnasium.vector import VectorEnv

from esper_agent.baselines.controllers import Controller
from esper_agent.baselines.recipes import RECIPES
from esper_agent.baselines.tuned import CONTROLS, TUNED, load_tuned, make_control
from esper_agent.runs.directory import RunError

NAMES = (*RECIPES, *CONTROLS)


def check_names(names: Sequence[str]) -> None:
    """Check that all of these exist, once each, and that what they need is installed.

    Raises:
        RunError: for a name that does not exist or comes twice, or when a package is missing.
    """
    for place, name in enumerate(names):
        if name not in NAMES:
            raise RunError(f"agent is {name!r}; allowed: {', '.join(NAMES)}")
        if name in names[:place]:
            raise RunError(f"agents is {','.join(names)}; allowed: each only once")
    try:
        for name in set(names) & set(RECIPES):
            RECIPES[name].require()
    except ImportError as error:
        raise RunError(str(error)) from error


def control(name: str, env_id: str, env: VectorEnv[Any, Any, Any]) -> Controller:
    """A scripted control with the constants that were tuned for an environment, or with its own where none were.

    Raises:
        RunError: when it has none of its own.
    """
    tuned = load_tuned(env_id)["controls"] if (TUNED / f"{env_id}.json").exists() else {}
    try:
        return make_control(name, env, tuned.get(name, {}))
    except KeyError as error:
        raise RunError(f"{name} was not tuned for {env_id}; run benchmarks/tune_controls.py --env {env_id}") from error
