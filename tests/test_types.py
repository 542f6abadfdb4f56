"""Types: `make type`, on which `make test` depends, checks all of both packages strictly."""

import re
import tomllib
from pathlib import Path

import pytest

TOP = Path(__file__).parents[1]
SETTINGS = tomllib.loads((TOP / "pyproject.toml").read_text())["tool"]["mypy"]
PACKAGES = sorted(path for path in (TOP / "packages").iterdir() if path.is_dir())


def recipe(verb: str) -> tuple[str, str]:
    """What a verb of the Makefile depends on, and what it runs."""
    found = re.search(rf"^{verb}:([^#\n]*).*\n((?:\t.*\n)+)", (TOP / "Makefile").read_text(), re.MULTILINE)
    assert found is not None
    return found[1], found[2]


@pytest.mark.ledger("U16", "Z20")
def test_both_packages_are_checked_strictly_and_as_a_whole() -> None:
    assert SETTINGS["strict"] is True
    assert {f"packages/{package.name}/src" for package in PACKAGES} <= set(SETTINGS["files"])
    assert len(PACKAGES) == 2
    assert not {"exclude", "ignore_errors", "follow_imports", "disable_error_code"} & set(SETTINGS)
    for package in PACKAGES:
        assert all((part / "py.typed").is_file() for part in (package / "src").iterdir() if part.is_dir())


@pytest.mark.ledger("U16", "Z20")
def test_exceptions_are_made_only_for_packages_of_others_without_types() -> None:
    for exception in SETTINGS["overrides"]:
        assert set(exception) == {"module", "ignore_missing_imports"}
        assert not any(module.startswith("esper_") for module in exception["module"])


@pytest.mark.ledger("U16", "Z20")
def test_no_module_switches_the_check_off() -> None:
    for file in (TOP / "packages").rglob("*.py"):
        assert not re.search(r"#\s*(mypy:|type:\s*ignore\s*$)", file.read_text(), re.MULTILINE), file


@pytest.mark.ledger("U16", "Z20")
def test_the_whole_check_runs_before_the_tests() -> None:
    _, commands = recipe("type")
    assert commands.split() == ["$(BIN)/mypy"]
    needed, _ = recipe("test")
    assert "type" in needed.split()
