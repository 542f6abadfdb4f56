"""Check submissions to the leaderboard: runs as `esper-agent compare` writes them, one file per agent and seed.

    python benchmarks/leaderboard.py runs/mine/*.json

Files that are accepted go to benchmarks/results/compare_agents_<ID>/, and `make docs` writes the table.
"""

import argparse
import sys
from pathlib import Path

from esper_agent.comparison.leaderboard import check_files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="runs that are submitted")
    files = parser.parse_args().files
    found = check_files(files)
    print("\n".join(found) or f"{len(files)} runs can be accepted")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
