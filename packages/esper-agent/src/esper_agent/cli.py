"""The command line: train, evaluate, play, report, compare, tune, record, imitate, iql, upgrade."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from esper_env.cli import INTERRUPTED, OneLineParser
from esper_env.config import INSTANCE_SETS

from esper_agent.algorithm.archive import CheckpointError
from esper_agent.algorithm.checkpoint import upgrade_checkpoint
from esper_agent.algorithm.quarantine import NonFiniteError
from esper_agent.comparison.arms import plain_value
from esper_agent.comparison.command import add_compare, add_env_settings
from esper_agent.comparison.measuring import measure, table
from esper_agent.comparison.tune_command import add_tune
from esper_agent.config import FIELD_NAMES
from esper_agent.distributed import LostRanksError, Ranks, join_ranks
from esper_agent.offline.commands import add_learning, add_record
from esper_agent.playing import add_play
from esper_agent.pretrained import pretrained_ids
from esper_agent.report import write_report
from esper_agent.runs.directory import RunConfig, RunDirectory, RunError, find_checkpoint
from esper_agent.runs.profiling import describe_profile
from esper_agent.runs.settings import add_loggers, agent_settings, list_settings
from esper_agent.runs.stopping import Interrupted
from esper_agent.runs.training import find_agent, load_agent, resume_run, start_run, using_threads


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    try:
        options.command(options)
    except Interrupted as stop:
        print(stop, flush=True)
        return stop.code
    except KeyboardInterrupt:
        begun = options.command is train and RunDirectory(options.run_dir).config_file.exists()
        hint = "; the run continues from its last checkpoint with --resume" if begun else ""
        print(f"\nstopped at once{hint}", flush=True)
        return INTERRUPTED
    except (RunError, CheckpointError, LostRanksError, NonFiniteError) as error:
        print(f"esper-agent: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


def train(options: argparse.Namespace) -> None:
    """Start or continue a run, together with the other ranks if torchrun started this process."""
    with join_ranks() as ranks:
        run = _train(options, ranks)
        if ranks.leads:
            _say_finished(run, profile=options.profile)


def _train(options: argparse.Namespace, ranks: Ranks) -> RunDirectory:
    run = RunDirectory(options.run_dir, trusted=options.trust)
    given = {name: getattr(options, name) for name in RunConfig.__dataclass_fields__ if hasattr(options, name)}
    given |= {name: dict(given[name]) for name in ("agent", "env") if name in given}
    if "start_from" in given:
        given = _like_the_start(given, trusted=options.trust)
    if options.resume:
        _refuse_offline(run)
        changes: dict[str, Any] = {name: given.pop(name) for name in ("device", "threads") if name in given}
        if given:
            superfluous = ", ".join(_as_typed(name) for name in sorted(given))
            options.parser.error(f"--resume takes its settings from {run.config_file}; leave out {superfluous}")
        resume_run(run, changes, progress_bar=options.progress, profile=options.profile, ranks=ranks)
    elif "env_id" not in given:
        options.parser.error("name an environment, such as Esper-v0, or continue the run in --run-dir with --resume")
    else:
        config = RunConfig(**given)
        start_run(run, config, progress_bar=options.progress, profile=options.profile, ranks=ranks)
    return run


def _like_the_start(given: dict[str, Any], *, trusted: bool) -> dict[str, Any]:
    """The settings of a run that begins with another's agent: those of that one where none are given."""
    run, _ = find_checkpoint(Path(given["start_from"]), trusted=trusted)
    start = run.read_config()
    same: dict[str, Any] = {"env_id": start.env_id, "n_envs": start.n_envs}
    both = {name: getattr(start, name) | given.get(name, {}) for name in ("agent", "env")}
    return same | given | both


def _refuse_offline(run: RunDirectory) -> None:
    if run.offline_file.exists():
        raise RunError(f"{run.path} learns from a dataset; its own command continues it, or train --from it elsewhere")


def _say_finished(run: RunDirectory, *, profile: bool) -> None:
    if profile:
        print(describe_profile(run.profile_directory), flush=True)
    print(f"finished: {run.latest_checkpoint()}, learning curve in {run.picture_file}", flush=True)


def evaluate(options: argparse.Namespace) -> None:
    """Print how a trained agent does on instances that no training saw, beside never growing and the oracle."""
    config, checkpoint = find_agent(options.path, options.pretrained, trusted=options.trust)
    config = replace(config, env=config.env | dict(options.env))
    model = load_agent(config, checkpoint, options.device)
    terms = (options.instances, options.episodes, options.seed)
    with using_threads(options.threads):
        found = measure(model, config, *terms, deterministic=options.deterministic)
    paired = len(found) > 1
    about = {
        "checkpoint": str(checkpoint),
        "env_id": config.env_id,
        "instances": options.instances if paired else None,
        "episodes": options.episodes,
    }
    where = f"{options.episodes} {options.instances} instances" if paired else f"{options.episodes} episodes"
    text = f"{config.env_id}, {where} ({checkpoint})\n{table(found)}"
    print(json.dumps(about | found) if options.json else text, flush=True)


def report(options: argparse.Namespace) -> None:
    """Write a page about one run or several."""
    runs = [RunDirectory(path, trusted=options.trust) for path in options.run_dir]
    path = options.out or runs[0].report_file
    for missing in write_report(runs, path, episodes=options.episodes, seed=options.seed, device=options.device):
        print(missing, flush=True)
    print(f"report: {path}", flush=True)


def upgrade(options: argparse.Namespace) -> None:
    """Bring a checkpoint to the current version."""
    before, after = upgrade_checkpoint(options.file)
    done = "is current" if before == after else f"was upgraded from version {before}"
    print(f"{options.file} {done} (version {after})", flush=True)


def build_parser() -> OneLineParser:
    """The command line as argparse sees it."""
    parser = OneLineParser(prog="esper-agent", description="Train and evaluate factored, masked, recurrent PPO agents.")
    names = "{train,evaluate,play,report,compare,tune,record,imitate,iql,upgrade}"
    commands = parser.add_subparsers(title="commands", required=True, metavar=names)
    _add_train(commands.add_parser("train", help="train an agent in a run directory"))
    _add_evaluate(commands.add_parser("evaluate", help="measure a trained agent"))
    command = commands.add_parser("play", help="show an episode of a trained agent")
    _add_agent(command)
    add_play(command)
    _add_report(commands.add_parser("report", help="write a page of charts about a run"))
    add_compare(commands.add_parser("compare", help="train agents side by side and report who is ahead"))
    add_tune(commands.add_parser("tune", help="search the settings of agents on validation instances"))
    command = commands.add_parser("record", help="write episodes that baselines or agents play as a Minari dataset")
    add_record(command)
    _add_trust(command)
    learning = {"imitate": "learn to decide as recorded", "iql": "learn from a dataset by implicit Q-learning"}
    for name, meaning in learning.items():
        command = commands.add_parser(name, help=meaning)
        add_learning(command, name)
        _add_agent_settings(command)
        _add_trust(command)
    command = commands.add_parser("upgrade", help="bring a checkpoint to the current version, in place")
    command.add_argument("file", type=Path, metavar="FILE", help="the checkpoint")
    command.set_defaults(command=upgrade)
    return parser


def _add_train(parser: argparse.ArgumentParser) -> None:
    unset: Any = argparse.SUPPRESS
    defaults = RunConfig("")
    parser.add_argument("env_id", nargs="?", default=unset, metavar="ENV_ID", help="id of the environment")
    parser.add_argument("--run-dir", type=Path, required=True, metavar="DIR", help="where everything of the run goes")
    parser.add_argument("--resume", action="store_true", help="continue the run in DIR from its newest checkpoint")
    numbers = {
        "total_timesteps": "environment steps of the run, over all environments",
        "n_envs": "environments side by side; under torchrun in total, a multiple of the number of ranks",
        "seed": "seed of agent and environments",
        "checkpoint_every": "environment steps between checkpoints",
        "keep_checkpoints": "how many of the newest checkpoints stay",
        "eval_every": "steps between evaluations on validation instances, of which the best agent is kept; 0 for none",
        "threads": "threads that torch may use; 0 leaves them to torch",
    }
    by_environment = "64 of Esper's, 8 of others"
    for name, meaning in numbers.items():
        default = getattr(defaults, name)
        flag, text = f"--{name.replace('_', '-')}", f"{meaning} ({by_environment if default is None else default})"
        parser.add_argument(flag, type=int, default=unset, metavar="N", help=text)
    parser.add_argument(
        "--device", default=unset, help=f"cpu or cuda; under torchrun each rank has its own GPU ({defaults.device})"
    )
    add_loggers(parser)
    _add_agent_settings(parser)
    text = "run directory or checkpoint whose agent the run begins with; settings that are not given are its own"
    parser.add_argument("--from", dest="start_from", default=unset, metavar="RUN_OR_CHECKPOINT", help=text)
    text = "weight of the divergence from the agent of --from in the loss, which fades over the run (0)"
    parser.add_argument("--pull", type=float, default=unset, metavar="X", help=text)
    _add_trust(parser)
    add_env_settings(parser, default=unset)
    parser.add_argument("--profile", action="store_true", help="measure phases and write a torch trace of some updates")
    parser.add_argument("--no-progress", dest="progress", action="store_false", help="show no progress bar")
    parser.set_defaults(command=train, parser=parser)


def _add_agent_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set", dest="agent", type=_agent_setting, action="append", default=argparse.SUPPRESS, metavar="NAME=VALUE",
        help="a setting of the agent, listed below, e.g. --set learning_rate=3e-4; may be repeated",
    )  # fmt: skip
    list_settings(parser, "what --set takes, in JSON or as a word, with defaults", agent_settings())


def _add_evaluate(parser: argparse.ArgumentParser) -> None:
    _add_agent(parser)
    parser.add_argument("--episodes", type=_positive, default=100, metavar="N", help="whole episodes to play (100)")
    parser.add_argument("--seed", type=_seed, default=10_000, metavar="N", help="seed of the environments (10000)")
    held_out = INSTANCE_SETS[1:]
    text = f"instances that no training sees: {' or, for final results, '.join(held_out)} ({held_out[0]})"
    parser.add_argument("--instances", choices=held_out, default=held_out[0], metavar="SET", help=text)
    parser.add_argument("--threads", type=_positive, default=0, metavar="N", help="threads that torch may use")
    parser.add_argument("--stochastic", dest="deterministic", action="store_false", help="sample the actions")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=evaluate)


def _add_agent(parser: argparse.ArgumentParser) -> None:
    """Which trained agent, and where it plays."""
    which = parser.add_mutually_exclusive_group(required=True)
    text = "a run directory or one of its checkpoints"
    which.add_argument("path", type=Path, nargs="?", metavar="RUN_OR_CHECKPOINT", help=text)
    text = f"the agent that comes with the package: {', '.join(pretrained_ids())}"
    which.add_argument("--pretrained", metavar="ENV_ID", help=text)
    add_env_settings(parser, default=[])
    _add_device(parser)
    _add_trust(parser)


def _add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", help="cpu or cuda (that of the run)")


def _add_trust(parser: argparse.ArgumentParser) -> None:
    text = "import the module that a run's config.json names for its environment, as in module:Id; it runs as your code"
    parser.add_argument("--trust", action="store_true", help=text)


def _add_report(parser: argparse.ArgumentParser) -> None:
    several = "run directories; several in one environment give intervals over runs"
    parser.add_argument("run_dir", type=Path, nargs="+", metavar="RUN_DIR", help=several)
    _add_device(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="the page (report.html in the first RUN_DIR)")
    parser.add_argument("--episodes", type=_positive, default=32, metavar="N", help="held-out episodes to play (32)")
    parser.add_argument("--seed", type=_seed, default=10_000, metavar="N", help="seed of the first of them (10000)")
    _add_trust(parser)
    parser.set_defaults(command=report)


def _agent_setting(text: str) -> tuple[str, Any]:
    """NAME=VALUE, where the value is JSON, or a plain string when it is not."""
    name, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    if name not in FIELD_NAMES:
        raise argparse.ArgumentTypeError(f"{name!r} is no setting of the agent; allowed: {', '.join(FIELD_NAMES)}")
    return name, plain_value(value)


def _as_typed(name: str) -> str:
    """A setting of a run as it is given on the command line."""
    return {
        "env_id": "ENV_ID",
        "agent": "--set",
        "env": "--env-set",
        "start_from": "--from",
        "loggers": "--logger",
    }.get(name, f"--{name.replace('_', '-')}")


def _positive(text: str) -> int:
    return _at_least(1, text)


def _seed(text: str) -> int:
    return _at_least(0, text)


def _at_least(least: int, text: str) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least {least}")
    return int(text)
