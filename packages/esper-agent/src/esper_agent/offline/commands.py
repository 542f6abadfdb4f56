"""The commands `esper-agent record`, `imitate` and `iql`."""

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

from esper_env import HEADS, Op
from esper_env.config import INSTANCE_SETS

from esper_agent.comparison.command import add_env_settings
from esper_agent.offline.recording import Recording, record
from esper_agent.offline.storage import dataset_path
from esper_agent.offline.training import METHODS, OfflinePlan, read_plan, resume_offline, start_offline
from esper_agent.runs.directory import RunConfig, RunDirectory, RunError
from esper_agent.runs.settings import add_loggers

WORDS = {
    "epochs": "passes over the dataset, at most",
    "minibatch": "episodes of one gradient step",
    "learning_rate": "at the beginning; it falls to 0 over all epochs",
    "held_out": "share of the episodes that are only for judging",
    "patience": "epochs without a lower held-out loss after which it stops",
    "expectile": "of the action values that V follows",
    "inverse_temperature": "log-weight of an advantage of one standard deviation in the extraction",
    "most_weight": "largest weight of a step in the extraction",
    "target_rate": "share of the way that target networks go per step",
    "trace": "lambda of the returns that Q learns from",
}
RUN_NUMBERS = {"seed": "seed of the agent and of the split", "threads": "threads that torch may use"}


def add_record(parser: argparse.ArgumentParser) -> None:
    """Give a parser the arguments of `record`."""
    parser.add_argument("--env", dest="env_id", required=True, metavar="ENV_ID", help="id of an Esper environment")
    parser.add_argument(
        "--policy", dest="policies", type=_weighted, action="append", required=True, metavar="NAME[=WEIGHT]",
        help="who plays: a baseline, or the path of a run directory or checkpoint; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--out", dest="dataset", required=True, metavar="DATASET", help="its name, such as esper/mixed-v0"
    )
    numbers = {"episodes": "whole episodes in all", "seed": "seed of the first", "rows": "environments side by side"}
    for name, meaning in numbers.items():
        default = Recording.__dataclass_fields__[name].default
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{meaning} ({default})")
    text = f"instances to play: {', '.join(INSTANCE_SETS)} ({INSTANCE_SETS[0]})"
    parser.add_argument("--instances", choices=INSTANCE_SETS, default=INSTANCE_SETS[0], metavar="SET", help=text)
    text = "sample the actions of trained agents"
    parser.add_argument("--stochastic", dest="deterministic", action="store_false", help=text)
    add_env_settings(parser, default=[])
    parser.set_defaults(command=_record)


def _record(options: argparse.Namespace) -> None:
    own: dict[str, Any] = {"policies": tuple(options.policies), "env": dict(options.env), "trusted": options.trust}
    given = {name: getattr(options, name) for name in Recording.__dataclass_fields__ if name not in own}
    digest = record(Recording(**given, **own))
    where = dataset_path(options.dataset)
    print(f"recorded: {options.dataset}, {options.episodes} episodes, in {where}\nsha256: {digest}", flush=True)


def _weighted(text: str) -> tuple[str, float]:
    """NAME or NAME=WEIGHT."""
    name, separator, weight = text.rpartition("=")
    if not separator:
        return text, 1.0
    try:
        return name, float(weight)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME or NAME=WEIGHT") from error


def add_learning(parser: argparse.ArgumentParser, method: str) -> None:
    """Give a parser the arguments of a method that learns from a dataset; `--set` is the caller's to add."""
    unset: Any = argparse.SUPPRESS
    parser.add_argument("dataset", nargs="?", default=unset, metavar="DATASET", help="name of a recorded dataset")
    parser.add_argument("--run-dir", type=Path, required=True, metavar="DIR", help="where everything of the run goes")
    parser.add_argument("--resume", action="store_true", help="continue the run in DIR from its newest checkpoint")
    for field in fields(METHODS[method][1]):
        number = type(field.default)
        text = f"{WORDS[field.name]} ({field.default})"
        parser.add_argument(_flag(field.name), type=number, default=unset, metavar="N", help=text)
    for name, meaning in RUN_NUMBERS.items():
        default = RunConfig.__dataclass_fields__[name].default
        parser.add_argument(_flag(name), type=int, default=unset, metavar="N", help=f"{meaning} ({default})")
    parser.add_argument("--device", default=unset, help=f"cpu or cuda ({RunConfig.device})")
    add_loggers(parser)
    parser.set_defaults(command=_learn, method=method, parser=parser)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _learn(options: argparse.Namespace) -> None:
    run = RunDirectory(options.run_dir, trusted=options.trust)
    own = {field.name for field in fields(METHODS[options.method][1])}
    given = {name: value for name, value in vars(options).items() if name in own}
    run_settings = {
        name: getattr(options, name) for name in (*RUN_NUMBERS, "device", "agent", "loggers") if hasattr(options, name)
    }
    named = getattr(options, "dataset", None)
    if options.resume:
        if given or run_settings or named:
            options.parser.error(f"--resume takes its settings from {run.offline_file}; leave the others out")
        resume_offline(run, options.method, print)
    elif named is None:
        options.parser.error("name a dataset, such as esper/mixed-v0, or continue the run in --run-dir with --resume")
    else:
        run_settings |= {"agent": dict(run_settings.get("agent", {}))}
        plan = OfflinePlan(options.method, named, _settings(options.method, given))
        start_offline(run, plan, RunConfig("", **run_settings), print)
    print(_summary(run), flush=True)


def _settings(method: str, given: dict[str, Any]) -> Any:
    try:
        return METHODS[method][1](**given)
    except ValueError as error:
        raise RunError(str(error)) from error


def _summary(run: RunDirectory) -> str:
    """The last line of the run's metrics in words."""
    last, plan = run.metrics()[-1], read_plan(run)
    parts = [f"{name} {value:.1%}" for name, value in _shown(last, "held_out/accuracy/", {})]
    names = (
        {str(int(op)): op.name for op in Op} if last.keys() >= {f"held_out/accuracy/{head}" for head in HEADS} else {}
    )
    recalls = [f"{name} {value:.1%}" for name, value in _shown(last, "held_out/recall/", names)]
    told = f"accuracy by head: {', '.join(parts)}\nwhole actions by op: {', '.join(recalls)}\n" if parts else ""
    return f"{told}finished: {run.latest_checkpoint()}, learnt from {plan.dataset}"


def _shown(row: dict[str, Any], prefix: str, names: dict[str, str]) -> list[tuple[str, float]]:
    found = ((key.removeprefix(prefix), value) for key, value in row.items() if key.startswith(prefix))
    return [(names.get(name, name), value) for name, value in found if value is not None]
