"""Arms of a comparison: who takes part and with which settings of its own, each as one word.

`ours`, `ours:memory=none:memory_skip=false`, `plateau:patience=3`, `module:Class` of one's own, or the path of a run
directory or checkpoint of an agent that was trained before.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esper_agent.baselines.agents import AGENTS, AgentSpec
from esper_agent.baselines.tuned import BASELINES, settable
from esper_agent.runs.directory import RunError

NAMES = (*AGENTS, *BASELINES)


@dataclass(frozen=True)
class Arm:
    """A participant.

    Attributes:
        label: the word that names it everywhere.
        name: of `NAMES`, `module:Class`, or a path.
        settings: those that it does not take from its name.
    """

    label: str
    name: str
    settings: dict[str, Any]

    @property
    def spec(self) -> AgentSpec | None:
        """How the agent is made; None for a baseline and for a policy of one's own."""
        return AGENTS.get(self.name)

    @property
    def trained(self) -> bool:
        """Whether it is the path of an agent that was trained before."""
        return self.name not in NAMES and Path(self.name).exists()

    @property
    def allowed(self) -> tuple[str, ...]:
        """The settings that it may be given."""
        return self.spec.settable() if self.spec else settable(self.name)

    def file_name(self, seed: int) -> str:
        """The file of its run with a seed, without characters that some file systems lack."""
        return re.sub(r"[^\w.,=+-]", "_", self.label.replace(":", "+")) + f"_seed{seed}.json"


def parse_arm(label: str) -> Arm:
    """What a word means; a known name with settings is told from `module:Class` by an equals sign.

    Raises:
        RunError: for a name or a setting that does not exist.
    """
    name, *parts = split_outside_brackets(label, ":")
    if name not in NAMES and Path(label).exists():
        return Arm(label, label, {})
    if parts and (name not in NAMES or not any("=" in part for part in parts)):
        return Arm(label, label, {})
    if name not in NAMES:
        raise RunError(
            f"agent is {name!r}; allowed: {', '.join(NAMES)}, module:Class of your own, or the path of a run"
        )
    arm = Arm(label, name, {key: plain_value(value) for key, _, value in (part.partition("=") for part in parts)})
    if unknown := [key for key in arm.settings if key not in arm.allowed]:
        raise RunError(f"{label} sets {unknown[0]!r}; allowed for {name}: {', '.join(arm.allowed) or 'no settings'}")
    usual = arm.spec.defaults if arm.spec else dict.fromkeys(arm.settings, 0.0)
    for key in arm.settings.keys() & usual.keys():
        _check_kind(arm, key, usual[key])
    return arm


def _check_kind(arm: Arm, key: str, usual: Any) -> None:
    """Whether a value is of the usual one's kind; whoever builds the agent checks the value itself."""
    value = arm.settings[key]
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else [value]
    if isinstance(usual, bool):
        right, allowed = isinstance(value, bool), "true, false"
    elif isinstance(usual, int):
        right, allowed = type(value) is int and value >= 1, "integers from 1 on"
    else:
        right, allowed = all(type(part) in (int, float) for part in parts), "numbers"
    if not right:
        raise RunError(f"{arm.label} sets {key} to {value!r}; allowed: {allowed}")


def plain_value(text: str) -> Any:
    """JSON, or a plain string when it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def split_outside_brackets(text: str, separator: str) -> list[str]:
    """The parts of a text between separators that stand in no brackets, as those of JSON values do."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]
