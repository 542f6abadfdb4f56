"""The leaderboard: which runs are accepted, and that our own are."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from esper_agent.comparison.leaderboard import check_files, problems

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
FILES = sorted(RESULTS.glob("compare_agents_*/*.json"))


def test_every_row_of_ours_would_be_accepted() -> None:
    assert FILES
    assert check_files(FILES) == []


@pytest.mark.parametrize(
    ("part", "name", "value", "named"),
    [
        ("plan", "instances", "validation", "instances is 'validation'; allowed: 'test'"),
        ("plan", "env", {"rent": 0}, "allowed: the id's own arguments"),
        ("plan", "episodes", 8, "episodes is 8; allowed: integers from 128 on"),
        ("episodes", "discounted_return", [1.0], "discounted_return has not a finite number for each"),
        ("episodes", "test_accuracy", [float("nan")] * 128, "test_accuracy has not a finite number for each"),
    ],
)
def test_a_run_on_other_terms_is_refused(part: str, name: str, value: Any, named: str) -> None:
    run = copy.deepcopy(json.loads(FILES[0].read_text(encoding="utf-8")))
    run[part][name] = value
    assert any(named in one for one in problems(run))
    del run[part][name]
    if name != "env":
        assert problems(run) == [f"{part} lacks {name}"]
    assert "it is no run" in problems({"plan": {}})[0]
