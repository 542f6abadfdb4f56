"""A chart: a plotly figure as plain data, with the words and the legend that the page puts around it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from esper_env.rendering.rgb import FAINT, INK, LINE, PAPER

from esper_agent.report.traces import GRID, Trace

Panel = tuple[int, str, dict[str, Any]]  # height in pixels, title and further settings of the vertical axis

FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif'
CATEGORIES = {"type": "category", "automargin": True}  # of an axis with words
TOP, BOTTOM, GAP = 12, 44, 34  # pixels above, beneath and between panels


@dataclass(frozen=True)
class Chart:
    """What a reader sees: a title, a legend, the figure, and a sentence on how to read it."""

    title: str
    caption: str
    traces: list[Trace]
    axes: dict[str, Any]  # axes, shapes and annotations of plotly's layout
    height: int  # pixels
    legend: Sequence[tuple[str, str]] = ()  # label and colour

    def figure(self) -> dict[str, Any]:
        """The figure in plotly's own terms."""
        layout = {
            "font": {"family": FONT, "size": 13, "color": INK},
            "paper_bgcolor": PAPER,
            "plot_bgcolor": PAPER,
            "margin": {"l": 56, "r": 16, "t": TOP, "b": BOTTOM},
            "showlegend": False,
            "hovermode": "closest",
            "hoverlabel": {"bgcolor": PAPER, "bordercolor": LINE, "font": {"family": FONT, "color": INK}},
            "height": self.height,
        }
        return {"data": self.traces, "layout": layout | self.axes}


@dataclass(frozen=True)
class Note:
    """One line in the place of something that is not there."""

    text: str


def axis(title: str, **settings: Any) -> dict[str, Any]:
    """An axis with faint lines."""
    words = {"text": title, "font": {"size": 12, "color": FAINT}, "standoff": 6}
    plain = {"title": words, "gridcolor": GRID, "zeroline": False, "tickfont": {"color": FAINT, "size": 12}}
    return plain | settings


def panels(title: str, *parts: Panel) -> tuple[dict[str, Any], int]:
    """The axes of panels from the top down, with the title of the axis beneath them, and the height of the chart."""
    names = ["", *map(str, range(2, len(parts) + 1))]
    axes, top = {"xaxis": axis(title, anchor=f"y{names[-1]}")}, 1.0
    total = sum(height for height, *_ in parts) + GAP * (len(parts) - 1)
    for name, (height, words, settings) in zip(names, parts, strict=True):
        bottom = max(top - height / total, 0.0)  # the last one may come out as -1e-17
        axes[f"yaxis{name}"] = axis(words, domain=[bottom, top], **settings)
        top = bottom - GAP / total
    return axes, TOP + total + BOTTOM
