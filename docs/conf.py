"""How Sphinx builds the site: `make site`."""

import re

from esper_env import __version__
from sphinx.application import Sphinx

project = "Esper"
author = "The Esper authors"
copyright = author
version = release = __version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinxcontrib.mermaid",
]
html_theme = "furo"
html_title = f"Esper {version}"
exclude_patterns = ["_build"]
myst_fence_as_directive = ["mermaid"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
autodoc_typehints = "description"
autodoc_member_order = "bysource"


def link_files_beside_the_site(app: Sphinx, page: str, source: list[str]) -> None:
    """Pages of the repository that are not pages of the site are files to download."""
    del app, page
    source[0] = re.sub(r"\]\((\.\./[^)#]*\.md)(?:#[^)]*)?\)", r"](path:\1)", source[0])


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", link_files_beside_the_site)
