"""What the declared versions promise; `make lowest` and `make newest` try them for real."""

import subprocess
import sys

import pytest
from check_versions import constraints, lowest

OLD_GYMNASIUM = """
from gymnasium.vector import VectorWrapper

def refuse(cls, item):
    raise TypeError(f"{cls} is not a generic class")

VectorWrapper.__class_getitem__ = classmethod(refuse)  # as it was before gymnasium 1.4
import esper_env.wrappers
import esper_agent.report
"""


@pytest.mark.ledger("Y15")
def test_both_packages_import_where_vector_wrappers_are_not_generic() -> None:
    done = subprocess.run([sys.executable, "-c", OLD_GYMNASIUM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.ledger("Y15")
def test_the_lowest_versions_are_those_that_the_packages_declare() -> None:
    assert lowest("gymnasium>=1.1,<2") == "gymnasium==1.1"
    assert lowest("pandas<3") is None
    # Constant schedules came with stable-baselines3 2.7, the lowest that runs.
    assert {"gymnasium==1.1", "stable-baselines3==2.7", "sb3-contrib==2.7"} <= set(constraints("lowest"))
    assert not any(line.startswith("esper") for line in constraints("lowest"))
    assert [line.split("==")[0] for line in constraints("newest")] == ["torch"]
