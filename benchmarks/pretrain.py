"""Train the agents that come with the package, and write what they score into their cards.

    python benchmarks/pretrain.py Esper-v0                                   # about five minutes of one core
    python benchmarks/pretrain.py Esper-v0 Esper-Deep-v0 --seeds 0 1 2       # the best of three on validation instances
    python benchmarks/pretrain.py Esper-v0 --quick --out /tmp/agents         # a tiny budget, to see that it works

Each id becomes two files of `esper_agent/pretrained`, which replace those that are there: a checkpoint without what
only the training needs (moments of the optimiser, rollout, environments), and its card. Which seed is shipped is
decided on validation instances; the card's results are those of test instances, which nothing else read. Intervals are
95 % bootstrap intervals over instances.
"""

import argparse
import time
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from common import provenance, write_json
from esper_agent import FactoredRecurrentPPO
from esper_agent.algorithm.checkpoint import State, save_checkpoint
from esper_agent.comparison.participants import tuned_baseline
from esper_agent.evaluation.episodes import Policy
from esper_agent.evaluation.paired import GrowthEpisodes, make_test_env, play
from esper_agent.evaluation.statistics import mean
from esper_agent.pretrained import DIRECTORY
from esper_agent.runs.directory import RunError

SETTINGS: dict[str, Any] = {"memory_skip": True}  # of the agent, other than its defaults
REFERENCES = ("never", "plateau", "oracle")
MEASURES = ("discounted_return", "test_accuracy", "added_parameters")
FIRST_SEED = 10_000  # of the instances
CHECKED = 16  # test instances whose returns stand in the card, one by one


@dataclass(frozen=True)
class Budget:
    """How much is trained and played."""

    steps: int
    seeds: tuple[int, ...]
    episodes: int


@dataclass(frozen=True)
class Trained:
    """An agent and how it came about."""

    agent: FactoredRecurrentPPO
    seed: int
    validation: float  # mean return
    minutes: float


def train(env_id: str, seed: int, budget: Budget) -> Trained:
    """One agent, measured on validation instances."""
    begun = time.perf_counter()
    agent = FactoredRecurrentPPO(env_id, seed=seed, **SETTINGS).learn(budget.steps)
    minutes = (time.perf_counter() - begun) / 60
    env = make_test_env(env_id, budget.episodes, instances="validation")
    score = float(play(agent, env, FIRST_SEED).discounted_return.mean())
    print(f"{env_id}, seed {seed}: {score:.3f} on validation instances, {minutes:.1f} minutes", flush=True)
    return Trained(agent, seed, score, minutes)


def played(env_id: str, agent: Policy, episodes: int) -> dict[str, GrowthEpisodes]:
    """The agent and the references on the same test instances."""
    env = make_test_env(env_id, episodes)
    found = {"agent": play(agent, env, FIRST_SEED)}
    for name in REFERENCES:
        try:
            found[name] = play(tuned_baseline(name, env_id, env), env, FIRST_SEED)
        except (RunError, ValueError) as error:  # no oracle was tuned there
            print(f"{env_id}: no {name}: {error}", flush=True)
    return found


def scores(found: GrowthEpisodes, never: GrowthEpisodes) -> dict[str, Any]:
    """Means with their intervals, and the paired gain over never growing."""
    measured = {name: asdict(mean(getattr(found, name))) for name in MEASURES}
    return measured | {"gain_in_return": asdict(mean(found.discounted_return - never.discounted_return))}


def slim(state: State) -> State:
    """Without what only the training needs; new episodes begin where it is loaded."""
    own: State = {"env": None, "other_ranks": [], "rollout": {}, "collector": {"starts": state["collector"]["starts"]}}
    return {**state, "optimizer": {}, **own}


def limits(env_id: str, agent: FactoredRecurrentPPO) -> list[str]:
    """What the figures do not say."""
    entities = agent.action_spec.sizes[agent.action_spec.heads.index("slot")]
    kinds = agent.action_spec.sizes[agent.action_spec.heads.index("blueprint")]
    return [
        "One agent: another training seed gives another; the spread over seeds stands in the studies of the agent.",
        f"It was trained on train instances of {env_id} alone, at its default costs, horizon and measurements.",
        f"It plays hosts of {entities} slots and {kinds} blueprints; what it does on other data was not trained.",
    ]


def card(env_id: str, best: Trained, tried: list[Trained], budget: Budget, file: Path) -> dict[str, Any]:
    """What a user should know about the shipped file."""
    found = played(env_id, best.agent, budget.episodes)
    policy, checked = best.agent.policy.state_dict(), found["agent"].discounted_return[:CHECKED]
    return {
        "env_id": env_id,
        "sha256": sha256(file.read_bytes()).hexdigest(),
        "parameters": sum(tensor.numel() for tensor in policy.values()),
        "training": {
            "steps": best.agent.num_timesteps,
            "environments": best.agent.n_envs,
            "settings": SETTINGS,
            "seed": best.seed,
            "return_on_validation_by_seed": {str(one.seed): one.validation for one in tried},
            "minutes": best.minutes,
        },
        "results": {
            "instances": "test",
            "first_seed": FIRST_SEED,
            "episodes": budget.episodes,
            **{name: scores(episodes, found["never"]) for name, episodes in found.items()},
        },
        "check": {
            "first_seed": FIRST_SEED,
            "returns": checked.round(4).tolist(),
        },
        "limits": limits(env_id, best.agent),
        "provenance": provenance(),
    }


def ship(env_id: str, budget: Budget, directory: Path) -> None:
    """Train, choose, measure and write."""
    tried = [train(env_id, seed, budget) for seed in budget.seeds]
    best = max(tried, key=lambda one: one.validation)
    file = directory / f"{env_id}.ckpt"
    save_checkpoint(file, slim(best.agent.state_dict()))
    about = card(env_id, best, tried, budget, file)
    write_json(directory / f"{env_id}.json", about)
    print(f"{env_id}: {mean_return(about)} on test instances, {file.stat().st_size / 1024:.0f} kB", flush=True)


def mean_return(about: dict[str, Any]) -> str:
    """Everybody's mean return in one line."""
    results = about["results"]
    return ", ".join(f"{who} {results[who]['discounted_return']['point']:.3f}" for who in results if who in PLAYERS)


PLAYERS = ("agent", *REFERENCES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="+", metavar="ID", help="environments to train an agent for")
    parser.add_argument("--steps", type=int, default=150_000, help="environment steps of each training (150,000)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="training seeds; the best is shipped")
    parser.add_argument("--quick", action="store_true", help="a tiny budget that proves nothing but that it works")
    parser.add_argument("--out", type=Path, default=DIRECTORY, help="where to write (inside the package)")
    args = parser.parse_args()
    budget = Budget(1920, (0,), CHECKED) if args.quick else Budget(args.steps, tuple(args.seeds), 200)
    for env_id in args.ids:
        ship(env_id, budget, args.out)


if __name__ == "__main__":
    main()
