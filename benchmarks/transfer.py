"""Does knowing how to grow carry over? Agents trained on one id play held-out instances of others, as they are.

    python benchmarks/transfer.py --quick --json transfer.json       # a tiny budget, to see that it works
    python benchmarks/transfer.py --train Esper-v0 Esper-Text-v0     # into benchmarks/results/transfer.{json,md}

Observations do not depend on the task, so an agent can play every id with as many slots and blueprints as its own.
Everyone plays the same test instances, with the same initial weights and data order. The metric is that of the
committed network on the test split, which no step reads. An agent's figures are averaged over its training seeds;
intervals are 95 % bootstrap intervals over instances. The untrained agent shows what the architecture does by itself.
"""

import argparse
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import esper_env  # noqa: F401 (registers the environments)
import gymnasium
import numpy as np
from common import RESULTS, provenance, write_json
from esper_agent.baselines.agents import AGENTS, Agent
from esper_agent.baselines.scripted import GrowOnPlateau, NeverGrow
from esper_agent.evaluation.episodes import Policy
from esper_agent.evaluation.paired import GrowthEpisodes, make_test_env, play
from esper_agent.evaluation.statistics import Estimate, mean

IDS = ("Esper-v0", "Esper-CNN-v0", "Esper-Text-v0")
NEVER, UNTRAINED = "never grow", "untrained agent"
FIRST_SEED = 10_000  # of the test instances


@dataclass(frozen=True)
class Budget:
    """How much is trained and played."""

    steps: int
    rows: int
    seeds: tuple[int, ...]
    episodes: int


FULL = Budget(steps=75_000, rows=64, seeds=(0, 1, 2), episodes=64)
QUICK = Budget(steps=480, rows=8, seeds=(0,), episodes=6)


@dataclass(frozen=True)
class Row:
    """How someone did on one id."""

    played_on: str
    who: str
    metric: Estimate
    gain: Estimate  # of the metric over never growing, by instance
    episode_return: Estimate
    added_parameters: float


def require_alike(ids: list[str]) -> None:
    """Raise unless agents of every id can play all others."""
    spaces = {name: gymnasium.make_vec(name, num_envs=1) for name in ids}
    shapes = {name: (env.single_observation_space, env.single_action_space) for name, env in spaces.items()}
    strangers = [name for name in ids if shapes[name] != shapes[ids[0]]]
    if strangers:
        raise SystemExit(
            f"{strangers[0]} is not like {ids[0]}; allowed: ids with the same numbers of slots and blueprints"
        )


def train(env_id: str, budget: Budget, seed: int) -> Agent:
    print(f"training on {env_id}, seed {seed}", flush=True)
    agent = AGENTS["ours"].build(env_id, budget.rows, seed)
    agent.train(budget.steps)
    return agent


def agents(ids: list[str], budget: Budget) -> dict[str, list[Policy]]:
    """By who they are, one per training seed."""
    trained: dict[str, list[Policy]] = {
        f"trained on {name}": [train(name, budget, seed) for seed in budget.seeds] for name in ids
    }
    return {UNTRAINED: [AGENTS["ours"].build(ids[0], budget.rows, seed) for seed in budget.seeds], **trained}


def averaged(parts: list[GrowthEpisodes]) -> GrowthEpisodes:
    """Each instance's figures, averaged over who played it."""
    fields = zip(*(vars(part).values() for part in parts), strict=True)
    return GrowthEpisodes(*(np.mean(values, axis=0) for values in fields))


def rows(env_id: str, players: dict[str, list[Policy]], episodes: int) -> Iterator[Row]:
    """Everyone on one id, never growing first."""
    env = make_test_env(env_id, episodes)
    play_here = partial(play, env=env, seed=FIRST_SEED)
    never = play_here(NeverGrow(env))
    everyone: dict[str, list[Policy]] = {"plateau": [GrowOnPlateau(env)], **players}
    results = {name: averaged([play_here(policy) for policy in policies]) for name, policies in everyone.items()}
    for who, result in {NEVER: never, **results}.items():
        metric, gain = result.test_accuracy, result.test_accuracy - never.test_accuracy
        added = float(result.added_parameters.mean())
        yield Row(env_id, who, mean(metric), mean(gain), mean(result.episode_return), added)


def table(found: list[Row]) -> str:
    titles = ("played on", "who", "test metric", "gain over never growing", "return", "added parameters")
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for row in found:
        cells = (row.played_on, row.who, row.metric, row.gain, row.episode_return, f"{row.added_parameters:.0%}")
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def report(result: dict[str, Any], found: list[Row]) -> str:
    facts, budget = result["provenance"], Budget(**result["budget"])
    return "\n".join(
        [
            "# Transfer",
            "",
            *(__doc__ or "").split("\n\n")[2].splitlines(),
            "",
            table(found),
            "",
            f"{budget.steps:,} training steps, {len(budget.seeds)} training seeds, {budget.episodes} test instances.",
            f"`{facts['command']}`; torch {facts['versions']['torch']}, {facts['threads']} threads.",
            "",
        ]
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", nargs="+", default=["Esper-v0"], metavar="ID", help="ids to train agents on")
    parser.add_argument("--play", nargs="+", default=list(IDS), metavar="ID", help="ids on which all agents play")
    parser.add_argument("--quick", action="store_true", help="a tiny budget that proves nothing but that it works")
    parser.add_argument("--steps", type=int, default=FULL.steps, help="environment steps of each training")
    parser.add_argument("--json", metavar="PATH", help="where to write the result (default: benchmarks/results)")
    return parser.parse_args()


def main() -> None:
    args = parse()
    require_alike([*args.train, *args.play])
    budget = QUICK if args.quick else Budget(args.steps, FULL.rows, FULL.seeds, FULL.episodes)
    players = agents(args.train, budget)
    found = [row for env_id in args.play for row in rows(env_id, players, budget.episodes)]
    result = {"budget": asdict(budget), "rows": [asdict(row) for row in found], "provenance": provenance()}
    text = report(result, found)
    print("\n" + text)
    write_json(args.json or RESULTS / "transfer.json", result)
    if not args.quick:
        (RESULTS / "transfer.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
