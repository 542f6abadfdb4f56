"""The outcome of a run: its result, or what went wrong, and how either is kept in files."""

import json
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from esper_env.files import replace_text

from esper_agent.comparison.run import Plan, carry_out


@dataclass(frozen=True)
class Outcome:
    """What came of a run: a result, or an error in one line and in full."""

    result: dict[str, Any] | None
    error: str = ""
    trace: str = ""


def attempt(plan: Plan) -> Outcome:
    """Carry out a plan on one thread."""
    torch.set_num_threads(1)
    try:
        return Outcome(carry_out(plan))
    except Exception as error:
        return Outcome(None, f"{type(error).__name__}: {error}", traceback.format_exc())


def keep(file: Path, outcome: Outcome) -> tuple[bool, str]:
    """Write a result, or what went wrong to a log beside it.

    Returns:
        Whether it succeeded, and a line about it.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    if outcome.result is None:
        replace_text(log_file(file), outcome.trace)
        return False, f"{file.stem}: {outcome.error} (see {log_file(file)})"
    replace_text(file, json.dumps(outcome.result) + "\n")
    log_file(file).unlink(missing_ok=True)
    last = outcome.result["curve"][-1]
    speed = f", {last['step'] / last['seconds']:.0f} steps per second" if last["seconds"] else ""
    scores = f"return {last['discounted_return']:.3f}, test accuracy {last['test_accuracy']:.3f}"
    return True, f"{file.stem}: {scores}{speed}"


def log_file(file: Path) -> Path:
    """Where it stands what went wrong with a run."""
    return file.with_suffix(".log")
