"""What the benchmark scripts share: provenance of a result, and writing it down."""

import json
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("esper-env", "esper-agent", "torch", "gymnasium", "numpy", "stable-baselines3", "sb3-contrib")


def command_line() -> str:
    """The command that made a result, as a reader would type it."""
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])


def provenance() -> dict[str, Any]:
    """Versions and machine facts that a reader needs to judge or repeat a measurement."""
    return {
        "command": command_line(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
    }


def write_json(path: str | Path, result: dict[str, Any]) -> None:
    """Write a result as JSON, creating its directory."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
