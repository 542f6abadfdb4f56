"""Suite-wide plumbing: the ledger report, one thread per process (the tensors are tiny), reproducible examples."""

import os

import ledger_report
import pytest
import torch
from hypothesis import settings


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--ledger", action="store_true", help="run only tests that prove ledger rows, and report the rows")


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    settings.register_profile("same examples in every run", derandomize=True, deadline=None)
    settings.load_profile("same examples in every run")
    if config.getoption("--ledger"):
        config.pluginmanager.register(ledger_report.LedgerReport(), "ledger-report")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ledger_report.refuse_unknown({row for item in items for row in ledger_report.rows_of(item)})
