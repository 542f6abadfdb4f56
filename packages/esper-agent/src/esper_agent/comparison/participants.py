"""Who can take part in a comparison: agents, which learn, and baselines, which are scripted, by name."""

from collections.abc import Sequence

from esper_agent.baselines.agents import AGENTS
from esper_agent.baselines.scripted import Baseline
from esper_agent.baselines.tuned import BASELINES, TUNED, load_tuned, make_baseline
from esper_agent.evaluation.episodes import Env
from esper_agent.runs.directory import RunError

NAMES = (*AGENTS, *BASELINES)


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
        for name in set(names) & set(AGENTS):
            AGENTS[name].require()
    except ImportError as error:
        raise RunError(str(error)) from error


def tuned_baseline(name: str, env_id: str, env: Env) -> Baseline:
    """A baseline with the constants that were tuned for an environment, or with its own where none were.

    Raises:
        RunError: when it has none of its own.
    """
    tuned = load_tuned(env_id)["baselines"] if (TUNED / f"{env_id}.json").exists() else {}
    try:
        return make_baseline(name, env, tuned.get(name, {}))
    except KeyError as error:
        raise RunError(f"{name} was not tuned for {env_id}; run benchmarks/tune_controls.py --env {env_id}") from error
