"""What `--logger`, `--set` and `--env-set` take, with defaults and meanings, read from where they are documented."""

import argparse
import re
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import fields
from inspect import cleandoc
from typing import Any

from esper_env import HEADS, EsperEnv
from stable_baselines3.common.utils import LinearSchedule

from esper_agent.algorithm.defaults import N_ENVS_WITH_ENTITIES, entity_settings
from esper_agent.config import PPOConfig
from esper_agent.runs.trackers import LOGGERS, TENSORBOARD

MANAGED = ("task", "num_envs", "render_mode", "autoreset_mode", "output", "device", "instances")
OF_THE_AGENT = re.compile(r"^    (\w+): (.*(?:\n {8,}.*)*)", re.MULTILINE)
OF_THE_ENVIRONMENT = re.compile(r"^- `(\w+)` \((.*?)\): (.*(?:\n {2,}.*)*)", re.MULTILINE)
Setting = tuple[str, str, str]  # name, default, meaning


def agent_settings() -> list[Setting]:
    """Every field of `PPOConfig`, and what it is in Esper's environments where that is something else."""
    meanings = dict(OF_THE_AGENT.findall(cleandoc(PPOConfig.__doc__ or "")))
    in_esper = entity_settings(HEADS, N_ENVS_WITH_ENTITIES)
    settings = []
    for field in fields(PPOConfig):
        default = "its own defaults" if field.name == "detectors" else _short(field.default)
        if field.name in in_esper:
            default += f"; Esper's {_short(in_esper[field.name])}"
        settings.append((field.name, default, meanings.get(field.name, "")))
    return settings


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_short(one)}" for name, one in value.items())
    return f"{value.start:g} falling to {value.end:g}" if isinstance(value, LinearSchedule) else str(value)


def env_settings() -> list[Setting]:
    """The arguments of Esper's environments that a command leaves to its user."""
    arguments = cleandoc(EsperEnv.__doc__ or "").partition("## Arguments")[2]
    found = [(name, default, meaning) for name, default, meaning in OF_THE_ENVIRONMENT.findall(arguments)]
    return [setting for setting in found if setting[0] not in MANAGED]


def add_loggers(parser: argparse.ArgumentParser) -> None:
    """Give a parser the services that a run's log may go to."""
    text = f"where the log goes beside metrics.jsonl: {', '.join(LOGGERS)}; may be repeated ({TENSORBOARD})"
    how: dict[str, Any] = {"choices": LOGGERS, "action": "append", "default": argparse.SUPPRESS, "metavar": "NAME"}
    parser.add_argument("--logger", dest="loggers", help=text, **how)


def list_settings(parser: argparse.ArgumentParser, title: str, settings: Sequence[Setting]) -> None:
    """Add a list to the end of a parser's help."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    width = min(shutil.get_terminal_size().columns, 120)
    lines = [textwrap.fill(_line(*each), width, initial_indent="  ", subsequent_indent="      ") for each in settings]
    parser.epilog = "\n".join([*([f"{parser.epilog}\n"] if parser.epilog else []), f"{title}:", *lines])


def _line(name: str, default: str, meaning: str) -> str:
    return f"{name} ({default}): {' '.join(meaning.split())}"
