"""Suite-wide plumbing: the ledger report, and one thread per process, since the tests' tensors are tiny."""

import ledger_report
import pytest
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--ledger", action="store_true", help="run only tests that prove ledger rows, and report the rows")


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)
    if config.getoption("--ledger"):
        config.pluginmanager.register(ledger_report.LedgerReport(), "ledger-report")
