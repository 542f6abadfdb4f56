"""What a chart is drawn with: plotly's traces and annotations as plain data, and the colours that tell them apart."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from esper_env.rendering.rgb import PAPER

Trace = dict[str, Any]

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")  # so that colour is not the only difference
GRID = "#e2e8f0"


def line(
    name: str, x: Any, y: Any, color: str, *, width: float = 2, dash: str = "solid", tooltip: str = "%{x:,}: %{y:.3f}",
    **settings: Any,
) -> Trace:  # fmt: skip
    """A line; gaps stay gaps."""
    style = {"color": color, "width": width, "dash": dash}
    return _trace("scatter", name, x, y, tooltip) | {"mode": "lines", "connectgaps": False, "line": style} | settings


def markers(name: str, x: Any, y: Any, color: Any, tooltip: str, symbol: str = "circle", **settings: Any) -> Trace:
    """Points, in one colour or a colour each."""
    style = {"color": color, "size": 10, "symbol": symbol, "line": {"color": PAPER, "width": 1.5}}
    return _trace("scatter", name, x, y, tooltip) | {"mode": "markers", "marker": style} | settings


def bars(name: str, x: Any, y: Any, color: str, tooltip: str, **settings: Any) -> Trace:
    """Bars without an edge."""
    return _trace("bar", name, x, y, tooltip) | {"marker": {"color": color, "line": {"width": 0}}} | settings


def label(x: float, y: float, text: str, color: str) -> dict[str, Any]:
    """Words above a place and to its right."""
    place = {"x": float(x), "y": y, "xanchor": "left", "yanchor": "bottom", "showarrow": False}
    return place | {"text": text, "font": {"size": 12, "color": color}}


def _trace(kind: str, name: str, x: Any, y: Any, tooltip: str) -> Trace:
    hover = {"hovertemplate": f"{tooltip}<extra>{name}</extra>"} if tooltip else {"hoverinfo": "skip"}
    return {"type": kind, "name": name, "x": plain(x), "y": plain(y)} | hover


def plain(values: Any) -> list[Any]:
    """Words and whole numbers as they are, others rounded to what a picture can show, with None where there is none."""
    array = np.asarray(values)
    given: list[Any] = array.tolist()
    if array.dtype.kind != "f":
        return given
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in given]


def nth(styles: Sequence[str], place: int) -> str:
    """The style of the nth line; beyond the last they begin again."""
    return styles[place % len(styles)]


def tinted(color: str, opacity: float) -> str:
    """A colour #rrggbb, seen through."""
    red, green, blue = bytes.fromhex(color[1:])
    return f"rgba({red},{green},{blue},{opacity})"
