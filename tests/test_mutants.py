"""The mutants fit the code that they change; `make mutants` tries them."""

from pathlib import Path

import pytest
from ledger_report import LEDGER, ledger_rows
from mutants import MUTANTS
from mutants.feared import FEARED
from mutants.mutant import Mutant, StaleMutantError

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.row} {mutant.fault}")
def test_a_mutant_changes_one_place_and_names_a_test(mutant: Mutant) -> None:
    mutated = mutant.applied((ROOT / mutant.file).read_text(encoding="utf-8"))
    if mutant.file.endswith(".py"):
        compile(mutated, mutant.file, "exec")
    file, name = mutant.test.split("[")[0].split("::")
    assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")


def test_every_row_of_mutants_has_one_and_no_two_are_told_alike() -> None:
    rows = {row for row in ledger_rows(LEDGER.read_text(encoding="utf-8")) if row.startswith("Z")}
    assert {mutant.row for mutant in MUTANTS} == {*rows, FEARED}
    assert len({mutant.fault for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("text", ["other", "old old"])
def test_a_stale_mutant_says_which_it_is(text: str) -> None:
    with pytest.raises(StaleMutantError, match=r"Z1, 'a fault': some\.py holds 'old'"):
        Mutant("Z1", "a fault", "some.py", "old", "new", "tests/test_some.py::test_some").applied(text)
