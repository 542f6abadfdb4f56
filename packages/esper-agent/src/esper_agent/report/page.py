"""The page: sections of charts, tables and notes as one HTML document that never asks the network for anything."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib import import_module
from importlib.resources import files

from esper_agent.report.chart import Chart, Note
from esper_agent.runs.directory import RunError

# The browser itself then refuses every request, also one that the plotting script might make.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


@dataclass(frozen=True)
class Table:
    """A table; the first cell of each row names it."""

    header: tuple[str, ...]
    rows: list[list[str]]
    caption: str


@dataclass(frozen=True)
class Section:
    """A part of the page."""

    title: str
    introduction: str
    blocks: Sequence[Chart | Note | Table]
    legend: tuple[tuple[str, str], ...] = ()


def plotly_script() -> str:
    """The plotting library, as its package ships it.

    Raises:
        RunError: when it is not installed.
    """
    try:
        script: str = import_module("plotly.offline").get_plotlyjs()
    except ImportError as error:
        raise RunError("a report needs plotly: pip install 'esper-agent[report]'") from error
    return script


def render(title: str, facts: Sequence[tuple[str, str]], sections: Sequence[Section], script: str) -> str:
    """The whole document.

    Args:
        title: of the page.
        facts: label and value of what matters most.
        sections: in their order.
        script: the plotting library.
    """
    own = files("esper_agent.report")
    style, start = (own.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    cards = "".join(f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>" for label, value in facts)
    body = "\n".join(_section(number, section) for number, section in enumerate(sections, start=1))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>{escape(title)}</h1>
<dl class="facts">{cards}</dl>
<noscript><p class="note">The charts need JavaScript; the tables do not.</p></noscript>
{body}
</main>
<script>{script}</script>
<script>{start}</script>
</body>
</html>
"""


def _section(number: int, section: Section) -> str:
    blocks = "\n".join(_block(f"{number}-{place}", block) for place, block in enumerate(section.blocks, start=1))
    introduction = f"<p>{escape(section.introduction)}</p>" if section.introduction else ""
    return f"""<section id="section-{number}">
<h2>{escape(section.title)}</h2>
{introduction}
{_legend(section.legend)}
{blocks}
</section>"""


def _block(name: str, block: Chart | Note | Table) -> str:
    if isinstance(block, Note):
        return f'<p class="note">{escape(block.text)}</p>'
    return _table(block) if isinstance(block, Table) else _chart(name, block)


def _chart(name: str, chart: Chart) -> str:
    data = json.dumps(chart.figure(), allow_nan=False).replace("<", "\\u003c")  # nothing in it may look like a tag
    label = escape(f"{chart.title}. {chart.caption}", quote=True)
    return f"""<figure>
<h3>{escape(chart.title)}</h3>
{_legend(chart.legend)}
<div class="chart" id="chart-{name}" style="height:{chart.height}px" role="img" aria-label="{label}"></div>
<script type="application/json" data-chart="chart-{name}">{data}</script>
<figcaption>{escape(chart.caption)}</figcaption>
</figure>"""


def _legend(entries: Sequence[tuple[str, str]]) -> str:
    if not entries:
        return ""
    items = "".join(f'<li><i style="background:{color}"></i>{escape(label)}</li>' for label, color in entries)
    return f'<ul class="legend">{items}</ul>'


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table.header)
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in cells)}</tr>'
        for name, *cells in table.rows
    )
    return f"""<div class="scroll"><table>
<caption>{escape(table.caption)}</caption>
<thead><tr>{head}</tr></thead>
<tbody>{rows}</tbody>
</table></div>"""
