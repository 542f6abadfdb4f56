"""The specification page, which is the class docstring, says what the code does."""

import re
from dataclasses import MISSING, fields
from inspect import cleandoc, getdoc

import esper_env
import pytest
from esper_env import EsperEnv, Op
from esper_env.config import TEMPI, EsperConfig
from esper_env.mdp.actions import HEADS, RELEVANT_HEADS
from esper_env.mdp.detectors import DETECTORS
from esper_env.mdp.observation import DRAWN_FIELDS, LOOKED_AT, Field, Schema, global_fields, slot_fields
from esper_env.mdp.rewards import PRESETS, TERMS
from esper_env.registration import ENVIRONMENTS
from esper_env.tasks import TASKS

PAGE = cleandoc(EsperEnv.__doc__ or "")
BLUEPRINTS = 5


def section(title: str) -> str:
    return re.split(r"^#+ ", PAGE.split(f"# {title}\n")[1], maxsplit=1, flags=re.MULTILINE)[0]


def tables(text: str) -> list[list[list[str]]]:
    """All tables of a text as rows of cells, without their heads."""
    blocks = re.findall(r"(?:^\|.*\n?)+", text, flags=re.MULTILINE)
    return [[[cell.strip() for cell in line.strip("|").split("|")] for line in b.splitlines()[2:]] for b in blocks]


def as_rows(declared: tuple[Field, ...]) -> list[list[str]]:
    return [[f"`{f.name}`", str(f.size), f"{f.low:g}", f"{f.high:g}", f.meaning] for f in declared]


def test_the_page_has_gymnasiums_sections() -> None:
    expected = [
        *("Description", "Action Space", "Observation Space", "Rewards", "Starting State", "Episode End"),
        *("Arguments", "Version History"),
    ]
    assert re.findall(r"^## (.*)$", PAGE, flags=re.MULTILINE) == expected
    assert getdoc(EsperEnv) == PAGE


def test_the_observation_tables_are_the_schema() -> None:
    of_host, drawn, of_slots, partial = tables(section("Observation Space"))
    assert of_host == as_rows(global_fields())
    assert drawn == as_rows(tuple(DRAWN_FIELDS.values()))
    assert of_slots == as_rows(slot_fields(BLUEPRINTS))
    assert partial == as_rows((LOOKED_AT,))


def test_the_size_of_the_observation_is_as_stated() -> None:
    fixed, each = map(int, re.search(r"vector of (\d+) \+ (\d+) x slots", PAGE).groups())  # type: ignore[union-attr]
    for slots in (3, 6):
        assert len(Schema(slots, BLUEPRINTS).columns()) == fixed + each * slots


def test_the_action_table_is_the_relevance_table() -> None:
    rows = {name.strip("`"): (values, used) for name, values, used in tables(section("Action Space"))[0]}
    assert tuple(rows) == HEADS
    assert rows["op"][0] == ", ".join(f"{int(op)} {op.name}" for op in Op)
    assert all(str(tempo) in rows["tempo"][0] for tempo in TEMPI)
    for head in HEADS[1:]:
        users = {op for op in Op if head in RELEVANT_HEADS[op]}
        stated = set(Op) - {Op.WAIT} if rows[head][1] == "all but WAIT" else {Op[rows[head][1]]}
        assert users == stated


def test_every_blueprint_is_named() -> None:
    for task in (settings["task"] for settings in ENVIRONMENTS.values()):
        for name in TASKS[task].blueprints:
            assert re.search(rf"\b{name}\b", section("Action Space"))
        assert len(TASKS[task].blueprints) == BLUEPRINTS


def test_the_reward_tables_are_the_registries() -> None:
    presets, terms = tables(section("Rewards"))
    listed = {name.strip("`"): contents for name, contents in presets}
    assert list(listed) == list(PRESETS)
    for name, contents in listed.items():
        whole = contents.replace("those of `sparse`", listed["sparse"])
        assert set(whole.split(", ")) == set(PRESETS[name])
    assert {name.strip("`") for name, _ in terms} == set(TERMS)
    assert all(name in section("Rewards") for name in DETECTORS)


@pytest.mark.parametrize("field", fields(EsperConfig), ids=lambda field: field.name)
def test_every_argument_is_listed_with_its_default(field) -> None:  # type: ignore[no-untyped-def]
    default = field.default
    text = "set by the id" if default is MISSING else f'"{default}"' if isinstance(default, str) else repr(default)
    assert f"- `{field.name}` ({text}): " in section("Arguments")


def test_no_argument_is_listed_that_does_not_exist() -> None:
    listed = re.findall(r"^- `(\w+)`", section("Arguments"), flags=re.MULTILINE)
    assert listed == ["render_mode", *(field.name for field in fields(EsperConfig))]


def test_every_id_is_listed() -> None:
    assert [row[0].strip("`") for row in tables(section("Description"))[0]] == list(ENVIRONMENTS)
    assert esper_env.__version__
