"""The pages of docs/ say what the code does: tables, formulas, places, keys and commands are checked against it."""

import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from esper_agent import cli
from esper_agent.baselines.agents import AGENTS
from esper_agent.baselines.tuned import BASELINES
from esper_agent.diagnostics.detectors import DETECTORS as UPDATE_DETECTORS
from esper_agent.runs.directory import RunDirectory
from esper_env import HEADS, RELEVANT_HEADS, Op, Stage
from esper_env import cli as env_cli
from esper_env.config import EsperConfig, make_config
from esper_env.mdp.detectors import DETECTORS
from esper_env.mdp.lifecycle import gates
from esper_env.mdp.rewards import PRESETS, TERMS
from esper_env.mdp.rewards.terms import Limits, largest_potential
from esper_env.mdp.state import State
from esper_env.registration import ENVIRONMENTS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))
from generate import PAGES  # noqa: E402

Row = list[str]


def text(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def table(page: str, first: str) -> list[Row]:
    """The rows, as cells, of the table whose head begins with `first`."""
    block = re.search(rf"^\| {re.escape(first)} \|.*\n\|[-|]+\n((?:\|.*\n)+)", text(page), flags=re.MULTILINE)
    assert block is not None, first
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in block[1].splitlines()]


def named(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_environment_is_a_rung_of_the_ladder() -> None:
    rungs = [name for cells in table("benchmark.md", "Rung") for name in named(cells[0])]
    assert sorted(rungs) == sorted(ENVIRONMENTS)


@pytest.mark.parametrize("page", PAGES)
def test_made_pages_are_up_to_date(page: str) -> None:
    assert text(page) == PAGES[page](), "run `make docs`"


def test_every_page_has_a_place_in_the_contents_of_the_site() -> None:
    listed = re.findall(
        r"^(\w+)$", "".join(re.findall(r"```\{toctree\}(.*?)```", text("index.md"), re.DOTALL)), re.MULTILINE
    )
    assert sorted(listed) == sorted(page.stem for page in DOCS.glob("*.md") if page.stem != "index")


# Rewards


def test_the_reward_presets_are_the_registered_ones() -> None:
    assert {named(name)[0]: tuple(named(terms)) for name, terms, _ in table("rewards.md", "Preset")} == {
        name: PRESETS[name] for name in PRESETS
    }


def configurations() -> list[tuple[EsperConfig, Limits]]:
    """Arguments that are all different, so that no formula can be right by mistaking one for another."""
    other = make_config(
        task="digits_mlp", horizon=17, gamma=0.9, rent=0.23, slot_rent=0.29, metric_weight=0.7, stage_weight=0.31,
        stage_potential=(0.0, 0.2, 0.4, 0.5, 0.8, 0.1), invalid_action_cost=0.37, rollback_penalty=0.41,
        contribution_weight=0.43, entanglement_weight=0.47, holding_cap=0.53, shock_weight=0.59, loss_weight=0.61,
        op_costs=(0.0, 0.67, 0.1, 0.2, 0.3),
    )  # fmt: skip
    return [(make_config(task="digits_mlp"), Limits(3, 1.9)), (other, Limits(5, 2.3))]


@pytest.mark.parametrize(("config", "limits"), configurations())
def test_the_bounds_of_reward_terms_are_the_declared_ones(config: EsperConfig, limits: Limits) -> None:
    known = {**vars(config), "slots": limits.slots, "largest_added": limits.largest_added, "max": max}
    formula = re.search(r"`largest_potential` = `([^`]+)`", text("rewards.md"))
    assert formula is not None
    known["largest_potential"] = eval(formula[1], {}, known)
    assert known["largest_potential"] == pytest.approx(largest_potential(config, limits))
    rows = table("rewards.md", "Term")
    assert {named(row[0])[0] for row in rows} == set(TERMS)
    for name, _, least, greatest in rows:
        stated = [eval(named(bound)[0], {}, known) for bound in (least, greatest)]
        assert stated == pytest.approx(TERMS[named(name)[0]].bounds(config, limits)), name


def test_the_detectors_of_gaming_are_the_registered_ones() -> None:
    assert [named(row[0])[0] for row in table("rewards.md", "Detector")] == list(DETECTORS)


# Actions


def legal(config: EsperConfig, op: Op, stage: Stage, age: int) -> bool:
    state = State.blank(1, 1, "cpu")
    state.stage[:], state.age[:], state.stage_age[:], state.step[:] = int(stage), age, age, age
    return op is Op.WAIT or bool(gates(state, config, budget=torch.ones(1)).by_op()[0, op, 0])


def stated_legal(cell: str, config: EsperConfig, age: int) -> bool:
    return cell == "yes" or (cell.startswith("after ") and age >= getattr(config, named(cell)[0]))


def test_the_table_of_operations_and_stages_is_that_of_the_gates() -> None:
    config = make_config(task="digits_mlp", warmup_steps=1, training_steps=2, holding_steps=3, prune_age=4)
    operations = table("actions.md", "Operation | DORMANT")
    assert [row[0] for row in operations] == [op.name for op in Op]
    for op, row in zip(Op, operations, strict=True):
        for stage, cell in zip(Stage, row[1:], strict=True):
            for age in range(6):
                assert stated_legal(cell, config, age) == legal(config, op, stage, age), (op, stage, age)


def test_the_table_of_heads_is_the_relevance_table() -> None:
    stated = {row[0]: row[1:] for row in table("actions.md", "Operation | `slot`")}
    for op in Op:
        assert stated[op.name] == ["yes" if head in RELEVANT_HEADS[op] else "-" for head in HEADS[1:]]


def test_every_stage_is_described_in_its_order() -> None:
    assert [row[0] for row in table("actions.md", "Stage")] == [stage.name for stage in Stage]


# Places in the code


def places(page: str) -> list[tuple[Path, str]]:
    """Each name in a paragraph that begins with "Where:", with the file it follows."""
    found = []
    for paragraph in re.findall(r"^Where: (.*?)(?:\n\n|\Z)", text(page), flags=re.MULTILINE | re.DOTALL):
        for file, names in re.findall(r"\]\(([^)]+)\)((?:[^\[]*))", paragraph):
            found += [((DOCS / file).resolve(), name) for name in named(names)]
    return found


def test_what_the_algorithms_page_points_to_is_there() -> None:
    found = places("algorithm.md")
    assert len(found) > 20
    for file, name in found:
        assert re.search(rf"^\s*(?:def|class) {name}\b", file.read_text(encoding="utf-8"), flags=re.MULTILINE), name


def test_the_algorithms_page_names_every_detector() -> None:
    section = text("algorithm.md").split("## Watching it")[1]
    assert set(UPDATE_DETECTORS) <= set(named(section))


# Comparisons


def test_the_comparisons_page_names_everyone_who_can_take_part() -> None:
    assert {named(row[0])[0] for row in table("comparison.md", "Baseline")} == set(BASELINES)
    assert {named(row[0])[0] for row in table("comparison.md", "Agent")} == set(AGENTS)


# Runs

PLACEHOLDERS = {
    "<head>": "(op|slot|blueprint|blend|tempo)",
    "<part>": r"(trunk|critic|head_\w+)",
    "<moment>": "(mean|std|min|max|positive_share)",
    "<value>": "[0-4]",
    "<detector>": r"\w+",
    "<measure>": r"\w+",
    "<stage>": r"\w+",
    "<term>": r"\w+",
}


def pattern(key: str) -> re.Pattern[str]:
    for name, allowed in PLACEHOLDERS.items():
        key = key.replace(name, allowed)
    return re.compile(key)


def test_the_runs_page_lists_every_file_and_every_metric(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    small = ["--n-envs", "2", "--set", "n_steps=30", "--set", "sequence_length=30", "--set", "n_minibatches=2"]
    arguments = ["train", "Esper-v0", "--run-dir", str(run.path), "--total-timesteps", "120", "--no-progress", *small]
    arguments += ["--eval-every", "60", "--env-set", "horizon=8"]
    assert cli.main(arguments) == 0
    listed = {named(row[0])[0].rstrip("/") for row in table("runs.md", "File")}
    assert listed == {path.name for path in vars(run).values() if isinstance(path, Path) and path != run.path}
    assert {path.name for path in run.path.iterdir()} <= listed
    keys = set().union(*run.metrics())
    patterns = {key: pattern(key) for row in table("runs.md", "Key") for key in named(row[0])}
    unlisted = [key for key in keys if not any(each.fullmatch(key) for each in patterns.values())]
    absent = [key for key, each in patterns.items() if not any(map(each.fullmatch, keys))]
    assert not unlisted
    assert not [key for key in absent if not key.startswith("diagnostics/")]
    assert json.loads(run.config_file.read_text(encoding="utf-8"))["versions"]


# Commands

PARSERS: dict[str, Callable[[Row], object]] = {
    "esper-agent": lambda arguments: cli.build_parser().parse_args(arguments),
    "esper-env": lambda arguments: env_cli.build_parser().parse_args(arguments),
}


def commands() -> list[str]:
    pages = [ROOT / "README.md", *(ROOT / "packages").glob("*/README.md"), *DOCS.glob("*.md")]
    blocks = [block for page in pages for block in re.findall(r"```sh\n(.*?)```", page.read_text("utf-8"), re.DOTALL)]
    return sorted({line.split("  #")[0].strip() for block in blocks for line in block.splitlines() if line.strip()})


@pytest.mark.parametrize("command", commands())
def test_every_command_on_a_page_exists(command: str) -> None:
    first, *rest = shlex.split(command)
    if first in PARSERS:
        PARSERS[first](rest)
    elif first == "torchrun":
        module = rest.index("-m")
        assert rest[module + 1] == "esper_agent"
        PARSERS["esper-agent"](rest[module + 2 :])
    elif first == "make":
        assert re.search(rf"^{rest[0]}:", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    elif first == "python":
        assert (ROOT / rest[0]).is_file()
    else:
        assert first == "pip"
