"""Charts of the training: return, operations, entropies, critic, and what the detectors saw."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from esper_env import Op
from esper_env.rendering.rgb import FAINT, LINE, METRIC, OP_COLORS, PAPER, WARNING

from esper_agent.diagnostics import Severity
from esper_agent.evaluation.episodes import Floats
from esper_agent.evaluation.statistics import bootstrap
from esper_agent.report.chart import CATEGORIES, Chart, Note, Panel, panels
from esper_agent.report.colors import CRITIC, HEADS, KL, VALUES, WARNED
from esper_agent.report.history import History, curves
from esper_agent.report.traces import DASHES, Trace, label, line, markers, nth, tinted
from esper_agent.runs.action_shares import SHARE_KEY

RETURN_KEY, EVENTS_KEY, ENTROPY_KEY = "rollout/ep_rew_mean", "diagnostics/events", "train/entropy/"
STEPS_TITLE = "environment steps"
RETURN_HEIGHT, LABEL_HEIGHT = 244, 17  # pixels
COLUMN = 0.34  # share of the width that a label may take, on a phone
SEVERITY_MARKS = {Severity.WARNING: (WARNED, "triangle-up"), Severity.CRITICAL: (WARNING, "x")}


def return_chart(histories: Sequence[History], baselines: Mapping[str, float]) -> Chart | Note:
    """The learning curve, with baselines as level lines and the detectors' events beneath it.

    Args:
        histories: the runs.
        baselines: mean plain return of each baseline, since training logs that; may be empty.
    """
    found = curves(histories, RETURN_KEY)
    if found is None:
        return Note("No learning curve: no episode has ended yet.")
    (steps, values), single, events = found, len(histories) == 1, event_traces(histories)
    lanes: Panel = (26 * len({lane for trace in events for lane in trace["y"]}), "", CATEGORIES)
    low, high = _reach([*(history.curve(RETURN_KEY)[1] for history in histories), list(baselines.values())])
    returns: Panel = (RETURN_HEIGHT, "sum of the rewards", {"range": [low, high]})
    axes, height = panels(STEPS_TITLE, returns, *([lanes] if events else []))
    axes["annotations"] = list(_level_labels(baselines, steps, (high - low) * LABEL_HEIGHT / RETURN_HEIGHT))
    legend = [("mean of recent episodes" if single else "mean over runs, 95 % interval", METRIC)]
    legend += [("baselines, on held-out instances", FAINT)] if baselines else []
    words = "Beneath: what the detectors of each update reported." if events else "No detector raised an alarm."
    ends = steps[[0, -1]]
    levels = [line(name, ends, [value] * 2, FAINT, width=1.5, dash="dot") for name, value in baselines.items()]
    runs = [] if single else _runs_and_interval(histories, steps, values)
    traces = [*levels, *runs, line("mean", steps, values.mean(axis=0), METRIC), *events]
    return Chart("Plain return in training", words, traces, axes, height, legend)


def _reach(parts: Sequence[Floats | list[float]]) -> tuple[float, float]:
    """The range of what is shown, with room for a label above the highest."""
    everything = np.concatenate(parts)
    finite = everything[np.isfinite(everything)]
    if not len(finite):
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    room = 0.1 * max(high - low, 0.01)
    return low - room, high + room


def _level_labels(levels: Mapping[str, float], steps: Floats, least: float) -> Iterator[dict[str, Any]]:
    """The names of level lines, upwards; one that is too near to the last moves to the next free column."""
    last: list[float] = []  # label of each column
    for name, value in sorted(levels.items(), key=lambda level: level[1]):
        column = next((place for place, other in enumerate(last) if value - other >= least), len(last))
        last[column : column + 1] = [value]
        begin = steps[0] + column * COLUMN * (steps[-1] - steps[0])
        yield label(begin, value, name.replace("_", " "), FAINT) | {"bgcolor": tinted(PAPER, 0.85), "borderpad": 0}


def _runs_and_interval(histories: Sequence[History], steps: Floats, values: Floats) -> list[Trace]:
    _, low, high = bootstrap(np.mean, values)
    around = (np.concatenate([steps, steps[::-1]]), np.concatenate([high, low[::-1]]))
    band = line("", *around, METRIC, width=0, tooltip="", fill="toself", fillcolor=tinted(METRIC, 0.18))
    return [band, *(line(history.name, *history.curve(RETURN_KEY), LINE, width=1) for history in histories)]


def event_traces(histories: Sequence[History]) -> list[Trace]:
    """A marker for each event, in a lane of its detector, one trace per severity that occurred."""
    events = [(event, history) for history in histories for row in history.rows for event in row.get(EVENTS_KEY, ())]
    traces = []
    for severity, (color, symbol) in SEVERITY_MARKS.items():
        own = [(event, history.name) for event, history in events if event["severity"] == severity]
        steps, lanes = [event["step"] for event, _ in own], [event["name"].replace("_", " ") for event, _ in own]
        words = [f"{event['message']}<br>{name}" for event, name in own]
        found = markers(severity.value, steps, lanes, color, "%{x:,}: %{text}", symbol, text=words, yaxis="y2")
        traces += [found] if own else []
    return traces


def operations_chart(histories: Sequence[History], esper: bool) -> Chart | Note:
    """How often each value of the op head was chosen, as stacked shares."""
    found = _means(histories, SHARE_KEY)
    if not found:
        return Note("No operations: this run was recorded by a version that did not count them.")
    traces = []
    for value, curve in enumerate(found.values()):
        name, color = (Op(value).name.lower(), OP_COLORS[Op(value)]) if esper else (str(value), nth(VALUES, value))
        area = {"stackgroup": "share", "fillcolor": tinted(color, 0.75)}
        traces.append(line(name, *curve, color, width=0.5, tooltip="%{x:,}: %{y:.1%}", **area))
    words = f"What the agent chose in each rollout{_over(histories)}, while it explored."
    return _lines("Operations", words, traces, (224, "share of decisions", {"range": [0, 1], "tickformat": ".0%"}))


def entropy_chart(histories: Sequence[History]) -> Chart | Note:
    """The entropy of each head where it had a choice."""
    heads = enumerate(_means(histories, ENTROPY_KEY).items())
    traces = [line(head, *curve, nth(HEADS, place), dash=nth(DASHES, place)) for place, (head, curve) in heads]
    if not traces:
        return Note("No entropies were recorded.")
    words = f"Of each head, over the steps where it had a choice{_over(histories)}: 1 is uniform over the legal values."
    return _lines("Entropy", words, traces, (224, "entropy", {"range": [0, 1.02]}))


def update_chart(histories: Sequence[History]) -> Chart | Note:
    """How well the critic predicts, and how far each update went."""
    found = _means(histories, "train/")
    if not {"explained_variance", "approx_kl"} <= set(found):
        return Note("No updates were recorded.")
    fit, kl = found["explained_variance"], found["approx_kl"]
    traces = [
        line("explained variance", *fit, CRITIC),
        line("KL divergence of the joint policy", *kl, KL, yaxis="y2"),
    ]
    critic: Panel = (115, "critic", {"range": [max(min(0.0, float(np.nanmin(fit[1]))), -1.0), 1.02]})
    words = f"Share of the returns' variance that the critic explains; KL divergence of each update{_over(histories)}."
    return _lines("Critic and step size", words, traces, critic, (115, "KL", {"rangemode": "tozero"}))


def _lines(title: str, words: str, traces: list[Trace], *parts: Panel) -> Chart:
    """Lines over the steps of the training, named by the legend."""
    return Chart(
        title, words, traces, *panels(STEPS_TITLE, *parts), [(one["name"], one["line"]["color"]) for one in traces]
    )


def _means(histories: Sequence[History], prefix: str) -> dict[str, tuple[Floats, Floats]]:
    """Steps and means over runs of the metrics that begin so, without that beginning."""
    found = {key.removeprefix(prefix): curves(histories, key) for key in histories[0].keys(prefix)}
    return {key: (curve[0], curve[1].mean(axis=0)) for key, curve in found.items() if curve is not None}


def _over(histories: Sequence[History]) -> str:
    return "" if len(histories) == 1 else f", mean over {len(histories)} runs"
