"""Charts of the training: return, operations, entropies, critic, and what the detectors saw."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from esper_env import Op
from esper_env.rendering.rgb import FAINT, LINE, METRIC, OP_COLORS, WARNING

from esper_agent.diagnostics import Severity
from esper_agent.evaluation.episodes import Floats
from esper_agent.evaluation.statistics import bootstrap
from esper_agent.report.chart import DASHES, PALETTE, Chart, Note, Trace, axis, line, numbers, panel, tinted
from esper_agent.report.history import History, curves
from esper_agent.runs.action_shares import SHARE_KEY

RETURN_KEY, EVENTS_KEY, ENTROPY_KEY = "rollout/ep_rew_mean", "diagnostics/events", "train/entropy/"
STEPS_TITLE = "environment steps"
SEVERITY_COLORS = {Severity.WARNING: "#b45309", Severity.CRITICAL: WARNING}
SEVERITY_SYMBOLS = {Severity.WARNING: "triangle-up", Severity.CRITICAL: "x"}


def return_chart(histories: Sequence[History], baselines: Mapping[str, float]) -> Chart | Note:
    """The learning curve, with baselines as level lines and the detectors' events beneath it.

    Args:
        histories: the runs.
        baselines: mean return of each baseline; may be empty.
    """
    found = curves(histories, RETURN_KEY)
    if found is None:
        return Note("No learning curve: no episode has ended yet.")
    (steps, values), single = found, len(histories) == 1
    events = event_traces(histories)
    lanes = len({lane for trace in events for lane in trace["y"]})
    split = 1.0 if not events else 220 / (220 + 50 + 26 * lanes)
    axes = {"xaxis": axis(STEPS_TITLE, anchor="y2" if events else "y"), **panel(1, 1.0, 1 - split, "episode return")}
    if events:
        axes |= panel(2, 0.9 * (1 - split), 0.0, "", type="category", automargin=True)
    axes["annotations"] = [_level_name(steps, name, value) for name, value in baselines.items()]
    legend = [("mean of recent episodes" if single else "mean over runs, 95 % interval", METRIC)]
    legend += [("baselines, on held-out instances", FAINT)] if baselines else []
    words = "Beneath: what the detectors of each update reported." if events else "No detector raised an alarm."
    dotted = {"color": FAINT, "width": 1.5, "dash": "dot"}
    levels = [line(name, steps[[0, -1]], [value] * 2, FAINT, line=dotted) for name, value in baselines.items()]
    runs = [] if single else _runs_and_interval(histories, steps, values)
    traces = [*levels, *runs, line("mean", steps, values.mean(axis=0), METRIC), *events]
    return Chart("Return", words, traces, axes, 300 + 26 * lanes, tuple(legend))


def _level_name(steps: Floats, name: str, value: float) -> dict[str, Any]:
    place = {"x": float(steps[0]), "y": value, "xanchor": "left", "yanchor": "bottom", "showarrow": False}
    return place | {"text": name, "font": {"size": 12, "color": FAINT}}


def _runs_and_interval(histories: Sequence[History], steps: Floats, values: Floats) -> list[Trace]:
    _, low, high = bootstrap(np.mean, values)
    outline = {
        "type": "scatter",
        "mode": "lines",
        "x": numbers(np.concatenate([steps, steps[::-1]])),
        "y": numbers(np.concatenate([high, low[::-1]])),
        "fill": "toself",
        "fillcolor": tinted(METRIC, 0.18),
        "line": {"width": 0},
        "hoverinfo": "skip",
    }
    thin = {"width": 1, "color": LINE}
    return [outline, *(line(history.name, *history.curve(RETURN_KEY), LINE, line=thin) for history in histories)]


def event_traces(histories: Sequence[History]) -> list[Trace]:
    """A marker for each event, in a lane of its detector, one trace per severity that occurred."""
    found = [(history, event) for history in histories for row in history.rows for event in row.get(EVENTS_KEY, ())]
    return [
        _severity_trace(severity, found) for severity in Severity if any(e["severity"] == severity for _, e in found)
    ]


def _severity_trace(severity: Severity, found: Sequence[tuple[History, dict[str, Any]]]) -> Trace:
    own = [(history, event) for history, event in found if event["severity"] == severity]
    return {
        "type": "scatter",
        "mode": "markers",
        "yaxis": "y2",
        "x": [event["step"] for _, event in own],
        "y": [event["name"].replace("_", " ") for _, event in own],
        "text": [f"{event['message']}<br>{history.name}" for history, event in own],
        "marker": {"color": SEVERITY_COLORS[severity], "symbol": SEVERITY_SYMBOLS[severity], "size": 10},
        "hovertemplate": "%{x:,}: %{text}<extra>" + severity.value + "</extra>",
    }


def operations_chart(histories: Sequence[History], esper: bool) -> Chart | Note:
    """How often each value of the op head was chosen, as stacked shares."""
    found = _means(histories, SHARE_KEY)
    if not found:
        return Note("No operations: this run was recorded by a version that did not count them.")
    names = [Op(value).name.lower() if esper else str(value) for value in range(len(found))]
    colors = [OP_COLORS[Op(value)] if esper else PALETTE[value % len(PALETTE)] for value in range(len(found))]
    traces = []
    for name, color, curve in zip(names, colors, found.values(), strict=True):
        area = {"stackgroup": "share", "line": {"width": 0.5, "color": color}, "fillcolor": tinted(color, 0.75)}
        traces.append(line(name, *curve, color, **area, hovertemplate="%{x:,}: %{y:.1%}<extra>" + name + "</extra>"))
    axes = {"xaxis": axis(STEPS_TITLE), "yaxis": axis("share of decisions", range=[0, 1], tickformat=".0%")}
    words = f"What the agent chose in each rollout{_over(histories)}, while it explored."
    return Chart("Operations", words, traces, axes, 280, tuple(zip(names, colors, strict=True)))


def entropy_chart(histories: Sequence[History]) -> Chart | Note:
    """The entropy of each head where it had a choice."""
    heads = _means(histories, ENTROPY_KEY)
    if not heads:
        return Note("No entropies were recorded.")
    styles = [(PALETTE[place % len(PALETTE)], DASHES[place % len(DASHES)]) for place in range(len(heads))]
    traces = [
        line(head, *curve, color, line={"color": color, "width": 2, "dash": dash})
        for (head, curve), (color, dash) in zip(heads.items(), styles, strict=True)
    ]
    axes = {"xaxis": axis(STEPS_TITLE), "yaxis": axis("entropy", range=[0, 1.02])}
    words = f"Of each head, over the steps where it had a choice{_over(histories)}: 1 is uniform over the legal values."
    legend = tuple((head, color) for head, (color, _) in zip(heads, styles, strict=True))
    return Chart("Entropy", words, traces, axes, 280, legend)


def update_chart(histories: Sequence[History]) -> Chart | Note:
    """How well the critic predicts, and how far each update went."""
    found = _means(histories, "train/")
    if not {"explained_variance", "approx_kl"} <= set(found):
        return Note("No updates were recorded.")
    fit = found["explained_variance"]
    traces = [
        line("explained variance", *fit, PALETTE[0]),
        line("KL divergence", *found["approx_kl"], PALETTE[1], yaxis="y2"),
    ]
    axes = {
        "xaxis": axis(STEPS_TITLE, anchor="y2"),
        **panel(1, 1.0, 0.56, "critic", range=[max(min(0.0, float(np.nanmin(fit[1]))), -1.0), 1.02]),
        **panel(2, 0.44, 0.0, "KL", rangemode="tozero"),
    }
    words = f"Share of the returns' variance that the critic explains; KL divergence of each update{_over(histories)}."
    legend = (("explained variance", PALETTE[0]), ("KL divergence of the joint policy", PALETTE[1]))
    return Chart("Critic and step size", words, traces, axes, 320, legend)


def _means(histories: Sequence[History], prefix: str) -> dict[str, tuple[Floats, Floats]]:
    """Steps and means over runs of the metrics that begin so, without that beginning."""
    found = {key.removeprefix(prefix): curves(histories, key) for key in histories[0].keys(prefix)}
    return {key: (curve[0], curve[1].mean(axis=0)) for key, curve in found.items() if curve is not None}


def _over(histories: Sequence[History]) -> str:
    return "" if len(histories) == 1 else f", mean over {len(histories)} runs"
