"""From run directories to the page: what is read, what is played, and what goes where."""

from collections.abc import Sequence
from pathlib import Path

from esper_env.files import replace_text

from esper_agent.report.chart import Note
from esper_agent.report.episode_chart import STAGE_LEGEND, episode_chart
from esper_agent.report.held_out import HeldOut, held_out_charts, held_out_rows, play_held_out
from esper_agent.report.history import History, read_histories
from esper_agent.report.page import Section, Table, plotly_script, render
from esper_agent.report.training_charts import RETURN_KEY, entropy_chart, operations_chart, return_chart, update_chart
from esper_agent.runs.directory import RunDirectory, RunError
from esper_agent.runs.metrics import STEP_KEY
from esper_agent.runs.profiling import phase_rows

EPISODES = (
    "The first of these episodes, whatever came of them. A lane is a slot: its colour is the stage, the height of the "
    "solid part is alpha, the label is the blueprint. Beneath: the validation metric (dotted: of the committed part "
    "alone) with a dot where something was done; the terms of the reward, and their sum so far as a line; what each "
    "slot's seed adds to the metric, or would add while it trains."
)
HELD_OUT_HEADER = ("", "test accuracy", "gain over never growing", "added parameters", "discounted return")
Facts = list[tuple[str, str]]


def write_report(
    runs: Sequence[RunDirectory], path: Path, *, episodes: int, seed: int, device: str | None = None
) -> list[str]:
    """Write the page about one run, or about several runs in the same environment.

    Args:
        runs: the run directories.
        path: the file to write.
        episodes: held-out episodes that the agents and the baselines play.
        seed: seed of the first of them.
        device: where the agents compute; those of the runs unless given.

    Returns:
        What the page had to leave out, a line each.

    Raises:
        RunError: when a run cannot be read, plotly is not installed, or the page cannot be written.
    """
    script, histories = plotly_script(), read_histories(runs)
    played = play_held_out(histories, episodes, seed, device)
    sections = [training_section(histories, played), *held_out_sections(played)]
    title = f"{histories[0].config.env_id}: {', '.join(history.name for history in histories)}"
    page = render(title, facts(histories, played), sections, script)
    try:
        replace_text(path, page)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error}") from error
    left_out = [text for history in histories if (text := history.run.unreadable_metrics())]
    return left_out + [block.text for section in sections for block in section.blocks if isinstance(block, Note)]


def facts(histories: Sequence[History], played: HeldOut | Note) -> Facts:
    """What matters most, first."""
    first = histories[0]
    returns = first.curve(RETURN_KEY)[1]
    known = [
        ("environment steps", f"{first.rows[-1][STEP_KEY]:,}"),
        ("plain return, training", f"{returns[-1]:.3f}" if len(returns) else "none yet"),
    ]
    if isinstance(played, HeldOut):
        agent = played.first
        known += [
            ("test accuracy", f"{agent.test_accuracy.mean():.1%}"),
            ("discounted return, held-out", f"{agent.discounted_return.mean():.3f}"),
            ("added parameters", f"{agent.added_parameters.mean():.0%}"),
        ]
    return [*known, ("environments", str(first.config.n_envs)), ("steps per second", f"{first.rows[-1]['time/fps']:,}")]


def training_section(histories: Sequence[History], played: HeldOut | Note) -> Section:
    """How the training went."""
    known = played.baselines if isinstance(played, HeldOut) else {}
    baselines = {name: float(result.episode_return.mean()) for name, result in known.items()}
    blocks = [
        return_chart(histories, baselines),
        operations_chart(histories, esper=isinstance(played, HeldOut)),
        entropy_chart(histories),
        update_chart(histories),
    ]
    profiles = [_phase_table(history) for history in histories if phase_rows(history.run.profile_directory)]
    return Section("Training", "", [*blocks, *profiles])


def _phase_table(history: History) -> Table:
    about = f"Where the time of {history.name} went, as --profile measured it."
    return Table(("phase", "share", "per environment step"), phase_rows(history.run.profile_directory), about)


def held_out_sections(played: HeldOut | Note) -> list[Section]:
    """How the agent did beside the baselines, and the course of its first episodes."""
    if isinstance(played, Note):
        return [Section("Held-out episodes", "", [played])]
    table = Table(HELD_OUT_HEADER, held_out_rows(played), "Means with 95 % bootstrap intervals over instances.")
    courses = [episode_chart(course, _outcome(played, place)) for place, course in enumerate(played.courses)]
    return [
        Section("Held-out comparison", "", [table, *held_out_charts(played)]),
        Section("Held-out episodes", EPISODES, courses, STAGE_LEGEND),
    ]


def _outcome(played: HeldOut, place: int) -> str:
    course, agent = played.courses[place], played.first
    return (
        f"Metric {course.metric[0]:.0%} to {course.metric[-1]:.0%}; test accuracy {agent.test_accuracy[place]:.0%}, "
        f"{agent.added_parameters[place]:.0%} parameters added, return {agent.discounted_return[place]:.3f}."
    )
