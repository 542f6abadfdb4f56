"""What a setting of the agent earns: train several seeds of named settings, judge them on validation instances.

    python benchmarks/agent_settings.py --arms default no_memory --seeds 10 --out settings.jsonl
    python benchmarks/agent_settings.py --arms default 'shy={"idle_bias": 2}' --until 0.25 --out settings.jsonl
    python benchmarks/agent_settings.py --show settings.jsonl

Every run is a line of the output, with the mean discounted return at a quarter, half and all of its steps, in all and
by the number of lesions; never growing and the oracle play the same instances. Runs that the file already holds are not
repeated. `--until 0.25` ends every run at a quarter of the steps that its schedules are made for.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import esper_env  # noqa: F401 (registers the environments)
import numpy as np
import torch
from common import provenance
from esper_agent.algorithm.environments import make_vector_env
from esper_agent.algorithm.schedules import restore
from esper_agent.baselines.oracle import lesions
from esper_agent.comparison.participants import tuned_baseline
from esper_agent.evaluation import EvalCallback
from esper_agent.evaluation.episodes import Env, Floats, Policy
from esper_agent.evaluation.paired import make_test_env, play
from esper_agent.evaluation.statistics import iqm
from esper_agent.ppo import FactoredRecurrentPPO
from stable_baselines3.common.callbacks import BaseCallback

ARMS: dict[str, dict[str, Any]] = {
    "default": {},
    "no_memory_skip": {"memory_skip": False},
    "gru": {"memory": "gru"},
    "no_memory": {"memory": "none"},
    "marginal_masks": {"masks": "marginal"},
    "no_masks": {"masks": "none"},
    "flat_encoder": {"entity_size": 0},
    "no_neighbours": {"entity_neighbours": False},
    "independent_heads": {"condition_on_op": False},
    "no_popart": {"normalize_values": False},
    "entropy_in_nats": {"entropy_unit": "nats"},
    "no_idle_bias": {"idle_bias": 0.0},
}
REFERENCES = ("never", "oracle")
SHARES = (0.25, 0.5, 1.0)
FIRST_INSTANCE = 20_000
Run = dict[str, Any]


class StopAt(BaseCallback):
    """Ends a training whose schedules are made for more steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    def _on_step(self) -> bool:
        return self.model.num_timesteps <= self.steps


def by_lesions(returns: Floats, env: Env) -> dict[str, float]:
    """The mean return in all, and of the instances with each number of lesions."""
    count = lesions(env).sum(axis=1)
    strata = {f"lesions_{number}": returns[count == number] for number in np.unique(count)}
    return {name: round(float(part.mean()), 5) for name, part in {"return": returns, **strata}.items()}


def judge(policy: Policy, env: Env) -> dict[str, float]:
    return by_lesions(play(policy, env, FIRST_INSTANCE).discounted_return, env)


def train(arm: str, seed: int, options: argparse.Namespace, env: Env) -> Run:
    settings = {name: restore(name, value) for name, value in options.arms[arm].items()}
    rows = settings.pop("n_envs", options.rows)
    model = FactoredRecurrentPPO(make_vector_env(options.env, rows, **options.settings), seed=seed, **settings)

    def measure() -> dict[str, float]:
        found = judge(model, env)
        return {**found, "episode_return": found["return"]}

    due = [int(options.steps * share) for share in SHARES if share <= options.until]
    callback = EvalCallback(env, eval_at=due, measure=measure)
    model.learn(options.steps, [callback, StopAt(due[-1])], log_interval=None)
    if callback.due or options.until == 1:
        callback.evaluate()
    return {"parameters": sum(part.numel() for part in model.policy.parameters()), "curve": callback.curve}


def describe(arm: str, seed: int, options: argparse.Namespace) -> Run:
    """What a run is: two runs with the same description are the same run."""
    return {
        "env": options.env,
        "env_settings": options.settings,
        "arm": arm,
        "settings": options.arms.get(arm, {}),
        "seed": seed,
        "steps": options.steps,
        "until": options.until,
        "rows": options.rows,
        "instances": options.instances,
        "episodes": options.episodes,
    }


def read(path: Path) -> list[Run]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def run(options: argparse.Namespace) -> None:
    env = make_test_env(options.env, options.episodes, **{**options.settings, "instances": options.instances})
    plans = [
        (arm, seed) for seed in range(options.first_seed, options.first_seed + options.seeds) for arm in options.arms
    ]
    for arm, seed in [*((name, 0) for name in REFERENCES), *plans]:
        plan = describe(arm, seed, options)
        if any(all(line[key] == value for key, value in plan.items()) for line in read(options.out)):
            continue
        found = (
            {"curve": [judge(tuned_baseline(arm, options.env, env), env)]}
            if arm in REFERENCES
            else train(arm, seed, options, env)
        )
        line = {**plan, **found, "provenance": provenance()}
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(arm, seed, *(f"{point['return']:.3f}" for point in found["curve"]), flush=True)


def shares(lines: Sequence[Run], name: str) -> dict[str, list[list[float]]]:
    """The share of the oracle's gain, by arm a list of points for each seed."""
    reference = {line["arm"]: line["curve"][0] for line in lines if line["arm"] in REFERENCES}
    never, oracle = reference["never"][name], reference["oracle"][name]
    found: dict[str, list[list[float]]] = {}
    for line in lines:
        if line["arm"] not in REFERENCES:
            gains = [(point[name] - never) / (oracle - never) for point in line["curve"]]
            found.setdefault(line["arm"], []).append(gains)
    return found


def show(path: Path) -> None:
    """The share of the oracle's gain at every point, each seed's, and at the end by lesions."""
    lines = read(path)
    strata = [name for name in lines[0]["curve"][0] if name.startswith("lesions_")]
    for arm, runs in sorted(shares(lines, "return").items()):
        print(arm)
        for place in range(min(map(len, runs))):
            points = np.array([gains[place] for gains in runs])
            print(f"  point {place}: IQM {iqm(points)}, worst {points.min():.2f}:", *(f"{p:.2f}" for p in points))
        for name in strata:
            last = np.array([gains[-1] for gains in shares(lines, name)[arm]])
            print(f"  {name}: {last.mean():.2f}")


def parse_arm(text: str) -> tuple[str, dict[str, Any]]:
    name, _, settings = text.partition("=")
    return name, json.loads(settings) if settings else ARMS[name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="Esper-v0", help="the environment's id")
    parser.add_argument("--settings", type=json.loads, default={}, help="settings of the environment, as JSON")
    parser.add_argument("--arms", nargs="+", default=["default"], help=f"names from {', '.join(ARMS)}, or name=JSON")
    parser.add_argument("--seeds", type=int, default=4, help="trainings of each arm")
    parser.add_argument("--first-seed", type=int, default=0, help="the seed of the first")
    parser.add_argument("--steps", type=int, default=150_000, help="environment steps of each training")
    parser.add_argument("--until", type=float, choices=SHARES, default=1.0, help="share of the steps that is trained")
    parser.add_argument("--rows", type=int, default=64, help="environments side by side, unless an arm says n_envs")
    parser.add_argument("--episodes", type=int, default=200, help="instances of every evaluation")
    parser.add_argument("--instances", choices=("validation", "test"), default="validation", help="their set")
    parser.add_argument("--out", type=Path, default=Path("settings.jsonl"), help="where lines are added")
    parser.add_argument("--show", type=Path, help="print what a file holds, and train nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.arms = dict(map(parse_arm, options.arms))
    if options.show:
        show(options.show)
    else:
        run(options)


if __name__ == "__main__":
    main()
