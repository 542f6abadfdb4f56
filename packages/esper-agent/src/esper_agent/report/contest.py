"""Agents and controls on the same held-out instances: who reaches what, at which cost."""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from esper_env import EsperVectorEnv
from esper_env.rendering.rgb import FAINT, METRIC
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from esper_agent.algorithm.checkpoint import CheckpointError, restore_checkpoint
from esper_agent.baselines.controllers import GrowEverything, NeverGrow, PlateauRule, RandomLegal
from esper_agent.baselines.paired import Episodes, Policy, make_test_env, play
from esper_agent.baselines.tuned import TUNED, load_tuned, make_controls
from esper_agent.ppo import FactoredRecurrentPPO
from esper_agent.report.chart import Chart, Note, Trace, axis, numbers
from esper_agent.report.episodes import Episode, Watched
from esper_agent.report.history import History, mean_interval
from esper_agent.runs.training import build_model

Floats = NDArray[np.float64]
NEVER = "never"
DRAWN = 4  # episodes of the first agent that are drawn


@dataclass(frozen=True)
class Contest:
    """How everyone did, and the course of the first agent's first episodes."""

    agents: dict[str, Episodes]
    controls: dict[str, Episodes]
    courses: list[Episode]

    @property
    def first(self) -> Episodes:
        """How the first agent did."""
        return next(iter(self.agents.values()))


def hold_contest(histories: Sequence[History], episodes: int, seed: int) -> Contest | Note:
    """Let the newest agent of every run, and the controls, play the same held-out episodes.

    Args:
        histories: the runs.
        episodes: how many episodes.
        seed: seed of the first episode; the next one has the next seed.
    """
    without = [str(history.run.path) for history in histories if not history.run.checkpoints()]
    if without:
        return Note(f"No episodes: {', '.join(without)} holds no checkpoint yet.")
    try:
        agents = {history.name: load_agent(history) for history in histories}
    except CheckpointError as error:  # such as of an environment that has changed since
        return Note(f"No episodes: {' '.join(str(error).split())}")
    env_id = histories[0].config.env_id
    if not all(isinstance(agent.get_env().unwrapped, EsperVectorEnv) for agent in agents.values()):
        return Note(f"No episodes: {env_id} is no Esper environment, so there are no slots to draw.")
    env = make_test_env(env_id, episodes)
    watched = Watched(env, min(DRAWN, episodes))
    first, *others = agents
    played = {first: play(agents[first], watched, seed)}
    played |= {name: play(agents[name], env, seed) for name in others}
    controls = {name: play(policy, env, seed) for name, policy in controls_of(env_id, env).items()}
    return Contest(played, controls, watched.episodes(seed))


def load_agent(history: History) -> FactoredRecurrentPPO:
    """The agent of a run's newest checkpoint."""
    model = build_model(history.config)
    restore_checkpoint(history.run.latest_checkpoint(), model)
    return model


def controls_of(env_id: str, env: VectorEnv[Any, Any, Any]) -> dict[str, Policy]:
    """The controls with the constants found for an environment, or four that do without."""
    if (TUNED / f"{env_id}.json").exists():
        return dict(make_controls(env, load_tuned(env_id)))
    return {
        NEVER: NeverGrow(env),
        "random": RandomLegal(env),
        "plateau": PlateauRule(env),
        "everything": GrowEverything(env),
    }


def contest_rows(contest: Contest) -> list[list[str]]:
    """A row per contestant: name, test accuracy, gain over never growing, added parameters, return."""
    never = contest.controls[NEVER].test_accuracy
    rows = []
    for name, result in (contest.agents | contest.controls).items():
        gain = "–" if name == NEVER else with_interval(result.test_accuracy - never)
        added, total = f"{result.added_parameters.mean():.0%}", with_interval(result.episode_return)
        rows.append([name, with_interval(result.test_accuracy), gain, added, total])
    return rows


def with_interval(values: Floats) -> str:
    """Mean and 95 % bootstrap interval, in words; a narrow table breaks the line between the two."""
    low, high = mean_interval(values)
    return f"{values.mean():.3f} [{low:.3f},\N{NO-BREAK SPACE}{high:.3f}]"


def contest_charts(contest: Contest) -> list[Chart]:
    """Test accuracy and return of everyone, with intervals over instances; the best on top."""
    everyone = contest.agents | contest.controls
    accuracies = {name: result.test_accuracy for name, result in everyone.items()}
    returns = {name: result.episode_return for name, result in everyone.items()}
    same = f"mean over {len(contest.first.test_accuracy)} held-out instances, the same for all"
    about = f"Accuracy of the committed network on data that no step reads; {same}."
    return [
        _dot_chart("Test accuracy", about, accuracies, contest.agents, tickformat=".0%"),
        _dot_chart("Return of an episode", f"Sum of the rewards; {same}.", returns, contest.agents),
    ]


def _dot_chart(title: str, about: str, scores: dict[str, Floats], agents: Container[str], **settings: str) -> Chart:
    order = sorted(scores, key=lambda name: float(scores[name].mean()))
    traces = [_dots([scores[name] for name in order], order, [METRIC if name in agents else FAINT for name in order])]
    axes = {"xaxis": axis("", **settings), "yaxis": axis("", type="category", automargin=True, showgrid=False)}
    legend = (("agent", METRIC), ("control", FAINT))
    return Chart(title, about, traces, axes, 60 + 34 * len(order), legend)


def _dots(values: list[Floats], names: list[str], colors: list[str]) -> Trace:
    means = np.array([each.mean() for each in values])
    ends = np.stack([mean_interval(each) for each in values])
    return {
        "type": "scatter",
        "mode": "markers",
        "x": numbers(means),
        "y": names,
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": numbers(ends[:, 1] - means),
            "arrayminus": numbers(means - ends[:, 0]),
            "color": FAINT,
            "thickness": 1.5,
        },
        "marker": {"color": colors, "size": 11},
        "hovertemplate": "%{y}: %{x:.3f}<extra></extra>",
    }
