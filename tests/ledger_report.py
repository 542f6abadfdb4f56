"""The ledger report: which rows of ledger.md are proven by a passing test (`make ledger`)."""

import re
from collections import defaultdict
from pathlib import Path

import pytest

LEDGER = Path(__file__).with_name("ledger.md")


def ledger_rows(text: str) -> list[str]:
    """The IDs of the ledger's rows, in order."""
    return re.findall(r"^\| ([A-Z]+\d+) \|", text, flags=re.MULTILINE)


def rows_of(item: pytest.Item) -> set[str]:
    """The ledger rows that a test claims to prove."""
    return {row for mark in item.iter_markers("ledger") for row in mark.args}


def refuse_unknown(claimed: set[str]) -> None:
    """A mark that names no row would prove nothing, unseen."""
    unknown = sorted(claimed - set(ledger_rows(LEDGER.read_text(encoding="utf-8"))))
    if unknown:
        raise pytest.UsageError(f"ledger marks name rows that are not in {LEDGER.name}: {', '.join(unknown)}")


class LedgerReport:
    """Pytest plugin: keeps the tests with a ledger mark, and prints the state of every row."""

    def __init__(self) -> None:
        self.rows = ledger_rows(LEDGER.read_text(encoding="utf-8"))
        self.claims: dict[str, set[str]] = {}
        self.outcomes: dict[str, list[str]] = defaultdict(list)

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        self.claims = {item.nodeid: rows_of(item) for item in items}
        config.hook.pytest_deselected(items=[item for item in items if not self.claims[item.nodeid]])
        items[:] = [item for item in items if self.claims[item.nodeid]]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            for row in self.claims.get(report.nodeid, ()):
                self.outcomes[row].append(report.outcome)

    def state_of(self, row: str) -> str:
        """`proven` needs at least one passing test and no failing one."""
        outcomes = self.outcomes.get(row, [])
        if "failed" in outcomes:
            return "failing"
        return "proven" if "passed" in outcomes else "unproven"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("ledger")
        for state in ("proven", "unproven", "failing"):
            rows = [row for row in self.rows if self.state_of(row) == state]
            terminalreporter.write_line(f"{state:>8} {len(rows):>3}  {' '.join(rows)}")
