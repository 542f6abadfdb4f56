"""The commands `esper-agent record`, `imitate` and `iql`."""

import argparse
from typing import Any

from esper_env.config import INSTANCE_SETS

from esper_agent.comparison.command import add_env_settings
from esper_agent.offline.recording import Recording, record
from esper_agent.offline.storage import dataset_path


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
