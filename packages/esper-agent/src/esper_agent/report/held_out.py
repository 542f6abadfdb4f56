"""Agents and baselines on the same held-out instances: who reaches what, at which cost."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from esper_env import EsperVectorEnv
from esper_env.rendering.rgb import FAINT, METRIC

from esper_agent.algorithm.archive import CheckpointError
from esper_agent.baselines.scripted import GrowEverything, GrowOnPlateau, NeverGrow, RandomLegal
from esper_agent.baselines.tuned import TUNED, load_tuned, make_baselines
from esper_agent.evaluation.episodes import Env, Floats, Policy
from esper_agent.evaluation.paired import GrowthEpisodes, make_test_env, play
from esper_agent.evaluation.recording import Course, Recorder
from esper_agent.evaluation.statistics import mean
from esper_agent.ppo import FactoredRecurrentPPO
from esper_agent.report.chart import CATEGORIES, Chart, Note, axis
from esper_agent.report.history import History
from esper_agent.report.traces import markers, plain
from esper_agent.runs.training import load_agent as load_trained

NEVER = "never"
DRAWN = 4  # episodes of the first agent that are drawn


@dataclass(frozen=True)
class HeldOut:
    """How everyone did, and the course of the first agent's first episodes."""

    agents: dict[str, GrowthEpisodes]
    baselines: dict[str, GrowthEpisodes]
    courses: list[Course]

    @property
    def first(self) -> GrowthEpisodes:
        """How the first agent did."""
        return next(iter(self.agents.values()))

    @property
    def everyone(self) -> dict[str, GrowthEpisodes]:
        """How all did."""
        return self.agents | self.baselines


def play_held_out(histories: Sequence[History], episodes: int, seed: int, device: str | None = None) -> HeldOut | Note:
    """Let the newest agent of every run, and the baselines, play the same held-out episodes.

    Args:
        histories: the runs.
        episodes: how many episodes.
        seed: seed of the first episode; the next one has the next seed.
        device: where the agents compute; those of the runs unless given.
    """
    without = [str(history.run.path) for history in histories if not history.run.checkpoints()]
    if without:
        return Note(f"No episodes: {', '.join(without)} holds no checkpoint yet.")
    try:
        agents = {history.name: load_agent(history, device) for history in histories}
    except CheckpointError as error:  # such as of an environment that has changed since
        return Note(f"No episodes: {' '.join(str(error).split())}")
    env_id = histories[0].config.env_id
    if not all(isinstance(agent.tensor_env.env.unwrapped, EsperVectorEnv) for agent in agents.values()):
        return Note(f"No episodes: {env_id} is no Esper environment, so there are no slots to draw.")
    env = make_test_env(env_id, episodes, **histories[0].config.env)
    recorder = Recorder(env, min(DRAWN, episodes))
    watchers = {histories[0].name: [recorder]}
    played = {name: play(agent, env, seed, watchers=watchers.get(name, ())) for name, agent in agents.items()}
    baselines = {name: play(policy, env, seed) for name, policy in baselines_of(env_id, env).items()}
    return HeldOut(played, baselines, recorder.courses(seed))


def load_agent(history: History, device: str | None = None) -> FactoredRecurrentPPO:
    """The agent of a run's newest checkpoint."""
    return load_trained(history.config, history.run.latest_checkpoint(), device)


def baselines_of(env_id: str, env: Env) -> dict[str, Policy]:
    """The baselines with the constants found for an environment, or four that do without."""
    if (TUNED / f"{env_id}.json").exists():
        return dict(make_baselines(env, load_tuned(env_id)))
    kinds = {NEVER: NeverGrow, "random": RandomLegal, "plateau": GrowOnPlateau, "everything": GrowEverything}
    return {name: kind(env) for name, kind in kinds.items()}


def held_out_rows(played: HeldOut) -> list[list[str]]:
    """A row for everyone: name, test accuracy, gain over never growing, added parameters, return."""
    never = played.baselines[NEVER].test_accuracy
    rows = []
    for name, result in played.everyone.items():
        gain = "–" if name == NEVER else _with_interval(result.test_accuracy - never)
        added, total = f"{result.added_parameters.mean():.0%}", _with_interval(result.discounted_return)
        rows.append([name, _with_interval(result.test_accuracy), gain, added, total])
    return rows


def _with_interval(values: Floats) -> str:
    """A narrow table breaks the line before the interval, not within it."""
    return str(mean(values)).replace(", ", ",\N{NO-BREAK SPACE}")


def held_out_charts(played: HeldOut) -> list[Chart]:
    """Test accuracy and return of everyone, with intervals over instances; the best on top."""
    same = f"mean over {len(played.first.test_accuracy)} held-out instances, the same for all"
    about = f"Accuracy of the committed network on data that no step reads; {same}."
    return [
        _dot_chart("Test accuracy", about, played, "test_accuracy", tickformat=".0%"),
        _dot_chart("Discounted return", f"With the environment's gamma; {same}.", played, "discounted_return"),
    ]


def _dot_chart(title: str, about: str, played: HeldOut, measure: str, **settings: str) -> Chart:
    found = {name: mean(getattr(result, measure)) for name, result in played.everyone.items()}
    names = sorted(found, key=lambda name: found[name].point)
    low, points, high = np.array([(found[name].low, found[name].point, found[name].high) for name in names]).T
    reach = {"type": "data", "symmetric": False, "array": plain(high - points), "arrayminus": plain(points - low)}
    colors = [METRIC if name in played.agents else FAINT for name in names]
    dots = markers("", points, names, colors, "%{y}: %{x:.3f}", error_x=reach | {"color": FAINT, "thickness": 1.5})
    axes = {"xaxis": axis("", **settings), "yaxis": axis("", showgrid=False, **CATEGORIES)}
    return Chart(title, about, [dots], axes, 60 + 34 * len(names), [("agent", METRIC), ("baseline", FAINT)])
