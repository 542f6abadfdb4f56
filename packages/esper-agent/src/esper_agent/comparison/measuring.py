"""One trained agent beside never growing and the oracle, on the same instances that no training saw."""

from typing import Any

from esper_env import EsperVectorEnv

from esper_agent.algorithm.environments import make_vector_env
from esper_agent.comparison.participants import tuned_baseline
from esper_agent.evaluation.episodes import play_episodes
from esper_agent.evaluation.paired import make_test_env, play
from esper_agent.ppo import FactoredRecurrentPPO
from esper_agent.runs.directory import RunConfig, RunError

REFERENCES = ("never", "oracle")
MOST_ROWS = 16  # of an environment without instances
Means = dict[str, float]


def measure(
    model: FactoredRecurrentPPO, config: RunConfig, instances: str, episodes: int, seed: int, *, deterministic: bool
) -> dict[str, Means]:
    """The means of every measure, of the agent and, in an Esper environment, of the references.

    Args:
        model: the agent.
        config: the settings of its run.
        instances: which set episodes are drawn from.
        episodes: how many.
        seed: seed of the first; the next one has the next seed.
        deterministic: take the most likely actions.
    """
    if not isinstance(model.tensor_env.env.unwrapped, EsperVectorEnv):
        env = make_vector_env(config.env_id, min(episodes, MOST_ROWS), str(model.device), **config.env)
        played = play_episodes(model, env, episodes, seed, deterministic)
        names = ("discounted_return", "episode_return", "length")
        return {"agent": {name: float(getattr(played, name).mean()) for name in names}}
    settings: dict[str, Any] = {"device": str(model.device), **config.env, "instances": instances}
    paired = make_test_env(config.env_id, episodes, **settings)
    found = {"agent": play(model, paired, seed, deterministic).means()}
    for name in REFERENCES:
        try:
            found[name] = play(tuned_baseline(name, config.env_id, paired), paired, seed).means()
        except (RunError, ValueError):  # an environment for which no oracle was tuned
            continue
    return found


def table(found: dict[str, Means]) -> str:
    """The measures that matter most, a line for each."""
    if "test_accuracy" not in found["agent"]:
        lines = [f"{name.replace('_', ' ')} {value:.3f}" for name, value in found["agent"].items()]
        return ", ".join(lines)
    header = f"{'':<8}{'discounted return':>19}{'test metric':>13}{'added parameters':>18}"
    rows = [
        f"{name:<8}{means['discounted_return']:>19.3f}{means['test_accuracy']:>13.3f}{means['added_parameters']:>18.1%}"
        for name, means in found.items()
    ]
    return "\n".join([header, *rows])
