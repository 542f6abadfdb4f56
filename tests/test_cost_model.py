"""The cost model: fits and counts agree with closed forms, and its page shows what the script wrote."""

import re
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from esper_env.tasks import TASKS

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
from cost_model import crossover, fit, predict  # noqa: E402
from counting import epoch_and_evaluation, step_work, work  # noqa: E402

TASK = TASKS["digits_mlp"]
ROWS = 30  # all combinations of blueprint, blend and stage occur equally often


def test_a_fit_recovers_a_line() -> None:
    sizes = [1, 4, 16, 64, 256]
    assert fit(sizes, [0.7 + 0.03 * n for n in sizes]) == pytest.approx({"a_ms": 0.7, "b_ms": 0.03, "error": 0.0})


def test_a_fit_states_its_largest_relative_error() -> None:
    # a minimises (a - 1)^2 + (a/3 - 1)^2, so a = 1.2, which is 60 % less than 3.
    assert fit([0, 0], [1.0, 3.0]) == pytest.approx({"a_ms": 1.2, "b_ms": 0.0, "error": 0.6})


def test_the_work_of_a_matrix_product_is_the_textbook_one() -> None:
    n, i, j, k = 3, 5, 7, 11
    left, right = torch.ones(n, i, j), torch.ones(n, j, k)
    counted = work(lambda: torch.bmm(left, right).view(-1).unsqueeze(0))
    assert counted == {"kernels": 1, "flops": 2 * n * i * j * k, "bytes": 4 * n * (i * j + j * k + i * k)}


def test_a_gather_reads_what_it_writes_and_an_expanded_tensor_lies_in_memory_once() -> None:
    table, index = torch.ones(1000, 8), torch.zeros(2, dtype=torch.int64)
    assert work(partial(torch.index_select, table, 0, index))["bytes"] == 2 * 8 * 4 * 2 + 2 * 8
    ones = torch.ones(1).expand(100)
    assert work(ones.exp)["bytes"] == 4 + 400


def test_kernels_do_not_grow_with_rows_and_the_rest_grows_in_proportion() -> None:
    few, many = (step_work(TASK, n) for n in (ROWS, 3 * ROWS))  # both fit one tile
    for part in few:
        assert few[part]["kernels"] == many[part]["kernels"]
        assert 3 * few[part]["flops"] == many[part]["flops"]
        assert 3 * few[part]["bytes"] == pytest.approx(many[part]["bytes"], rel=0.02)


def test_counting_without_computing_counts_the_same_products() -> None:
    for real, meta in zip(*(epoch_and_evaluation(TASK, ROWS, device) for device in ("cpu", "meta")), strict=True):
        assert work(real)["flops"] == work(meta)["flops"] > 0


def test_the_slowest_of_three_limits_a_step() -> None:
    assumed = {"launch_us": 10.0, "gigabytes_per_second": 100.0, "gigaflops": 1000.0}
    predicted = predict({"kernels": 300, "bytes": 1e8, "flops": 2e9}, assumed)
    assert predicted == pytest.approx({"launch": 3.0, "memory": 1.0, "arithmetic": 2.0, "step": 3.0})
    assert crossover(predicted, 100) == pytest.approx(150.0)


def test_the_page_shows_what_the_script_wrote() -> None:
    page, written = (
        (ROOT / place).read_text(encoding="utf-8") for place in ("docs/scaling.md", "benchmarks/results/cost_model.md")
    )
    rows = re.findall(r"^\| .* \|$", page, flags=re.MULTILINE)
    assert len(rows) > 15
    assert set(rows) <= set(written.splitlines())
