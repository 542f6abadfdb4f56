"""What a release rests on: workflows of the repository's own verbs, READMEs that stand alone, versions that agree."""

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import esper_env
import pytest
from test_readmes import READMES

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
SCHEMAS = {
    "github-workflows": sorted((GITHUB / "workflows").glob("*.yml")),
    "github-issue-forms": sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")),
    "dependabot": [GITHUB / "dependabot.yml"],
    "citation-file-format": [ROOT / "CITATION.cff"],
}


def project(package: str, root: Path = ROOT) -> dict[str, Any]:
    text = (root / "packages" / package / "pyproject.toml").read_text(encoding="utf-8")
    found: dict[str, Any] = tomllib.loads(text)["project"]
    return found


def version_script() -> ModuleType:
    specification = importlib.util.spec_from_file_location("set_version", ROOT / ".ci" / "set_version.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_that_others_read_satisfy_their_schema(schema: str) -> None:
    checker = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    done = subprocess.run([*checker, *map(str, SCHEMAS[schema])], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_workflows_only_call_verbs_of_the_repository() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    commands = [
        command
        for workflow in SCHEMAS["github-workflows"]
        for command in re.findall(r"- run: (.*)", workflow.read_text(encoding="utf-8"))
    ]
    verbs = {command.removeprefix("make ") for command in commands} - {"bash .ci/run"}
    assert "bash .ci/run" in commands
    verbs = (verbs - {"${{ matrix.which }}"}) | {"lowest", "newest"}
    assert verbs == {"site", "release-check", "integrations", "lowest", "newest"}
    for verb in verbs:
        assert re.search(rf"^[a-z -]*\b{verb}\b[a-z -]*:", makefile, flags=re.MULTILINE), verb


@pytest.mark.parametrize("readme", READMES[1:], ids=lambda path: path.parent.name)
def test_a_packages_readme_has_no_link_that_breaks_where_it_stands_alone(readme: Path) -> None:
    links = re.findall(r"\]\(([^)]+)\)", readme.read_text(encoding="utf-8"))
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


def test_both_packages_have_one_version() -> None:
    assert project("esper-env")["version"] == project("esper-agent")["version"] == esper_env.__version__


def test_one_command_moves_every_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = version_script()
    for name in {place for place, _, _ in script.replacements("1.2.3")}:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    monkeypatch.setattr(sys, "argv", ["set_version.py", "1.2.3rc1", str(tmp_path)])
    script.main()
    assert {project(name, tmp_path)["version"] for name in ("esper-env", "esper-agent")} == {"1.2.3rc1"}
    assert "esper-env>=1.2.3rc1,<1.3" in project("esper-agent", tmp_path)["dependencies"]
    for name in ("CITATION.cff", "packages/esper-env/src/esper_env/__init__.py"):
        assert (tmp_path / name).read_text(encoding="utf-8").count("1.2.3rc1") == 1


@pytest.mark.parametrize("version", ["", "1.2", "v1.2.3", "1.2.3-rc1"])
def test_what_is_no_version_is_refused(version: str) -> None:
    with pytest.raises(SystemExit, match=r"^version is '.*'; allowed: "):
        version_script().replacements(version)
