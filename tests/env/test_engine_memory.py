"""Freed memory stays in the process where glibc is, unless its own variable says otherwise."""

import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
SCRIPT = """
import resource, torch
from esper_env.population.memory import retain_freed_memory
told = retain_freed_memory()
def touch():
    held = [torch.ones(6 << 20) for _ in range(4)]
for _ in range(3):
    touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    touch()
print(told, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def told_and_faults(environment: dict[str, str]) -> tuple[bool, int]:
    command = [sys.executable, "-c", SCRIPT]
    told, faults = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.split()
    return told == "True", int(faults)


def test_freed_memory_is_not_taken_again_page_by_page() -> None:
    told, faults = told_and_faults({})
    assert told
    assert faults < 400  # ten times 96 MiB are 480 huge pages, or 245,760 small ones


def test_who_sets_the_variable_of_glibc_decides() -> None:
    told, _ = told_and_faults({"MALLOC_TRIM_THRESHOLD_": "131072"})
    assert not told
