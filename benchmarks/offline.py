"""How good is an agent that learnt from records alone, and what does it gain by training on?

    python benchmarks/offline.py --env Esper-v0 --out runs/offline            # does what is missing, then reports
    python benchmarks/offline.py --env Esper-v0 --out runs/offline --quick    # a tiny budget, to see that it works

Records are of train instances; everyone is measured on the same test instances. A share is that of the oracle's gain in
discounted return over never growing. Fine-tuning is held against the agents that compare_agents.py published, by their
shares in the instances of that study. Intervals are 95 % of a bootstrap that draws seeds and instances.
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
from esper_agent.offline.config import QLearningConfig
from esper_agent.offline.recording import Recording, record
from esper_agent.offline.storage import dataset_path
from esper_agent.offline.training import METHODS, OfflineLearning, OfflinePlan, start_offline
from esper_agent.runs.directory import RunConfig, RunDirectory
from esper_agent.runs.training import load_agent, start_run
from offline_scores import Floats, Scores, estimate, figures, published, share

matplotlib.use("Agg")
from matplotlib.figure import Figure

FIRST_SEED = 10_000  # of the test instances, as in compare_agents.py
TEACHER, SCRATCH = "ours, the teacher", "ours from scratch"
RULES = ("never", "random", "plateau", "oracle")
MOMENTS = (0.1, 0.4)  # shares of the epochs at which a curve has points
Table = dict[str, Any]


@dataclass(frozen=True)
class Budget:
    """How much is recorded, learnt and played."""

    seeds: int = 5
    tuned_seeds: int = 3
    curves: int = 2  # seeds that are measured on the way, too
    clones: int = 256  # episodes of one player
    mixed: int = 1000
    teaching: int = 149_760  # environment steps of our agent that is cloned
    tuning: int = 37_440  # of fine-tuning
    played: int = 128
    settings: tuple[tuple[str, Any], ...] = ()


QUICK = Budget(1, 1, 1, 6, 8, 120, 60, 4, (("epochs", 1),))


@dataclass(frozen=True)
class Job:
    """Who learns from what, and whether it is fine-tuned."""

    name: str
    method: str
    dataset: str
    tuned: bool = False
    settings: tuple[tuple[str, Any], ...] = ()


class Study:
    """All jobs of an environment, each with a file for its result."""

    def __init__(self, env_id: str, out: Path, budget: Budget) -> None:
        self.env_id, self.out, self.budget, self.stem = env_id, out / env_id, budget, env_id.lower()
        os.environ["MINARI_DATASETS_PATH"] = str((out / "datasets").resolve())
        self.env = make_test_env(env_id, budget.played)
        self.jobs = (
            Job("clone of the oracle", "imitate", "oracle", tuned=True),
            Job("clone of plateau", "imitate", "plateau", tuned=True),
            Job("IQL on random + plateau", "iql", "mixed", tuned=True),
            Job("clone of random + plateau", "imitate", "mixed", settings=(("epochs", QLearningConfig.epochs),)),
            Job("clone of ours", "imitate", "ours"),
        )

    def tasks(self) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
        """All that is to be done, by name; what others rest on comes before them."""
        for name in RULES:
            yield name, partial(self._play_rule, name)
        for job in self.jobs:
            if job.dataset == "ours":
                yield TEACHER, self._teach
            for seed in range(self.budget.seeds):
                yield f"{job.name} {seed}", partial(self._learn, job, seed)
        for job in self.jobs:
            for seed in range(self.budget.tuned_seeds * job.tuned):
                yield f"tuned {job.name} {seed}", partial(self._tune, job, seed)

    def carry_out(self, words: Sequence[str]) -> None:
        """The rules, and everything whose name begins with one of the words, unless it has a result."""
        for name, work in self.tasks():
            if name in RULES or name.startswith(tuple(words)):
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
            players = {"mixed": ("random", "plateau"), "ours": (str(self._run(TEACHER).path),)}.get(who, (who,))
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
        settings = METHODS[job.method][1](**dict((*job.settings, *self.budget.settings)))
        plan, curve = OfflinePlan(job.method, self._dataset(job.dataset), settings), list[dict[str, float]]()
        clock = {"before": time.process_time(), "played": 0.0}

        def look(learning: OfflineLearning) -> None:
            if seed < self.budget.curves and learning.epoch in {max(1, round(m * settings.epochs)) for m in MOMENTS}:
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
        return {
            "returns": returns,
            "curve": [*curve, last][: None if seed < self.budget.curves else 0],
            "seconds": seconds,
        }

    def _teach(self) -> dict[str, Any]:
        return self._online(TEACHER, RunConfig(self.env_id, total_timesteps=self.budget.teaching, threads=1))

    def _tune(self, job: Job, seed: int) -> dict[str, Any]:
        start = self._run(f"{job.name} {seed}")
        given = start.read_config()
        config = RunConfig(
            self.env_id, total_timesteps=self.budget.tuning, seed=seed, threads=1, env=given.env, agent=given.agent,
            start_from=str(start.path), pull=0.5, checkpoint_every=self.budget.tuning // 2,
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
        """The results of all seeds, or of the one that has no number."""
        files = [self._file(f"{name} {seed}") for seed in range(self.budget.seeds)] + [self._file(name)]
        return [json.loads(file.read_text(encoding="utf-8")) for file in files if file.exists()]

    def returns(self, name: str) -> Floats:
        """Returns of a rule or an agent, [seeds, instances]."""
        return np.array([one["returns"] for one in self.found(name)])

    def scores(self, name: str) -> Scores:
        """Returns of an agent beside those of the rules."""
        return Scores(self.returns(name), *(self.returns(rule) for rule in ("never", "plateau", "oracle")))


def summarize(study: Study) -> Table:
    """What the page says."""
    scratch, curves = published(study.env_id)
    names = [job.name for job in study.jobs]
    names = [name for name in (*names, TEACHER, *(f"tuned {name}" for name in names)) if study.found(name)]
    rows = [{"name": SCRATCH, "seeds": len(scratch.own), **figures(scratch)}]
    rows += [row(study, name, scratch) for name in names]
    rules = {name: float(study.returns(name).mean()) for name in RULES}
    about = {"env_id": study.env_id, "budget": asdict(study.budget)}
    ends = {"never": float(scratch.never.mean()), "oracle": float(scratch.oracle.mean())}
    return {**about, "rules": rules, "rows": rows, "scratch": {"curves": curves, **ends}}


def row(study: Study, name: str, scratch: Scores) -> Table:
    """What is known about one agent."""
    found, scores = study.found(name), study.scores(name)
    seconds = [one["seconds"] for one in found if "seconds" in one]
    row = {"name": name, "seeds": len(scores.own), **figures(scores)}
    if name.startswith("tuned"):
        row["above_scratch"] = estimate(lambda rng: scores.share(rng) - scratch.share(rng))
    return {
        **row,
        "seconds": float(np.mean(seconds)) if seconds else None,
        "curves": [one["curve"] for one in found if one.get("curve")],
        "online": [one["online"] for one in found if "online" in one],
    }


def page(result: Table) -> str:
    """The result as a page."""
    rules, made, budget = result["rules"], result["provenance"], result["budget"]
    played = ", ".join(f"{name} {value:.3f}" for name, value in rules.items())
    lines = [
        f"# Learning from records: {result['env_id']}", "",
        f"`{made['command']}`; " + ", ".join(f"{name} {number}" for name, number in made["versions"].items()), "",
        f"{budget['played']} test instances, the same for all; records of train instances: {budget['clones']} episodes "
        f"of one player, {budget['mixed']} of random and plateau together. Discounted returns of rules: {played}.", "",
        "| Who | Seeds | Return | Share of the oracle's gain | Each seed | Return above plateau | Share above scratch "
        "| Processor seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for one in result["rows"]:
        seeds = ", ".join(f"{value:.0%}" for value in one["by_seed"])
        seconds = f"{one['seconds']:.0f}" if one.get("seconds") else ""
        above = interval(one["above_scratch"], ".0%") if "above_scratch" in one else ""
        lines.append(
            f"| {one['name']} | {one['seeds']} | {interval(one['return'])} | {interval(one['share'], '.0%')} | {seeds} "
            f"| {interval(one['above_plateau'])} | {above} | {seconds} |"
        )
    steps = result["scratch"]["curves"][0][-1]["steps"]
    told = (
        f"Seeds that are finished, of {budget['seeds']}. From scratch is what "
        f"[compare_agents.py](compare_agents_{result['env_id']}.md) published, with the shares and the rules of that "
        f"study: {steps:,} environment steps."
    )
    if any(one["name"].startswith("tuned") for one in result["rows"]):
        told += f" Fine-tuning took {budget['tuning']:,} (a quarter is {steps / 4:,.0f}), with a pull of 0.5."
    lines += ["", told]
    lines += ["", f"![Shares against gradient steps, seconds and environment steps]({result['picture']})", ""]
    return "\n".join(lines)


def interval(estimate: dict[str, float], form: str = ".3f") -> str:
    """A number with its interval."""
    return f"{estimate['point']:{form}} [{estimate['low']:{form}}, {estimate['high']:{form}}]"


def draw(result: Table, path: Path) -> None:
    """Shares of the oracle's gain against gradient steps and seconds of learning from records, then tuning."""
    figure = Figure(figsize=(13, 4), layout="constrained")
    axes = figure.subplots(1, 3, sharey=True)
    for one in (one for one in result["rows"] if one.get("curves")):
        points = means(one["curves"], ("steps", "seconds", "return"))
        for place, axis in enumerate(axes[:2]):
            axis.plot(points[:, place], share(points[:, 2], result["rules"]), marker="o", label=one["name"])
    starts = {one["name"]: one["share"]["point"] for one in result["rows"]}
    for one in (one for one in result["rows"] if one["name"].startswith("tuned")):
        points = means(one["online"], ("steps", "return"))
        begun = starts[one["name"].removeprefix("tuned ")]
        axes[2].plot(
            [0, *points[:, 0] / 1000], [begun, *share(points[:, 1], result["rules"])], marker="o", label=one["name"]
        )
    points = means(result["scratch"]["curves"], ("steps", "return"))
    axes[2].plot(points[:, 0] / 1000, share(points[:, 1], result["scratch"]), color="black", marker="s", label=SCRATCH)
    for axis, label in zip(axes, ("gradient steps", "processor seconds", "thousand environment steps"), strict=True):
        axis.axhline(share(result["rules"]["plateau"], result["rules"]), color="grey", ls=":", label="plateau")
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("share of the oracle's gain")
    axes[1].legend(fontsize="small")
    axes[2].legend(fontsize="small")
    figure.savefig(path, dpi=110)


def means(curves: list[list[dict[str, float]]], names: Sequence[str]) -> Floats:
    """The mean over seeds of curves, [points, names]."""
    found: Floats = np.array([[[point[name] for name in names] for point in curve] for curve in curves]).mean(0)
    return found


def main() -> None:
    """Run what is missing and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="Esper-v0")
    parser.add_argument("--out", type=Path, required=True, help="where datasets, runs and results go")
    parser.add_argument("--only", nargs="+", default=[""], metavar="NAME", help="whose name begins so")
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
