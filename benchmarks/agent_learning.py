"""What the agent learns: memory, partial observation, and heads that depend on the op.

    python benchmarks/agent_learning.py            # everything, about half an hour on two cores
    python benchmarks/agent_learning.py --task repeat_previous
    python benchmarks/agent_learning.py --quick --results DIR    # a smoke test of a minute

Each seed trains from scratch and is evaluated ten times on the way, over fresh episodes with the most likely actions. A
seed has solved a task when such an evaluation reaches the threshold within the task's steps; the table gives the best
and the last evaluation. Results go to one file per seed, a table and a picture in benchmarks/results/.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import popgym  # noqa: F401  (registers its environments)
import torch
from agent_envs import TOYS, make_cartpole
from common import RESULTS, provenance, write_json
from esper_agent import EvalCallback, FactoredRecurrentPPO
from esper_agent.baselines.recurrent_onecall import OneCallMlpLstmPolicy
from esper_agent.runs.timing import Stopwatch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from matplotlib.figure import Figure
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

ENVS, EVALUATIONS = 16, 10
EVALUATION_SEED = 10_000


@dataclass(frozen=True)
class Agent:
    """Something that learns a task, and where it is evaluated."""

    model: Any
    rollout: int  # environment steps of one rollout
    eval_env: Any


def ours(make_env: Callable[[int], Any], seed: int, **settings: Any) -> Agent:
    """Our agent."""
    model = FactoredRecurrentPPO(make_env(ENVS), n_envs=ENVS, seed=seed, **settings)
    return Agent(model, ENVS * model.config.n_steps, make_env(ENVS))


def theirs(make_env: Callable[[], Any], seed: int, **settings: Any) -> Agent:
    """sb3-contrib's RecurrentPPO, with the one-call LSTM that gives the same weights sooner."""
    sizes, env = {"lstm_hidden_size": 64, "net_arch": [64]}, VecMonitor(DummyVecEnv([make_env] * ENVS))
    model = RecurrentPPO(OneCallMlpLstmPolicy, env, seed=seed, policy_kwargs=sizes, device="cpu", **settings)
    return Agent(model, ENVS * model.n_steps, vector_of(make_env)(ENVS))


def vector_of(make_env: Callable[[], Any]) -> Callable[[int], VectorEnv[Any, Any, Any]]:
    """Many environments of one kind."""
    return lambda n: SyncVectorEnv([make_env] * n, autoreset_mode=AutoresetMode.SAME_STEP)


@dataclass(frozen=True)
class Task:
    """What to learn, how long, and what counts as solved."""

    title: str
    steps: int
    seeds: int
    threshold: float
    agents: dict[str, Callable[[int], Agent]]  # by name, from a seed
    episodes: int = 50


DECAY = {"learning_rate": LinearSchedule(1e-3, 0.0, 1.0)}  # for both: without it late updates undo what was learnt
REFERENCE: dict[str, Any] = {  # settings with which RecurrentPPO is known to solve small tasks
    "n_steps": 64, "batch_size": 256, "n_epochs": 10, "ent_coef": 0.01,
}  # fmt: skip

TASKS = {
    "repeat_previous": Task(
        "popgym-RepeatPreviousEasy-v0",
        steps=200_000,
        seeds=3,
        threshold=0.95,
        agents={"ours": lambda seed: ours(lambda _: "popgym-RepeatPreviousEasy-v0", seed, n_epochs=8)},
    ),
    "cartpole": Task(
        "CartPole without velocities",
        steps=100_000,
        seeds=5,
        threshold=450,
        agents={
            "ours": lambda seed: ours(vector_of(make_cartpole), seed, **DECAY),
            "RecurrentPPO": lambda seed: theirs(make_cartpole, seed, **REFERENCE, **DECAY),
        },
        episodes=20,
    ),
    "op_dependent_slot": Task(
        "slot that depends on the op",
        steps=50_000,
        seeds=3,
        threshold=0.99,
        agents={
            "ours": lambda seed: ours(TOYS.OpDependentSlot, seed),
            "independent heads": lambda seed: ours(TOYS.OpDependentSlot, seed, condition_on_op=False),
        },
        episodes=200,
    ),
    "t_maze": Task(
        "T-maze of twenty steps",
        steps=100_000,
        seeds=3,
        threshold=0.99,
        agents={"ours": lambda seed: ours(TOYS.TMaze, seed)},
        episodes=100,
    ),
    "mock_growth": Task(
        "mock growth",
        steps=100_000,
        seeds=3,
        threshold=0.99,
        agents={"ours": lambda seed: ours(TOYS.MockGrowth, seed)},
        episodes=100,
    ),
}


def run_seed(task: Task, name: str, seed: int) -> dict[str, Any]:
    """Train one agent and evaluate it on the way; never more steps than the task allows."""
    agent, watch = task.agents[name](seed), Stopwatch("cpu")
    steps = task.steps // agent.rollout * agent.rollout
    due = [steps * part // EVALUATIONS for part in range(1, EVALUATIONS)]
    callback = EvalCallback(agent.eval_env, n_eval_episodes=task.episodes, seed=EVALUATION_SEED, eval_at=due)
    with watch.measure("all"):
        agent.model.learn(steps, callback)
        callback.evaluate()
    curve = [{"step": point["step"], "return": round(point["episode_return"], 4)} for point in callback.curve]
    returns = [point["return"] for point in curve]
    solved = [point["step"] for point in curve if point["return"] >= task.threshold]
    return {
        "task": task.title,
        "agent": name,
        "seed": seed,
        "threshold": task.threshold,
        "solved_at": solved[0] if solved else None,
        "best": max(returns),
        "last": returns[-1],
        "curve": curve,
        "seconds": round(watch.seconds["all"], 1),
        "provenance": provenance(),
    }


def _agent(row: dict[str, Any]) -> str:
    return str(row.get("agent") or row["arm"])  # as version 0.1.0 called it


def table(results: list[dict[str, Any]]) -> str:
    """All seeds, one line each, and what was asked for."""
    lines = [
        "# What the agent learns",
        "",
        f"Made by `{results[0]['provenance']['command']}`; one JSON file per seed in `agent_learning/`.",
        "",
        "| task | agent | seed | threshold | solved at step | best | last | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in results:
        solved = row["solved_at"] or "not"
        numbers = f"{row['best']:.3f} | {row['last']:.3f} | {row['seconds']}"
        lines.append(f"| {row['task']} | {_agent(row)} | {row['seed']} | {row['threshold']} | {solved} | {numbers} |")
    versions = ", ".join(f"{name} {version}" for name, version in results[0]["provenance"]["versions"].items())
    return "\n".join([*lines, "", f"Versions: {versions}.", ""])


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """The evaluations of every seed over the steps, a panel for each task."""
    titles = list(dict.fromkeys(row["task"] for row in results))
    names = list(dict.fromkeys(_agent(row) for row in results))
    rows_of_panels = -(-len(titles) // 3)
    figure = Figure(figsize=(15, 4 * rows_of_panels), layout="constrained")
    panels = figure.subplots(rows_of_panels, 3, squeeze=False).flatten()
    for spare in panels[len(titles) :]:
        spare.remove()
    for axes, title in zip(panels, titles, strict=False):
        rows = [row for row in results if row["task"] == title]
        for row in rows:
            first = row is next(other for other in rows if _agent(other) == _agent(row))
            axes.plot(
                [point["step"] for point in row["curve"]],
                [point["return"] for point in row["curve"]],
                color=f"C{names.index(_agent(row))}",
                alpha=0.7,
                label=_agent(row) if first else None,
            )
        axes.axhline(rows[0]["threshold"], color="grey", linestyle=":", label="threshold")
        axes.set(title=title, xlabel="environment steps", ylabel="mean return")
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=110)


def result_file(directory: Path, task: str, agent: str, seed: int) -> Path:
    """Where the result of one seed goes."""
    return directory / "agent_learning" / f"{task}_{agent.replace(' ', '_')}_seed{seed}.json"


def summarise(directory: Path) -> None:
    """The table and the picture of all results that are there."""
    files = [
        result_file(directory, name, agent, seed)
        for name, task in TASKS.items()
        for agent in task.agents
        for seed in range(task.seeds)
    ]
    results = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.exists()]
    (directory / "agent_learning.md").write_text(table(results), encoding="utf-8")
    draw(results, directory / "agent_learning.png")


def shorten(task: Task) -> Task:
    """A smoke test: one seed, one rollout between evaluations."""
    return replace(task, steps=20_480, seeds=1, episodes=4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short seed of everything; needs --results")
    parser.add_argument("--task", choices=list(TASKS), help="only this task")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where results go")
    options = parser.parse_args()
    if options.quick and options.results == RESULTS:
        parser.error("--quick must not overwrite the published results: give --results DIR")
    torch.set_num_threads(1)
    for name, task in TASKS.items():
        if options.task not in (None, name):
            continue
        task = shorten(task) if options.quick else task
        for agent in task.agents:
            for seed in range(task.seeds):
                result = run_seed(task, agent, seed)
                print({key: result[key] for key in ("task", "agent", "seed", "solved_at", "best", "last")}, flush=True)
                write_json(result_file(options.results, name, agent, seed), result)
    summarise(options.results)


if __name__ == "__main__":
    main()
