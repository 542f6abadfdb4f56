"""The command `esper-agent tune`."""

import argparse
import json
import shlex
import sys
from dataclasses import asdict
from pathlib import Path

from esper_env.files import replace_text

from esper_agent.comparison.command import add_env_settings, names
from esper_agent.comparison.run import versions
from esper_agent.comparison.tuning import TUNABLE, Terms, search

NUMBERS = {
    "trials": "settings that are tried for each agent",
    "steps": "environment steps of a training",
    "seeds": "trainings of each trial",
    "rows": "environments side by side while training",
    "episodes": "validation instances that a trial is scored by",
    "evaluations": "how often a trial is looked at and may be pruned",
}


def add_tune(parser: argparse.ArgumentParser) -> None:
    """Give a parser the arguments of the command."""
    parser.add_argument("--env", dest="env_id", required=True, metavar="ENV_ID", help="id of an Esper environment")
    known = ", ".join(TUNABLE)
    parser.add_argument("--agents", type=names, default=TUNABLE, metavar="NAME,...", help=f"whose settings ({known})")
    for name, meaning in NUMBERS.items():
        default = Terms.__dataclass_fields__[name].default
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{meaning} ({default})")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="where settings and all trials go")
    text = "database of the trials, e.g. postgresql://host/name; processes that share it search together (FILE.db)"
    parser.add_argument("--storage", metavar="URL", help=text)
    add_env_settings(parser, default=[])
    parser.set_defaults(command=tune)


def tune(options: argparse.Namespace) -> None:
    """Search, and write what was found; agents that were left out keep what the file has."""
    terms = Terms(options.env_id, **{name: getattr(options, name) for name in NUMBERS}, env=dict(options.env))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    storage = options.storage or f"sqlite:///{options.out}.db"
    found = search(options.agents, terms, storage, lambda line: print(line, flush=True))
    before = json.loads(options.out.read_text(encoding="utf-8"))["agents"] if options.out.exists() else {}
    about = {"command": f"esper-agent {shlex.join(sys.argv[1:])}", **asdict(terms), "instances": "validation"}
    told = about | {"versions": versions(), "agents": before | found}
    replace_text(options.out, json.dumps(told, indent=2) + "\n")
    for name, one in found.items():
        print(f"{name}: return {one['return']:.3f} with {one['settings']}", flush=True)
