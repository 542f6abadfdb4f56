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
from typing import Any, Protocol

import numpy as np
import popgym  # noqa: F401  (registers its environments)
import torch
from agent_envs import TOYS, make_cartpole
from common import RESULTS, provenance, write_json
from esper_agent import FactoredRecurrentPPO, evaluate_policy
from esper_agent.baselines.recurrent_onecall import OneCallMlpLstmPolicy
from esper_agent.runs.timing import Stopwatch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from matplotlib.figure import Figure
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy as evaluate_sb3
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

EVALUATIONS = 10
EVALUATION_SEED = 10_000


class Student(Protocol):
    """Something that learns a task."""

    rollout: int  # environment steps of one rollout

    def train(self, steps: int, callback: BaseCallback) -> None: ...

    def evaluate(self, episodes: int) -> float: ...


class Ours:
    """Our agent."""

    def __init__(self, make_env: Callable[[int], Any], n_envs: int, seed: int, **settings: Any) -> None:
        self.make_env, self.n_envs = make_env, n_envs
        self.model = FactoredRecurrentPPO(make_env(n_envs), n_envs=n_envs, seed=seed, **settings)
        self.rollout = n_envs * self.model.config.n_steps

    def train(self, steps: int, callback: BaseCallback) -> None:
        self.model.learn(steps, callback)

    def evaluate(self, episodes: int) -> float:
        return evaluate_policy(self.model, self.make_env(self.n_envs), episodes, seed=EVALUATION_SEED)[0]


class Theirs:
    """sb3-contrib's RecurrentPPO, with the one-call LSTM that gives the same weights sooner."""

    def __init__(self, make_env: Callable[[], Any], n_envs: int, seed: int, **settings: Any) -> None:
        sizes = {"lstm_hidden_size": 64, "net_arch": [64]}
        self.envs = [VecMonitor(DummyVecEnv([make_env] * n_envs)) for _ in range(2)]
        self.model = RecurrentPPO(
            OneCallMlpLstmPolicy, self.envs[0], seed=seed, policy_kwargs=sizes, device="cpu", **settings
        )
        self.rollout = n_envs * self.model.n_steps

    def train(self, steps: int, callback: BaseCallback) -> None:
        self.model.learn(steps, callback)

    def evaluate(self, episodes: int) -> float:
        self.envs[1].seed(EVALUATION_SEED)
        returns, _ = evaluate_sb3(self.model, self.envs[1], episodes, return_episode_rewards=True)
        return float(np.mean(returns))


class Examiner(BaseCallback):
    """Evaluates a student between rollouts, at evenly spaced steps."""

    def __init__(self, student: Student, episodes: int, steps: int) -> None:
        super().__init__()
        self.student, self.episodes = student, episodes
        self.due = [steps * i // EVALUATIONS for i in range(1, EVALUATIONS)]
        self.curve: list[dict[str, float]] = []

    def examine(self) -> None:
        self.curve.append({"step": self.num_timesteps, "return": round(self.student.evaluate(self.episodes), 4)})

    def _on_rollout_start(self) -> None:
        if self.due and self.model.num_timesteps >= self.due[0]:
            self.due.pop(0)
            self.num_timesteps = self.model.num_timesteps
            self.examine()

    def _on_step(self) -> bool:
        return True


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
    arms: dict[str, Callable[[int], Student]]  # by name: from a seed to a student
    episodes: int = 50


DECAY = {"learning_rate": LinearSchedule(1e-3, 0.0, 1.0)}  # for both arms: without it late updates undo what was learnt
REFERENCE: dict[str, Any] = {  # settings with which RecurrentPPO is known to solve small tasks
    "n_steps": 64, "batch_size": 256, "n_epochs": 10, "ent_coef": 0.01,
}  # fmt: skip

TASKS = {
    "repeat_previous": Task(
        "popgym-RepeatPreviousEasy-v0",
        steps=200_000,
        seeds=3,
        threshold=0.95,
        arms={"ours": lambda seed: Ours(lambda _: "popgym-RepeatPreviousEasy-v0", 16, seed, n_epochs=8)},
    ),
    "cartpole": Task(
        "CartPole without velocities",
        steps=100_000,
        seeds=5,
        threshold=450,
        arms={
            "ours": lambda seed: Ours(vector_of(make_cartpole), 16, seed, **DECAY),
            "RecurrentPPO": lambda seed: Theirs(make_cartpole, 16, seed, **REFERENCE, **DECAY),
        },
        episodes=20,
    ),
    "op_dependent_slot": Task(
        "slot that depends on the op",
        steps=50_000,
        seeds=3,
        threshold=0.99,
        arms={
            "ours": lambda seed: Ours(TOYS.OpDependentSlot, 16, seed),
            "independent heads": lambda seed: Ours(TOYS.OpDependentSlot, 16, seed, condition_on_op=False),
        },
        episodes=200,
    ),
    "t_maze": Task(
        "T-maze of twenty steps",
        steps=100_000,
        seeds=3,
        threshold=0.99,
        arms={"ours": lambda seed: Ours(TOYS.TMaze, 16, seed)},
        episodes=100,
    ),
    "mock_growth": Task(
        "mock growth",
        steps=100_000,
        seeds=3,
        threshold=0.99,
        arms={"ours": lambda seed: Ours(TOYS.MockGrowth, 16, seed)},
        episodes=100,
    ),
}


def run_seed(task: Task, arm: str, seed: int) -> dict[str, Any]:
    """Train one student and evaluate it on the way; never more steps than the task allows."""
    student, watch = task.arms[arm](seed), Stopwatch("cpu")
    steps = task.steps // student.rollout * student.rollout
    examiner = Examiner(student, task.episodes, steps)
    with watch.measure("all"):
        student.train(steps, examiner)
        examiner.examine()
    returns = [point["return"] for point in examiner.curve]
    solved = [point["step"] for point in examiner.curve if point["return"] >= task.threshold]
    return {
        "task": task.title,
        "arm": arm,
        "seed": seed,
        "threshold": task.threshold,
        "solved_at": solved[0] if solved else None,
        "best": max(returns),
        "last": returns[-1],
        "curve": examiner.curve,
        "seconds": round(watch.seconds["all"], 1),
        "provenance": provenance(),
    }


def table(results: list[dict[str, Any]]) -> str:
    """All seeds, one line each, and what was asked for."""
    lines = [
        "# What the agent learns",
        "",
        f"Made by `{results[0]['provenance']['command']}`; one JSON file per seed in `agent_learning/`.",
        "",
        "| task | arm | seed | threshold | solved at step | best | last | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in results:
        solved = row["solved_at"] or "not"
        numbers = f"{row['best']:.3f} | {row['last']:.3f} | {row['seconds']}"
        lines.append(f"| {row['task']} | {row['arm']} | {row['seed']} | {row['threshold']} | {solved} | {numbers} |")
    versions = ", ".join(f"{name} {version}" for name, version in results[0]["provenance"]["versions"].items())
    return "\n".join([*lines, "", f"Versions: {versions}.", ""])


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """The evaluations of every seed over the steps, a panel for each task."""
    titles = list(dict.fromkeys(row["task"] for row in results))
    arms = list(dict.fromkeys(row["arm"] for row in results))
    rows_of_panels = -(-len(titles) // 3)
    figure = Figure(figsize=(15, 4 * rows_of_panels), layout="constrained")
    panels = figure.subplots(rows_of_panels, 3, squeeze=False).flatten()
    for spare in panels[len(titles) :]:
        spare.remove()
    for axes, title in zip(panels, titles, strict=False):
        rows = [row for row in results if row["task"] == title]
        for row in rows:
            first = row is next(other for other in rows if other["arm"] == row["arm"])
            axes.plot(
                [point["step"] for point in row["curve"]],
                [point["return"] for point in row["curve"]],
                color=f"C{arms.index(row['arm'])}",
                alpha=0.7,
                label=row["arm"] if first else None,
            )
        axes.axhline(rows[0]["threshold"], color="grey", linestyle=":", label="threshold")
        axes.set(title=title, xlabel="environment steps", ylabel="mean return")
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=110)


def result_file(directory: Path, name: str, arm: str, seed: int) -> Path:
    """Where the result of one seed goes."""
    return directory / "agent_learning" / f"{name}_{arm.replace(' ', '_')}_seed{seed}.json"


def summarise(directory: Path) -> None:
    """The table and the picture of all results that are there."""
    files = [
        result_file(directory, name, arm, seed)
        for name, task in TASKS.items()
        for arm in task.arms
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
        for arm in task.arms:
            for seed in range(task.seeds):
                result = run_seed(task, arm, seed)
                print({key: result[key] for key in ("task", "arm", "seed", "solved_at", "best", "last")}, flush=True)
                write_json(result_file(options.results, name, arm, seed), result)
    summarise(options.results)


if __name__ == "__main__":
    main()
