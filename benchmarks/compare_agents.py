"""Our agent beside Stable-Baselines3's and scripted baselines: learning curves, final scores, who is ahead when.

    python benchmarks/compare_agents.py --env Esper-v0 --jobs 2                 # hours; finished runs are not repeated
    python benchmarks/compare_agents.py --env Esper-v0 --report-only            # tables and picture of what is finished
    python benchmarks/compare_agents.py --quick --jobs 2 --results DIR          # a smoke test of two minutes

Every agent has the same steps, rows, thread and held-out instances, and the settings that `esper-agent tune` found for
it. Results go to one file per agent and seed in benchmarks/results/compare_agents_<ID>/, a table and a picture beside
that directory.
"""

import argparse
import sys
from pathlib import Path

from common import RESULTS, command_line
from esper_agent.baselines.tuned import BASELINES, TUNABLE, TUNED, UNTUNED
from esper_agent.comparison.command import add_terms, conduct, names, terms
from esper_agent.comparison.study import Study
from esper_agent.runs.directory import RunError

AGENTS = ("ours", "maskable_ppo", "recurrent_ppo_onecall", "recurrent_ppo", "ppo")
QUICK = Study(
    "Esper-v0",
    ("ours", "maskable_ppo", "recurrent_ppo_onecall", "ppo", "never", "plateau"),
    steps=3_840,
    seeds=2,
    rows=32,
    episodes=16,
    evaluations=4,
)


def everyone(env_id: str) -> tuple[str, ...]:
    """All agents, and the baselines that are ready for an environment."""
    return AGENTS + (BASELINES if (TUNED / f"{env_id}.json").exists() else (*UNTUNED, *TUNABLE))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="Esper-v0", metavar="ID", help="id of an Esper environment (Esper-v0)")
    parser.add_argument("--agents", type=names, metavar="NAME,...", help="who takes part (all)")
    parser.add_argument("--quick", action="store_true", help="a short study of Esper-v0; needs --results")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where results go")
    add_terms(parser)
    options = parser.parse_args()
    if options.quick and options.results == RESULTS:
        parser.error("--quick must not overwrite the published results: give --results DIR")
    try:
        study = QUICK
        if not options.quick:
            study = Study(options.env, options.agents or everyone(options.env), **terms(options))
        stem = options.results / f"compare_agents_{study.env_id}"
        conduct(study, stem, stem, None if options.report_only else options.jobs, command_line(), options.cluster)
    except RunError as error:
        sys.exit(f"compare_agents.py: error: {error}")


if __name__ == "__main__":
    main()
