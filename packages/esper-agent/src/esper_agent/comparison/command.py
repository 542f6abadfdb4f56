"""The command `esper-agent compare`."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from esper_env.cli import INTERRUPTED

from esper_agent.comparison.arms import NAMES, plain_value, split_outside_brackets
from esper_agent.comparison.report import write_report
from esper_agent.comparison.study import HELD_OUT, Study, run_study
from esper_agent.runs.settings import MANAGED, env_settings, list_settings

NUMBERS = {
    "steps": "environment steps of each agent",
    "seeds": "how often each agent is trained",
    "rows": "environments side by side while training",
    "episodes": "held-out instances of each evaluation",
    "evaluations": "how often an agent is evaluated on the way",
}


def add_compare(parser: argparse.ArgumentParser) -> None:
    """Give a parser the arguments of the command."""
    parser.add_argument("--env", dest="env_id", required=True, metavar="ENV_ID", help="id of an Esper environment")
    parser.add_argument(
        "--agents",
        type=names,
        required=True,
        metavar="NAME,...",
        help=f"who takes part: {', '.join(NAMES)}, with settings: ours:memory=none:lstm_size=32; module:Class; RUN",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the runs and the report go")
    add_terms(parser)
    add_env_settings(parser, default=[])
    parser.set_defaults(command=compare)


def add_terms(parser: argparse.ArgumentParser) -> None:
    """Give a parser the terms of a study, and how it is carried out."""
    for name, meaning in NUMBERS.items():
        default = Study.__dataclass_fields__[name].default
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{meaning} ({default})")
    text = "set that evaluations draw from: test, or validation while anything is still chosen (test)"
    parser.add_argument("--instances", choices=HELD_OUT, default="test", help=text)
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time, one thread each (1)")
    text = "Dask scheduler, such as tcp://127.0.0.1:8786, whose workers carry out the runs instead of processes here"
    parser.add_argument("--cluster", metavar="ADDRESS", help=text)
    parser.add_argument("--report-only", action="store_true", help="report what is finished, run nothing")


def add_env_settings(parser: argparse.ArgumentParser, default: Any) -> None:
    """Give a parser the arguments of the environment."""
    text = "arguments of the environment, listed below, e.g. --env-set reward=sparse horizon=40; may be repeated"
    how: dict[str, Any] = {"type": _env_setting, "nargs": "+", "action": "extend", "metavar": "NAME=VALUE"}
    parser.add_argument("--env-set", dest="env", default=default, help=text, **how)
    list_settings(
        parser,
        "what --env-set takes in Esper's environments, in JSON or as a word, with defaults, some of which the ids set",
        env_settings(),
    )


def _env_setting(text: str) -> tuple[str, Any]:
    name, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    if name in MANAGED:
        raise argparse.ArgumentTypeError(f"{name!r} is not for the environment alone; allowed: its other arguments")
    return name, plain_value(value)


def compare(options: argparse.Namespace) -> None:
    """Carry out the runs that are missing and report all."""
    study = Study(options.env_id, options.agents, **terms(options), env=dict(options.env))
    jobs = None if options.report_only else options.jobs
    command = f"esper-agent {shlex.join(sys.argv[1:])}"
    conduct(study, options.out, options.out / "report", jobs, command, options.cluster)


def terms(options: argparse.Namespace) -> dict[str, Any]:
    """The terms of a study as given on the command line."""
    return {name: getattr(options, name) for name in (*NUMBERS, "instances")}


def names(text: str) -> tuple[str, ...]:
    """Words that are separated by commas."""
    return tuple(split_outside_brackets(text, ","))


def conduct(
    study: Study, directory: Path, stem: Path, jobs: int | None, command: str, cluster: str | None = None
) -> None:
    """Run a study and write its report.

    Args:
        study: what to run.
        directory: where the runs go.
        stem: the report's path without suffix.
        jobs: how many runs at a time; None runs nothing and reports what is finished.
        command: what made the report.
        cluster: address of a Dask scheduler whose workers carry out the runs.

    Raises:
        RunError: when a run failed or there is nothing to report.
    """
    try:
        if jobs is not None:
            run_study(study, directory, jobs, lambda line: print(line, flush=True), cluster)
    except KeyboardInterrupt:
        print("\nstopped; the same command carries out the runs that are not finished", flush=True)
        sys.exit(INTERRUPTED)
    write_report(directory, stem, command)
    print(f"report: {stem}.md", flush=True)
