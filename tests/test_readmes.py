"""The Python of the packages' READMEs and of docs/ runs as printed; pictures, links and anchors are there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
READMES = [ROOT / "README.md", *sorted((ROOT / "packages").glob("*/README.md"))]
PAGES = [*READMES, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def python_of(page: Path) -> str:
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return "\n".join(blocks)


# The code of the main README stands in examples/, whose own tests run it.
RUNNABLE = [page for page in PAGES[1:] if python_of(page)]


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchor(heading: str) -> str:
    """The name that GitHub gives to a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def test_the_pages_that_show_use_have_code_to_run() -> None:
    assert {*READMES[1:], ROOT / "docs/extending.md"} <= set(RUNNABLE)


@pytest.mark.slow
@pytest.mark.parametrize("page", RUNNABLE, ids=named)
def test_the_python_runs(page: Path, tmp_path: Path) -> None:
    # In its own process, since some blocks register names.
    command = [sys.executable, "-W", "error::UserWarning:esper_env", "-c", python_of(page)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_pictures_and_links_are_there(page: Path) -> None:
    for target, section in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", page.read_text(encoding="utf-8")):
        file = (page.parent / target) if target else page
        assert file.exists(), target
        if section:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert section in map(anchor, headings), f"{target}#{section}"
