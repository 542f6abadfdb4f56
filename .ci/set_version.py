"""Moves both packages, what one asks of the other, and the citation to one version (`make version TO=0.2.0`).

python .ci/set_version.py VERSION [ROOT]
"""

import re
import sys
from pathlib import Path

VERSION = re.compile(r"(\d+)\.(\d+)\.\d+(\.dev\d+|(a|b|rc)\d+)?")


def replacements(version: str) -> list[tuple[str, str, str]]:
    """A file, a pattern that stands there exactly once, and what takes its place."""
    found = VERSION.fullmatch(version)
    if found is None:
        sys.exit(f"version is {version!r}; allowed: such as 0.2.0, 0.2.0rc1 or 0.3.0.dev0")
    following = f"{found[1]}.{int(found[2]) + 1}"
    declared = (r'^version = ".*"$', f'version = "{version}"')
    return [
        ("packages/esper-env/pyproject.toml", *declared),
        ("packages/esper-agent/pyproject.toml", *declared),
        ("packages/esper-agent/pyproject.toml", r'"esper-env>=.*?"', f'"esper-env>={version},<{following}"'),
        ("packages/esper-env/src/esper_env/__init__.py", r'^__version__ = ".*"$', f'__version__ = "{version}"'),
        ("CITATION.cff", r"^version: .*$", f"version: {version}"),
    ]


def main() -> None:
    """Rewrite the files."""
    version, root = sys.argv[1], Path(sys.argv[2] if len(sys.argv) > 2 else Path(__file__).parents[1])
    for name, pattern, new in replacements(version):
        text, count = re.subn(pattern, new, (root / name).read_text(encoding="utf-8"), flags=re.MULTILINE)
        if count != 1:
            sys.exit(f"{name} has {pattern} {count} times; allowed: once")
        (root / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
