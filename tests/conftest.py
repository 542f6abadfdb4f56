"""Suite-wide plumbing: the ledger report, one thread per process (the tensors are tiny), reproducible examples,
signals as a terminal's program has them.
"""

import os
import signal

import ledger_report
import pytest
import torch
from hypothesis import settings


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--ledger", action="store_true", help="run only tests that prove ledger rows, and report the rows")


def pytest_configure(config: pytest.Config) -> None:
    # A job in the background, or below nohup, ignores them, and so would everything that the tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    settings.register_profile("same examples in every run", derandomize=True, deadline=None)
    settings.load_profile("same examples in every run")
    if config.getoption("--ledger"):
        config.pluginmanager.register(ledger_report.LedgerReport(), "ledger-report")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ledger_report.refuse_unknown({row for item in items for row in ledger_report.rows_of(item)})
