"""A chart: a plotly figure as plain data, with the words and the legend that the page puts around it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from esper_env.rendering.rgb import FAINT, INK, LINE, PAPER

Trace = dict[str, Any]

FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif'
PALETTE = ("#0f766e", "#b45309", "#4f46e5", "#be185d", "#0369a1", "#4d7c0f", "#7c2d12", "#475569")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")  # so that colour is not the only difference
GRID = "#e2e8f0"


@dataclass(frozen=True)
class Chart:
    """What a reader sees: a title, a legend, the figure, and a sentence on how to read it."""

    title: str
    caption: str
    traces: list[Trace]
    axes: dict[str, Any]  # axes, shapes and annotations of plotly's layout
    height: int  # pixels
    legend: tuple[tuple[str, str], ...] = ()  # label and colour

    def figure(self) -> dict[str, Any]:
        """The figure in plotly's own terms."""
        layout = {
            "font": {"family": FONT, "size": 13, "color": INK},
            "paper_bgcolor": PAPER,
            "plot_bgcolor": PAPER,
            "margin": {"l": 56, "r": 16, "t": 12, "b": 44},
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


def panel(number: int, top: float, bottom: float, title: str, **settings: Any) -> dict[str, Any]:
    """The vertical axis of one of several panels above each other, between two shares of the height."""
    name = "yaxis" if number == 1 else f"yaxis{number}"
    return {name: axis(title, domain=[round(abs(bottom), 9), top], **settings)}  # the last one may come out as -1e-17


def line(name: str, x: Any, y: Any, color: str, **settings: Any) -> Trace:
    """A line with a tooltip; gaps stay gaps."""
    tooltip = "%{x:,}: %{y:.3f}<extra>" + name + "</extra>"
    plain = {"type": "scatter", "mode": "lines", "name": name, "x": numbers(x), "y": numbers(y)}
    return plain | {"line": {"color": color, "width": 2}, "hovertemplate": tooltip, "connectgaps": False} | settings


def numbers(values: Any) -> list[float | None]:
    """Plain numbers, rounded to what a picture can show, with None where there is none."""
    return [None if not np.isfinite(value) else float(f"{value:.6g}") for value in np.asarray(values, dtype=float)]


def tinted(color: str, opacity: float) -> str:
    """A colour #rrggbb, seen through."""
    red, green, blue = (int(color[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"
