"""The README's Python runs as printed, from top to bottom."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "packages" / "esper-env" / "README.md"


def test_the_readme_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert len(blocks) == 6
    # In its own process, since it registers names.
    done = subprocess.run([sys.executable, "-c", "\n".join(blocks)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "step 30/30" in done.stdout


def test_its_pictures_exist() -> None:
    for target in re.findall(r"!\[.*?\]\((.*?)\)", README.read_text()):
        assert (README.parent / target).is_file()
