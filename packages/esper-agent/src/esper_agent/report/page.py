"""The page: sections of charts, tables and notes as one HTML document that never asks the network for anything."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

from jinja2 import Environment, PackageLoader, StrictUndefined

from esper_agent.report.chart import Chart, Note
from esper_agent.runs.directory import RunError


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
    """The whole document, by page.html.

    Args:
        title: of the page.
        facts: label and value of what matters most.
        sections: in their order.
        script: the plotting library.
    """
    own = PackageLoader("esper_agent.report", ".")
    templates = Environment(
        loader=own, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    templates.policies["json.dumps_kwargs"] = {"allow_nan": False}
    page = templates.get_template("page.html")
    return page.render(title=title, facts=facts, sections=sections, script=script)
