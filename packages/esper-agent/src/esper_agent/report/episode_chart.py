"""The chart of an episode: slots as swimlanes, then the metric, the reward's terms and the contributions."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from esper_env import Blend, Op, Stage
from esper_env.rendering.ansi import EMPTY_STAGES
from esper_env.rendering.rgb import FAINT, INK, METRIC, OP_COLORS, STAGE_COLORS, WARNING
from numpy.typing import NDArray

from esper_agent.evaluation.recording import Course
from esper_agent.report.chart import Chart, panels
from esper_agent.report.colors import SLOTS, term_color
from esper_agent.report.traces import DASHES, GRID, Trace, bars, label, line, markers, nth, tinted

LANE_HEIGHT, PANEL_HEIGHT = 54, 118  # pixels
LETTER = 0.75  # width of a label's letter in steps, on a phone
BAR = 0.62  # share of a lane that a full alpha fills; the rest is for the label
_OPS = {color: f" (by {op.name.lower()})" for op, color in OP_COLORS.items()}  # an operation has its stage's colour
STAGE_LEGEND = tuple(
    (stage.name.lower() + _OPS.get(color, ""), color) for stage, color in list(STAGE_COLORS.items())[1:]
)


def episode_chart(episode: Course, outcome: str) -> Chart:
    """Everything that happened in an episode, over its steps.

    Args:
        episode: what happened.
        outcome: how it ended, in words.
    """
    gains, known = _gains(episode), [name for name, values in episode.reward_terms.items() if values.any()]
    terms = {name: term_color(name) for name in known}
    axes, height = panels(
        "step",
        (LANE_HEIGHT * episode.slots, "", _lane_ticks(episode)),
        (PANEL_HEIGHT, "metric", {"range": [0, 1.02], "tickformat": ".0%"}),
        (PANEL_HEIGHT, "reward", {}),
        (PANEL_HEIGHT, "contribution", _gain_ticks(gains)),
    )
    axes["xaxis"]["range"] = [-0.5, episode.steps + 0.6]
    axes |= {"barmode": "relative", "bargap": 0, "annotations": list(_labels(episode))}
    traces = [*_lanes(episode, gains), *_metric(episode), *_rewards(episode, terms), *_contributions(gains)]
    legend = [(name.replace("_", " "), color) for name, color in terms.items()]
    legend += [(f"slot {slot}", nth(SLOTS, slot)) for slot in range(episode.slots)]
    return Chart(f"Seed {episode.seed}", outcome, traces, axes, height, legend)


def _gains(episode: Course) -> NDArray[np.float64]:
    """What each slot's seed adds to the metric or, while it trains, would add, [moments, slots]; NaN without a seed."""
    measured = np.where(episode.stage == Stage.TRAINING, episode.prospect, episode.contribution)
    return np.where(np.isin(episode.stage, EMPTY_STAGES), np.nan, measured)


def _lane_ticks(episode: Course) -> dict[str, Any]:
    names = []
    for slot, (alive, units) in enumerate(zip(episode.live_units, episode.units, strict=True)):
        lesioned = f"<br><span style='color:{WARNING}'>{alive}/{units} alive</span>" if alive < units else ""
        names.append(f"slot {slot}{lesioned}")
    places = [_floor(episode, slot) + BAR / 2 for slot in range(episode.slots)]
    ticks = {"tickvals": places, "ticktext": names, "range": [-0.06, episode.slots]}
    return ticks | {"showgrid": False, "automargin": True}


def _gain_ticks(gains: NDArray[np.float64]) -> dict[str, Any]:
    """Never so small a range that noise looks like an effect."""
    low, high = 1.1 * np.nanmin(gains, initial=0), 1.1 * np.nanmax(gains, initial=0)
    ticks = {"tickformat": "+.0%", "zeroline": True, "zerolinecolor": FAINT}
    return ticks | {"range": [min(-0.03, float(low)), max(0.1, float(high))]}


def _floor(episode: Course, slot: int) -> float:
    return float(episode.slots - 1 - slot)  # slot 0 on top


def _lanes(episode: Course, gains: NDArray[np.float64]) -> Iterator[Trace]:
    """A floor for every slot; for each stage a pale band where a slot is in it, and within it alpha as height."""
    for slot in range(episode.slots):
        ends, height = [0.5, episode.steps + 0.5], _floor(episode, slot)
        yield line(f"slot {slot}", ends, [height] * 2, GRID, width=1, tooltip="")
    for stage in Stage:
        where = _places(episode.stage[1:] == stage)
        if stage is Stage.DORMANT or not len(where):
            continue
        color, moments, alphas = STAGE_COLORS[stage], where[:, 0], episode.alpha[tuple(where.T)]
        shape = {"base": [_floor(episode, slot) for slot in where[:, 1]], "width": 1}
        words = {"text": [_describe(episode, gains, *place) for place in where], "textposition": "none"}
        yield bars("", moments, [BAR] * len(where), tinted(color, 0.25), "%{text}", **shape, **words)
        if alphas.any():
            yield bars("", moments, BAR * alphas, color, "", **shape)


def _places(flags: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Moments and slots where a flag [steps, slots] is set; the first step is moment 1."""
    places: NDArray[np.int64] = np.argwhere(flags) + np.array([1, 0])
    return places


def _blueprint(episode: Course, moment: int, slot: int) -> str:
    return episode.blueprints[int(episode.blueprint[moment, slot])].replace("_", " ")


def _describe(episode: Course, gains: NDArray[np.float64], moment: int, slot: int) -> str:
    stage = Stage(int(episode.stage[moment, slot]))
    place = f"step {moment}, slot {slot}: {stage.name}"
    if stage in EMPTY_STAGES:
        return place
    blend, alpha = Blend(int(episode.blend[moment, slot])).name.lower(), episode.alpha[moment, slot]
    gain = f"{'would add' if stage is Stage.TRAINING else 'adds'} {100 * gains[moment, slot]:+.1f} points"
    return f"{place}<br>{_blueprint(episode, moment, slot)}, {blend}, α {alpha:.2f}<br>{gain}"


def _labels(episode: Course) -> Iterator[dict[str, Any]]:
    """The blueprint's name above the place where its seed was planted, unless another one is in the way."""
    planted = ~np.isin(episode.stage, EMPTY_STAGES)
    free_from = [0.0] * episode.slots
    for moment, slot in _places(planted[1:] & ~planted[:-1]):
        name = _blueprint(episode, moment, slot)
        left = min(moment - 0.5, episode.steps + 0.5 - LETTER * len(name))
        if left >= free_from[slot]:
            free_from[slot] = left + LETTER * len(name)
            yield label(left, _floor(episode, slot) + BAR, name, INK)


def _metric(episode: Course) -> Iterator[Trace]:
    """The network's metric, that of its committed part, and a marker where something was done."""
    steps = range(episode.steps + 1)
    yield line("committed network", steps, episode.committed, FAINT, width=1.5, dash="dot", yaxis="y2")
    yield line("network", steps, episode.metric, METRIC, yaxis="y2")
    done = np.flatnonzero((episode.op != Op.WAIT) & ~episode.invalid)
    ops = [Op(int(op)) for op in episode.op[done]]
    names = [f"{op.name} slot {slot}" for op, slot in zip(ops, episode.slot[done], strict=True)]
    fallen, colors = np.flatnonzero(episode.rolled_back), [OP_COLORS[op] for op in ops]
    for moments, color, words, symbol in ((done, colors, names, "circle"), (fallen, WARNING, "rolled back", "x")):
        tooltip = "step %{x}: %{text}"
        yield markers("", moments, episode.metric[moments], color, tooltip, symbol, text=words, yaxis="y2")


def _rewards(episode: Course, terms: dict[str, str]) -> Iterator[Trace]:
    """The terms of each step's reward on top of each other, and their running sum."""
    steps = range(1, episode.steps + 1)
    for name, color in terms.items():
        values, tooltip = episode.reward_terms[name][1:], "step %{x}: %{y:+.4f}"
        yield bars(name.replace("_", " "), steps, values, color, tooltip, yaxis="y3")
    total = np.sum(list(episode.reward_terms.values()), axis=0)[1:].cumsum()
    yield line("return so far", steps, total, INK, width=1.5, yaxis="y3")


def _contributions(gains: NDArray[np.float64]) -> Iterator[Trace]:
    for slot, values in enumerate(gains.T):
        color, dash, tooltip = nth(SLOTS, slot), nth(DASHES, slot), "step %{x}: %{y:+.1%}"
        yield line(f"slot {slot}", range(len(values)), values, color, dash=dash, tooltip=tooltip, yaxis="y4")
