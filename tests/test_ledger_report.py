"""The ledger report reads its table and judges rows by their tests' outcomes."""

import pytest
from ledger_report import LEDGER, LedgerReport, ledger_rows, refuse_unknown


def test_the_ledger_has_every_row_once() -> None:
    rows = ledger_rows(LEDGER.read_text(encoding="utf-8"))
    assert len(rows) == len(set(rows)) == 168


def test_a_row_is_proven_only_by_passing_tests() -> None:
    report = LedgerReport()
    report.outcomes = {"R1": ["passed", "passed"], "R2": ["passed", "failed"], "R3": ["skipped"]}
    assert [report.state_of(row) for row in ("R1", "R2", "R3", "R4")] == [
        "proven",
        "failing",
        "unproven",
        "unproven",
    ]


def test_a_mark_that_names_no_row_is_refused_in_every_run() -> None:
    refuse_unknown({"R1", "Z20"})
    with pytest.raises(pytest.UsageError, match="Y99"):
        refuse_unknown({"R1", "Y99"})
