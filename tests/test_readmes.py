"""Every README's Python runs as printed, from top to bottom, and its pictures and links are there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
READMES = [ROOT / "README.md", *sorted((ROOT / "packages").glob("*/README.md"))]


def named(readme: Path) -> str:
    return str(readme.relative_to(ROOT))


@pytest.mark.slow
@pytest.mark.parametrize("readme", READMES, ids=named)
def test_the_python_runs(readme: Path, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks
    # In its own process, since some blocks register names.
    command = [sys.executable, "-W", "error::UserWarning:esper_env", "-c", "\n".join(blocks)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("readme", READMES, ids=named)
def test_pictures_and_links_are_there(readme: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", readme.read_text(encoding="utf-8"))
    missing = [target for target in targets if not (readme.parent / target).exists()]
    assert not missing
