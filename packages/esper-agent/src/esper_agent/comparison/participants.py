"""Whether those who are to take part in a comparison can, and the policies of those who do not learn."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from pkgutil import resolve_name

from esper_agent.baselines.tuned import TUNED, load_tuned, make_baseline
from esper_agent.comparison.arms import NAMES, Arm, parse_arm
from esper_agent.evaluation.episodes import Env, Policy
from esper_agent.runs.directory import RunError


def check_arms(labels: Sequence[str]) -> list[Arm]:
    """All of these, which exist, once each, and for which what they need is installed.

    Raises:
        RunError: for a name or a setting that does not exist, an arm that comes twice, or when a package is missing.
    """
    try:
        arms = [parse_arm(label) for label in labels]
        for arm in arms:
            if arm.spec:
                arm.spec.require()
            elif arm.name not in NAMES:
                own_policy(arm.name)
    except ImportError as error:
        raise RunError(str(error)) from error
    for place, arm in enumerate(arms):
        if any((other.name, other.settings) == (arm.name, arm.settings) for other in arms[:place]):
            raise RunError(f"agents is {','.join(labels)}; allowed: each only once")
    return arms


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
        allowed = "module:Class that can be imported, or name:setting=value"
        raise RunError(f"agent is {name!r}; allowed: {allowed} ({error})") from error
    if not callable(found):
        raise RunError(f"agent is {name!r}; allowed: a class or function that takes the environment")
    maker: Callable[[Env], Policy] = found
    return maker


def tuned_baseline(label: str, env_id: str, env: Env) -> Policy:
    """A policy of the user's, or a baseline with the constants tuned for an environment, or its own where none were.

    Args:
        label: of the arm; its settings take the place of constants.
        env_id: the environment's id.
        env: the environment.

    Raises:
        RunError: when it has no constants of its own, or cannot have its settings.
    """
    arm = parse_arm(label)
    if arm.name not in NAMES:
        return own_policy(arm.name)(env)
    tuned = load_tuned(env_id)["baselines"] if (TUNED / f"{env_id}.json").exists() else {}
    try:
        return make_baseline(arm.name, env, {**tuned.get(arm.name, {}), **arm.settings})
    except KeyError as error:
        known = f"{arm.name} was not tuned for {env_id}; run benchmarks/tune_controls.py --env {env_id}"
        raise RunError(known) from error
    except (TypeError, ValueError) as error:
        if not arm.settings:
            raise
        raise RunError(f"{label}: {error}") from error
