"""How good is an agent that learnt from records alone, and what does it gain by training on?

    python benchmarks/offline.py --env Esper-v0 --out runs/offline            # does what is missing, then reports
    python benchmarks/offline.py --env Esper-v0 --out runs/offline --quick    # a tiny budget, to see that it works

Records are of train instances; everyone is measured on the same test instances. A share is that of the oracle's gain in
discounted return over never growing. An agent's figures are averaged over its seeds; intervals are 95 % bootstrap
intervals over instances. Our agent, trained from scratch, teaches a clone and is what fine-tuning is held against.
"""

import argparse
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from common import RESULTS, provenance, write_json
from esper_agent.comparison.participants import tuned_baseline
from esper_agent.evaluation.paired import make_test_env, play
from esper_agent.evaluation.statistics import mean, ratio
from esper_agent.offline.recording import Recording, record
from esper_agent.offline.storage import dataset_path
from esper_agent.offline.training import METHODS, OfflineLearning, OfflinePlan, start_offline
from esper_agent.runs.directory import RunConfig, RunDirectory
from esper_agent.runs.training import load_agent, start_run

matplotlib.use("Agg")
from matplotlib.figure import Figure

FIRST_SEED = 10_000  # of the test instances, as in compare_agents.py
SCRATCH = "ours from scratch"
RULES = ("never", "random", "plateau", "oracle")
MOMENTS = (0.1, 0.4)  # shares of the epochs at which a curve has points


@dataclass(frozen=True)
class Budget:
    """How much is recorded, learnt and played."""

    seeds: int = 5
    clones: int = 256  # episodes of one player
    mixed: int = 1000
    scratch: int = 149_760  # environment steps of training from scratch
    tuning: int = 37_440  # of fine-tuning
    played: int = 256
    settings: tuple[tuple[str, Any], ...] = ()


QUICK = Budget(1, 6, 8, 120, 60, 4, (("epochs", 1),))


@dataclass(frozen=True)
class Job:
    """Who learns from what."""

    name: str
    method: str
    dataset: str


class Study:
    """All jobs of an environment, each with a file for its result."""

    def __init__(self, env_id: str, out: Path, budget: Budget) -> None:
        self.env_id, self.out, self.budget, self.stem = env_id, out / env_id, budget, env_id.lower()
        os.environ["MINARI_DATASETS_PATH"] = str((out / "datasets").resolve())
        self.env = make_test_env(env_id, budget.played)
        self.jobs = (
            Job("clone of the oracle", "imitate", "oracle"),
            Job("clone of plateau", "imitate", "plateau"),
            Job("clone of ours", "imitate", "ours"),
            Job("clone of random + plateau", "imitate", "mixed"),
            Job("IQL on random + plateau", "iql", "mixed"),
        )

    def tasks(self) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
        """All that is to be done, by name; what others rest on comes before them."""
        for name in RULES:
            yield name, partial(self._play_rule, name)
        for seed in range(self.budget.seeds):
            yield f"{SCRATCH} {seed}", partial(self._train, seed)
        for job in self.jobs:
            for seed in range(self.budget.seeds):
                yield f"{job.name} {seed}", partial(self._learn, job, seed)
        for job in self.jobs:
            for seed in range(self.budget.seeds):
                yield f"tuned {job.name} {seed}", partial(self._tune, job, seed)

    def carry_out(self, words: Sequence[str]) -> None:
        """The rules, and everything with one of the words in its name, unless it has a result."""
        for name, work in self.tasks():
            if name in RULES or any(word in name for word in words):
                self._once(name, work)

    def _once(self, name: str, work: Callable[[], dict[str, Any]]) -> None:
        file = self._file(name)
        if not file.exists():
            shutil.rmtree(self._run(name).path, ignore_errors=True)  # of a run that was stopped
            began = time.process_time()
            write_json(file, {**work(), "cpu_seconds": time.process_time() - began})
            found = json.loads(file.read_text(encoding="utf-8"))
            print(f"{self.env_id} {name}: {np.mean(found['returns']):.4f}, {found['cpu_seconds']:.0f} s", flush=True)

    def _file(self, name: str) -> Path:
        return self.out / f"{name.replace(' ', '_')}.json"

    def _run(self, name: str) -> RunDirectory:
        return RunDirectory(self.out / "runs" / name.replace(" ", "_"))

    def _dataset(self, who: str) -> str:
        """The name of a dataset, which is recorded if it is missing."""
        name, budget = f"{self.stem}/{who}-v0", self.budget
        if not dataset_path(name).exists():
            players = {"mixed": ("random", "plateau"), "ours": (str(self._run(f"{SCRATCH} 0").path),)}.get(who, (who,))
            episodes = budget.mixed if who == "mixed" else budget.clones
            print(
                name, record(Recording(self.env_id, name, tuple((one, 1.0) for one in players), episodes)), flush=True
            )
        return name

    def measure(self, policy: Any) -> list[float]:
        """Discounted returns on the test instances."""
        return [float(value) for value in play(policy, self.env, FIRST_SEED).discounted_return]

    def _play_rule(self, name: str) -> dict[str, Any]:
        return {"returns": self.measure(tuned_baseline(name, self.env_id, self.env))}

    def _learn(self, job: Job, seed: int) -> dict[str, Any]:
        settings = METHODS[job.method][1](**dict(self.budget.settings))
        plan, curve = OfflinePlan(job.method, self._dataset(job.dataset), settings), list[dict[str, float]]()
        clock = {"before": time.process_time(), "played": 0.0}

        def look(learning: OfflineLearning) -> None:
            if learning.epoch in {max(1, round(moment * settings.epochs)) for moment in MOMENTS}:
                began = time.process_time()
                seconds, model = began - clock["before"] - clock["played"], learning.model
                point = {"steps": model.learner.counters.optimizer_steps, "seconds": seconds}
                curve.append({**point, "return": float(np.mean(self.measure(model)))})
                clock["played"] += time.process_time() - began

        run = self._run(f"{job.name} {seed}")
        start_offline(run, plan, RunConfig("", seed=seed, threads=1), lambda _: None, look)
        seconds = time.process_time() - clock["before"] - clock["played"]
        model = load_agent(run.read_config(), run.latest_checkpoint())
        returns = self.measure(model)
        last = {"steps": model.learner.counters.optimizer_steps, "seconds": seconds, "return": float(np.mean(returns))}
        return {"returns": returns, "curve": [*curve, last], "seconds": seconds}

    def _train(self, seed: int) -> dict[str, Any]:
        config = RunConfig(
            self.env_id, total_timesteps=self.budget.scratch, seed=seed, threads=1,
            checkpoint_every=self.budget.tuning, keep_checkpoints=9,
        )  # fmt: skip
        return self._online(f"{SCRATCH} {seed}", config)

    def _tune(self, job: Job, seed: int) -> dict[str, Any]:
        start = self._run(f"{job.name} {seed}")
        given = start.read_config()
        config = RunConfig(
            self.env_id, total_timesteps=self.budget.tuning, seed=seed, threads=1, env=given.env, agent=given.agent,
            start_from=str(start.path), pull=0.5,
        )  # fmt: skip
        return self._online(f"tuned {job.name} {seed}", config)

    def _online(self, name: str, config: RunConfig) -> dict[str, Any]:
        """Train in the environment and measure all checkpoints; the newest gives the result."""
        run = self._run(name)
        start_run(run, config, progress_bar=False)
        models = [load_agent(run.read_config(), checkpoint) for checkpoint in run.checkpoints()]
        returns = {model.num_timesteps: self.measure(model) for model in models}
        curve = [{"steps": steps, "return": float(np.mean(found))} for steps, found in sorted(returns.items())]
        return {"returns": returns[max(returns)], "online": curve}

    def found(self, name: str) -> list[dict[str, Any]]:
        """The results of all seeds."""
        files = [self._file(f"{name} {seed}") for seed in range(self.budget.seeds)]
        return [json.loads(file.read_text(encoding="utf-8")) for file in files if file.exists()]

    def rule(self, name: str) -> Any:
        """The returns of a rule."""
        return np.array(json.loads(self._file(name).read_text(encoding="utf-8"))["returns"])


def summarize(study: Study) -> dict[str, Any]:
    """What the page says."""
    never, oracle, plateau = (study.rule(name) for name in ("never", "oracle", "plateau"))
    rows = []
    names = [job.name for job in study.jobs]
    for name in (SCRATCH, *names, *(f"tuned {name}" for name in names)):
        found = study.found(name)
        if found:
            returns = np.array([one["returns"] for one in found])
            seconds = [one["seconds"] for one in found if "seconds" in one]
            rows.append({
                "name": name,
                "seeds": len(found),
                "return": asdict(mean(returns.mean(0))),
                "share": asdict(ratio(returns.mean(0) - never, oracle - never)),
                "by_seed": [float((one.mean() - never.mean()) / (oracle.mean() - never.mean())) for one in returns],
                "above_plateau": asdict(mean(returns.mean(0) - plateau)),
                "seconds": float(np.mean(seconds)) if seconds else None,
                "curves": [one["curve"] for one in found if "curve" in one],
            })  # fmt: skip
    rules = {name: float(study.rule(name).mean()) for name in RULES}
    about = {"env_id": study.env_id, "budget": asdict(study.budget)}
    return {**about, "rules": rules, "rows": rows, "scratch": scratch(study)}


def scratch(study: Study) -> list[dict[str, float]]:
    """The published learning curve of training from scratch, as means over seeds."""
    files = sorted((RESULTS / f"compare_agents_{study.env_id}").glob("ours_seed*.json"))
    curves = [json.loads(file.read_text(encoding="utf-8"))["curve"] for file in files]
    return [
        {"steps": points[0]["step"], "return": float(np.mean([point["discounted_return"] for point in points]))}
        for points in zip(*curves, strict=False)
    ]


def page(result: dict[str, Any]) -> str:
    """The result as a page."""
    rules, made, budget = result["rules"], result["provenance"], result["budget"]
    played = ", ".join(f"{name} {value:.3f}" for name, value in rules.items())
    lines = [
        f"# Learning from records: {result['env_id']}", "",
        f"`{made['command']}`; " + ", ".join(f"{name} {number}" for name, number in made["versions"].items()), "",
        f"{budget['played']} test instances, the same for all; records of train instances: {budget['clones']} episodes "
        f"of one player, {budget['mixed']} of random and plateau together. Discounted returns of rules: {played}.", "",
        "| Who | Seeds | Return | Share of the oracle's gain | Each seed | Return above plateau | Processor seconds |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for row in result["rows"]:
        seeds = ", ".join(f"{value:.0%}" for value in row["by_seed"])
        seconds = "" if row["seconds"] is None else f"{row['seconds']:.0f}"
        lines.append(
            f"| {row['name']} | {row['seeds']} | {interval(row['return'])} | {interval(row['share'], '.0%')} | {seeds} "
            f"| {interval(row['above_plateau'])} | {seconds} |"
        )
    if result["scratch"]:
        last, quarter = result["scratch"][-1], result["scratch"][-1]["steps"] / 4
        lines += ["", f"Training from scratch (published by `compare_agents.py`) ends at {last['return']:.3f} after "
                  f"{last['steps']:,} environment steps, a quarter of which is {quarter:,.0f}; fine-tuning took "
                  f"{budget['tuning']:,}."]  # fmt: skip
    lines += ["", f"![Shares against gradient steps and seconds]({result['picture']})", ""]
    return "\n".join(lines)


def interval(estimate: dict[str, float], form: str = ".3f") -> str:
    """A number with its interval."""
    return f"{estimate['point']:{form}} [{estimate['low']:{form}}, {estimate['high']:{form}}]"


def draw(result: dict[str, Any], path: Path) -> None:
    """Shares of the oracle's gain against gradient steps and processor seconds."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    low, high = result["rules"]["never"], result["rules"]["oracle"]
    for row in (row for row in result["rows"] if row["curves"]):
        points = np.array([[[p["steps"], p["seconds"], p["return"]] for p in curve] for curve in row["curves"]]).mean(0)
        for place, axis in enumerate(axes):
            axis.plot(points[:, place], (points[:, 2] - low) / (high - low), marker="o", label=row["name"])
    for axis, label in zip(axes, ("gradient steps", "processor seconds"), strict=True):
        axis.axhline((result["rules"]["plateau"] - low) / (high - low), color="grey", ls=":", label="plateau")
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("share of the oracle's gain")
    axes[1].legend(fontsize="small")
    figure.savefig(path, dpi=110)


def main() -> None:
    """Run what is missing and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="Esper-v0")
    parser.add_argument("--out", type=Path, required=True, help="where datasets, runs and results go")
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD", help="what has one of these in its name")
    parser.add_argument("--quick", action="store_true", help="a tiny budget")
    parser.add_argument("--report-only", action="store_true", help="report what is finished")
    options = parser.parse_args()
    torch.set_num_threads(1)
    study = Study(options.env, options.out, QUICK if options.quick else Budget())
    if not options.report_only:
        study.carry_out(options.only)
    stem = (options.out if options.quick else RESULTS) / f"offline_{options.env}"
    result = {"provenance": provenance(), "picture": f"{stem.name}.png", **summarize(study)}
    write_json(f"{stem}.json", result)
    draw(result, Path(f"{stem}.png"))
    Path(f"{stem}.md").write_text(page(result), encoding="utf-8")
    print(page(result))


if __name__ == "__main__":
    main()
