"""The command line: `esper-env data list | path | fetch NAME | import NAME PATH`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import esper_env.tasks  # noqa: F401  (registers the data sets that tasks need)
from esper_env.tasks.data import DATASETS, DataError, Dataset, data_directory, fetch, install

INTERRUPTED = 130  # what a shell reports after Ctrl-C


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and how to get help, and leave with code 2."""
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    options = build_parser().parse_args(arguments)
    try:
        options.command(options)
    except KeyboardInterrupt:
        print("\nstopped; run the same command again to go on", file=sys.stderr, flush=True)
        return INTERRUPTED
    except DataError as error:
        print(f"esper-env: error: {error}", file=sys.stderr)
        return 1
    return 0


def show_list(_: argparse.Namespace) -> None:
    """Print every data set and its state."""
    print(f"data directory: {data_directory()}")
    for name in DATASETS:
        print(f"{name:<14} {_state(DATASETS[name]):<9} {DATASETS[name].summary}")


def _state(dataset: Dataset) -> str:
    return "missing" if dataset.missing() else "damaged" if dataset.damaged() else "complete"


def show_path(_: argparse.Namespace) -> None:
    """Print the data directory."""
    print(data_directory())


def fetch_data(options: argparse.Namespace) -> None:
    """Download a data set unless it is complete."""
    dataset = DATASETS[options.name]
    if not dataset.urls or _state(dataset) != "complete":
        fetch(dataset, _report)
    print(f"{dataset.name} is complete in {dataset.directory}")


def import_data(options: argparse.Namespace) -> None:
    """Install a data set from files on this machine."""
    dataset = DATASETS[options.name]
    install(dataset, options.path, _report)
    print(f"{dataset.name} is complete in {dataset.directory}")


def _report(file: str) -> None:
    print(f"installed {file}", flush=True)


def build_parser() -> OneLineParser:
    """The command line as argparse sees it."""
    parser = OneLineParser(prog="esper-env", description="Look after what the environments need.")
    topics = parser.add_subparsers(title="commands", required=True, metavar="data")
    data = topics.add_parser("data", help="real data for the environments")
    verbs = data.add_subparsers(title="commands", required=True, metavar="{list,path,fetch,import}")
    verbs.add_parser("list", help="data sets and their state").set_defaults(command=show_list)
    verbs.add_parser("path", help="the data directory: $ESPER_DATA, or a cache").set_defaults(command=show_path)
    _add(verbs.add_parser("fetch", help="download a data set")).set_defaults(command=fetch_data)
    importer = _add(verbs.add_parser("import", help="install a data set from files on this machine"))
    importer.add_argument("path", type=Path, metavar="PATH", help=_sources())
    importer.set_defaults(command=import_data)
    return parser


def _add(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("name", choices=list(DATASETS), metavar="NAME", help=", ".join(DATASETS))
    return parser


def _sources() -> str:
    return "; ".join(f"{name}: {DATASETS[name].importable}" for name in DATASETS)
