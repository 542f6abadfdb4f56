"""Whether those who are to take part in a comparison can, and the policies of those who do not learn."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from pkgutil import resolve_name

from esper_agent.baselines.tuned import TUNED, load_tuned, make_baseline
from esper_agent.comparison.arms import NAMES, Arm, parse_arm
from esper_agent.evaluation.episodes import Env, Policy
from esper_agent.runs.directory import RunError, find_checkpoint
from esper_agent.runs.training import load_agent


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
            elif arm.name not in NAMES and not arm.trained:
                own_policy(arm.name)
    except ImportError as error:
        raise RunError(str(error)) from error
    for place, arm in enumerate(arms):
        if any((other.name, other.settings) == (arm.name, arm.settings) for other in arms[:place]):
            raise RunError(f"agents is {','.join(labels)}; allowed: each only once")
    return arms


def finished_policy(label: str, env_id: str, env: Env, *, trusted: bool = False) -> Policy:
    """A trained agent by its path, a policy of the user's, or a baseline, ready to play.

    Raises:
        RunError: when it is none of these, or does not suit the environment.
        CheckpointError: when a checkpoint cannot be read.
    """
    if parse_arm(label).trained:
        return trained_agent(label, env_id, env, trusted=trusted)
    return tuned_baseline(label, env_id, env)


def trained_agent(path: str, env_id: str, env: Env, *, trusted: bool = False) -> Policy:
    """The agent of a run directory's newest checkpoint, or of a checkpoint.

    Raises:
        RunError: when there is no run, or its agent was trained in another environment.
        CheckpointError: when the checkpoint cannot be read.
    """
    run, checkpoint = find_checkpoint(Path(path), trusted=trusted)
    config = run.read_config()
    if config.env_id != env_id:
        raise RunError(f"policy {path} was trained in {config.env_id}; allowed: an agent of {env_id}")
    agent = load_agent(config, checkpoint)
    known = agent.tensor_env.env
    for what, space in (("observations", "single_observation_space"), ("actions", "single_action_space")):
        if getattr(known, space) != getattr(env, space):
            raise RunError(
                f"policy {path} was trained with other {what}; allowed: the environment's arguments of its run"
            )
    return agent


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
