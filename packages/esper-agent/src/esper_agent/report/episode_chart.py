"""The chart of an episode: slots as swimlanes, then the metric, the reward's terms and the contributions."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from esper_env import Blend, Op, Stage
from esper_env.rendering.ansi import EMPTY_STAGES
from esper_env.rendering.rgb import FAINT, INK, METRIC, OP_COLORS, PAPER, STAGE_COLORS, WARNING
from numpy.typing import NDArray

from esper_agent.evaluation.recording import Course
from esper_agent.report.chart import DASHES, GRID, PALETTE, Chart, Trace, axis, line, numbers, panel, tinted

LANE_HEIGHT, PANEL_HEIGHT, GAP = 54, 118, 34  # pixels
TERM_COLORS = ("#334155", "#db2777", "#0284c7", "#a16207", "#65a30d", "#7e22ce", "#b91c1c", "#0d9488")
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
    heights = [LANE_HEIGHT * episode.slots, PANEL_HEIGHT, PANEL_HEIGHT, PANEL_HEIGHT]
    tops, total = _tops(heights)
    titles = ("", "metric", "reward", "contribution")
    axes: dict[str, Any] = {
        "xaxis": axis("step", range=[-0.5, episode.steps + 0.6], anchor="y4"),
        "barmode": "relative",
        "bargap": 0,
    }
    for number, (top, height, title) in enumerate(zip(tops, heights, titles, strict=True), start=1):
        axes |= panel(number, top, top - height / total, title)
    axes["yaxis"] |= {**_lane_ticks(episode), "range": [-0.06, episode.slots], "showgrid": False, "automargin": True}
    axes["yaxis2"] |= {"range": [0, 1.02], "tickformat": ".0%"}
    axes["yaxis4"] |= {"tickformat": "+.0%", "zeroline": True, "zerolinecolor": FAINT, "range": _gain_range(episode)}
    axes["annotations"] = list(_labels(episode))
    terms = {name: values for name, values in episode.reward_terms.items() if values.any()}
    colors = {name: TERM_COLORS[place % len(TERM_COLORS)] for place, name in enumerate(terms)}
    traces = [*_lanes(episode), *_metric(episode), *_rewards(episode, colors), *_contributions(episode)]
    legend = [(name.replace("_", " "), color) for name, color in colors.items()]
    legend += [(f"slot {slot}", PALETTE[slot % len(PALETTE)]) for slot in range(episode.slots)]
    return Chart(f"Seed {episode.seed}", outcome, traces, axes, round(total + 56), tuple(legend))


def _tops(heights: list[int]) -> tuple[list[float], float]:
    """Where each panel begins, as a share of the height from below, and the height in pixels."""
    total = float(sum(heights) + GAP * (len(heights) - 1))
    above = [sum(heights[:place]) + GAP * place for place in range(len(heights))]
    return [1 - pixels / total for pixels in above], total


def _lane_ticks(episode: Course) -> dict[str, Any]:
    names = []
    for slot in range(episode.slots):
        alive, units = episode.live_units[slot], episode.units[slot]
        lesioned = f"<br><span style='color:{WARNING}'>{alive}/{units} alive</span>" if alive < units else ""
        names.append(f"slot {slot}{lesioned}")
    return {"tickvals": [_floor(episode, slot) + BAR / 2 for slot in range(episode.slots)], "ticktext": names}


def _floor(episode: Course, slot: int) -> float:
    return float(episode.slots - 1 - slot)  # slot 0 on top


def _lanes(episode: Course) -> Iterator[Trace]:
    """A floor for every slot; for each stage a pale band where a slot is in it, and within it alpha as height."""
    floor = {"color": GRID, "width": 1}
    for slot in range(episode.slots):
        ends, height = [0.5, episode.steps + 0.5], _floor(episode, slot)
        yield line(f"slot {slot}", ends, [height] * 2, GRID, line=floor, hoverinfo="skip", hovertemplate=None)
    for stage in Stage:
        where = _places(episode.stage[1:] == stage)
        if stage is Stage.DORMANT or not len(where):
            continue
        color, floors = STAGE_COLORS[stage], [_floor(episode, slot) for _, slot in where]
        alphas = [float(episode.alpha[moment, slot]) for moment, slot in where]
        band = {"type": "bar", "x": where[:, 0].tolist(), "base": floors, "width": 1, "name": stage.name}
        yield band | {
            "y": [BAR] * len(where),
            "marker": {"color": tinted(color, 0.25), "line": {"width": 0}},
            "text": [_describe(episode, moment, slot) for moment, slot in where],
            "textposition": "none",
            "hovertemplate": "%{text}<extra></extra>",
        }
        if any(alphas):
            yield band | {
                "y": numbers([BAR * alpha for alpha in alphas]),
                "marker": {"color": color, "line": {"width": 0}},
                "hoverinfo": "skip",
            }


def _places(flags: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Moments and slots where a flag [steps, slots] is set; the first step is moment 1."""
    places: NDArray[np.int64] = np.argwhere(flags) + np.array([1, 0])
    return places


def _describe(episode: Course, moment: int, slot: int) -> str:
    stage = Stage(int(episode.stage[moment, slot]))
    place = f"step {moment}, slot {slot}: {stage.name}"
    if stage in EMPTY_STAGES:
        return place
    seed = episode.blueprints[episode.blueprint[moment, slot]].replace("_", " ")
    blend, alpha = Blend(int(episode.blend[moment, slot])).name.lower(), episode.alpha[moment, slot]
    gain = f"{'would add' if stage is Stage.TRAINING else 'adds'} {100 * _gains(episode)[moment, slot]:+.1f} points"
    return f"{place}<br>{seed}, {blend}, α {alpha:.2f}<br>{gain}"


def _labels(episode: Course) -> Iterator[dict[str, Any]]:
    """The blueprint's name above the place where its seed was planted, unless another one is in the way."""
    planted = ~np.isin(episode.stage, EMPTY_STAGES)
    free_from = dict.fromkeys(range(episode.slots), 0.0)
    for moment, slot in _places(planted[1:] & ~planted[:-1]):
        name = episode.blueprints[episode.blueprint[moment, slot]].replace("_", " ")
        left = min(moment - 0.5, episode.steps + 0.5 - LETTER * len(name))
        if left >= free_from[slot]:
            free_from[slot] = left + LETTER * len(name)
            place = {"x": left, "y": _floor(episode, slot) + BAR, "xanchor": "left", "yanchor": "bottom"}
            yield place | {"text": name, "showarrow": False, "font": {"size": 12, "color": INK}}


def _metric(episode: Course) -> Iterator[Trace]:
    """The network's metric, that of its committed part, and a marker where something was done."""
    steps = range(episode.steps + 1)
    dotted = {"color": FAINT, "width": 1.5, "dash": "dot"}
    yield line("committed network", steps, episode.committed, FAINT, yaxis="y2", line=dotted)
    yield line("network", steps, episode.metric, METRIC, yaxis="y2")
    done = [moment for moment in steps if moment and episode.op[moment] != Op.WAIT and not episode.invalid[moment]]
    ops = [Op(int(episode.op[moment])) for moment in done]
    names = [f"{op.name} slot {episode.slot[moment]}" for op, moment in zip(ops, done, strict=True)]
    yield _markers(done, episode, [OP_COLORS[op] for op in ops], names, "circle")
    fallen = [moment for moment in steps if episode.rolled_back[moment]]
    yield _markers(fallen, episode, [WARNING] * len(fallen), ["rolled back"] * len(fallen), "x")


def _markers(moments: list[int], episode: Course, colors: list[str], names: list[str], symbol: str) -> Trace:
    return {
        "type": "scatter",
        "mode": "markers",
        "yaxis": "y2",
        "x": moments,
        "y": numbers(episode.metric[moments]),
        "text": names,
        "marker": {"color": colors, "size": 10, "symbol": symbol, "line": {"color": PAPER, "width": 1.5}},
        "hovertemplate": "step %{x}: %{text}<extra></extra>",
    }


def _rewards(episode: Course, colors: dict[str, str]) -> Iterator[Trace]:
    """The terms of each step's reward on top of each other, and their running sum."""
    steps = list(range(1, episode.steps + 1))
    for name, color in colors.items():
        yield {
            "type": "bar",
            "yaxis": "y3",
            "name": name,
            "x": steps,
            "y": numbers(episode.reward_terms[name][1:]),
            "marker": {"color": color},
            "hovertemplate": "step %{x}: %{y:+.4f}<extra>" + name.replace("_", " ") + "</extra>",
        }
    total = np.sum(list(episode.reward_terms.values()), axis=0)[1:].cumsum()
    yield line("return so far", steps, total, INK, yaxis="y3", line={"color": INK, "width": 1.5})


def _contributions(episode: Course) -> Iterator[Trace]:
    """What each slot's seed adds to the metric; for an incubating seed, what it would add."""
    gains = _gains(episode)
    for slot in range(episode.slots):
        style = {"color": PALETTE[slot % len(PALETTE)], "width": 2, "dash": DASHES[slot % len(DASHES)]}
        tooltip = "step %{x}: %{y:+.1%}<extra>slot " + str(slot) + "</extra>"
        steps = range(episode.steps + 1)
        yield line(f"slot {slot}", steps, gains[:, slot], "", yaxis="y4", line=style, hovertemplate=tooltip)


def _gain_range(episode: Course) -> list[float]:
    """Never so small that noise looks like an effect."""
    known = np.nan_to_num(_gains(episode))
    return [min(-0.03, 1.1 * float(known.min())), max(0.1, 1.1 * float(known.max()))]


def _gains(episode: Course) -> NDArray[np.float64]:
    """[moments, slots]; NaN where no seed is."""
    measured = np.where(episode.stage == Stage.TRAINING, episode.prospect, episode.contribution)
    return np.where(np.isin(episode.stage, EMPTY_STAGES), np.nan, measured)
