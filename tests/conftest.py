"""Suite-wide plumbing: the ledger report."""

import ledger_report
import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--ledger", action="store_true", help="run only tests that prove ledger rows, and report the rows"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--ledger"):
        config.pluginmanager.register(ledger_report.LedgerReport(), "ledger-report")
