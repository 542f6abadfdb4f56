"""Who can take part in a comparison: agents, which learn, and baselines, which are scripted, by name."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from pkgutil import resolve_name

from esper_agent.baselines.agents import AGENTS
from esper_agent.baselines.tuned import BASELINES, TUNED, load_tuned, make_baseline
from esper_agent.evaluation.episodes import Env, Policy
from esper_agent.runs.directory import RunError

NAMES = (*AGENTS, *BASELINES)


def check_names(names: Sequence[str]) -> None:
    """Check that all of these exist, once each, and that what they need is installed.

    Raises:
        RunError: for a name that does not exist or comes twice, or when a package is missing.
    """
    for place, name in enumerate(names):
        if ":" in name:
            own_policy(name)
        elif name not in NAMES:
            raise RunError(f"agent is {name!r}; allowed: {', '.join(NAMES)}, or module:Class of your own")
        if name in names[:place]:
            raise RunError(f"agents is {','.join(names)}; allowed: each only once")
    try:
        for name in set(names) & set(AGENTS):
            AGENTS[name].require()
    except ImportError as error:
        raise RunError(str(error)) from error


def own_policy(name: str) -> Callable[[Env], Policy]:
    """What `module:Class` names, looked for in the working directory too: given the environment, it makes a policy.

    Raises:
        RunError: when it cannot be imported or called.
    """
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        found = resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise RunError(f"agent is {name!r}; allowed: module:Class that can be imported ({error})") from error
    if not callable(found):
        raise RunError(f"agent is {name!r}; allowed: a class or function that takes the environment")
    maker: Callable[[Env], Policy] = found
    return maker


def tuned_baseline(name: str, env_id: str, env: Env) -> Policy:
    """A policy of the user's, or a baseline with the constants tuned for an environment, or its own where none were.

    Raises:
        RunError: when it has none of its own.
    """
    if ":" in name:
        return own_policy(name)(env)
    tuned = load_tuned(env_id)["baselines"] if (TUNED / f"{env_id}.json").exists() else {}
    try:
        return make_baseline(name, env, tuned.get(name, {}))
    except KeyError as error:
        raise RunError(f"{name} was not tuned for {env_id}; run benchmarks/tune_controls.py --env {env_id}") from error
