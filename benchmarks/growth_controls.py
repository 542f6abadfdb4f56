"""Does it matter how one grows? All scripted baselines on the same held-out instances, and what must hold between them.

    python benchmarks/growth_controls.py --env Esper-v0 --quick --json growth_controls.json   # 24 episodes
    python benchmarks/growth_controls.py --env Esper-v0                                       # into benchmarks/results/

Every baseline plays the same instances with the same initial weights and data order. Accuracy is that of the committed
network on the test split, which no step reads. Return is discounted as agents discount it; plain return is the sum of
the rewards. Compute is the number of parameters that were trained, averaged over the steps, in units of the host's;
MFLOPs are the millions of operations in products that training a host and its seeds took, forward and backward.
Intervals are 95 % bootstrap intervals over episodes. Constants come from `tune_controls.py`, which reads train
instances only. Those named `_equal` were searched for accuracy with at most as many added parameters as the oracle has
on average: a schedule under that limit, and grow-everything with a blueprint that fits into it (or the smallest).
"""

import argparse
import json
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import esper_env  # noqa: F401 (registers the environments)
import torch
from common import RESULTS, provenance, write_json
from esper_agent.baselines.scripted import Baseline
from esper_agent.baselines.tuned import SEARCHED, load_tuned, make_baseline, make_baselines
from esper_agent.evaluation.episodes import Env, Floats
from esper_agent.evaluation.paired import GrowthEpisodes, make_test_env, play
from esper_agent.evaluation.statistics import Estimate, mean, ratio
from esper_env.config import TEMPI, EsperConfig
from esper_env.tasks.base import Task
from matplotlib.figure import Figure

FIRST_SEED = 10_000  # of the test instances
FULL, QUICK = 200, 24
EQUAL = ("grow_everything", "fixed_schedule")
OPEN_LOOP = (*EQUAL, *(f"{name}_equal" for name in EQUAL))  # none of them looks at the host
MEASURES = ("test_accuracy", "added_parameters", "compute", "training_flops", "discounted_return", "episode_return")
LEAST_GAIN = 0.10
GAINS = ("test_accuracy", "discounted_return")
REFERENCES = ("oracle", "planner")  # both know more than anyone who plays
Played = dict[str, GrowthEpisodes]
Table = dict[str, dict[str, Estimate]]


@dataclass(frozen=True)
class Criterion:
    """Something that must hold for the environment to be worth learning."""

    statement: str
    passed: bool
    figure: str

    def __str__(self) -> str:
        return f"{'PASS' if self.passed else 'FAIL'}  {self.statement}: {self.figure}"


def baselines(env: Env, tuned: dict[str, Any], searched: bool) -> dict[str, Baseline]:
    """All that were tuned, and those that search; those at equal parameters carry a suffix."""
    constants = tuned.get("equal_parameters", {})
    equal = {f"{name}_equal": make_baseline(name, env, constants[name]) for name in EQUAL if name in constants}
    planners = {name: make_baseline(name, env, {}) for name in SEARCHED} if searched else {}
    return make_baselines(env, tuned) | equal | planners


def play_all(env: Env, tuned: dict[str, Any], searched: bool) -> Played:
    played: Played = {}
    for name, baseline in baselines(env, tuned, searched).items():
        played[name] = play(baseline, env, FIRST_SEED)
        print(f"{name:<24} accuracy {played[name].test_accuracy.mean():.3f}", flush=True)
    return played


def gap(played: Played, measure: str, better: str, worse: str) -> Estimate:
    """By how much one exceeds another, over paired episodes."""
    return mean(getattr(played[better], measure) - getattr(played[worse], measure))


def gain(played: Played, measure: str, name: str) -> Floats:
    """What each episode gained over never growing."""
    difference: Floats = getattr(played[name], measure) - getattr(played["never"], measure)
    return difference


def summary(played: Played) -> Table:
    """Everyone's means, its gains over never growing, each reference's lead over it and its share of that's gain."""
    table: Table = {}
    references = [name for name in REFERENCES if name in played]
    for name, episodes in played.items():
        row = {measure: mean(getattr(episodes, measure)) for measure in MEASURES}
        for measure in GAINS:
            row[f"{measure}_gain"] = gap(played, measure, name, "never")
            for best in references:
                row[f"{measure}_{best}_lead"] = gap(played, measure, best, name)
                row[f"{measure}_{best}_share"] = ratio(gain(played, measure, name), gain(played, measure, best))
        table[name] = row
    return table


def beats(played: Played, better: str, worse: str, measure: str, statement: str) -> list[Criterion]:
    """One beats another with an interval that excludes zero; nothing where either was not played."""
    if better not in played or worse not in played:
        return []
    ahead = gap(played, measure, better, worse)
    return [Criterion(statement, ahead.low > 0, str(ahead))]


def criteria(played: Played, config: EsperConfig) -> list[Criterion]:
    accuracy, value = "test_accuracy", "discounted_return"
    best = next(name for name in REFERENCES if name in played)
    lead = gap(played, accuracy, best, "never")
    open_loop = [name for name in OPEN_LOOP if name in played]
    unseeing = max(open_loop, key=lambda name: float(played[name].discounted_return.mean()))
    gains = f"(a) {best} gains {LEAST_GAIN:.0%} accuracy over never growing"
    pairs = [
        (best, "fixed_schedule", value, f"(b) {best} above fixed schedule, return"),
        (best, "grow_everything", value, f"(b) {best} above grow-everything, return"),
        ("oracle", "fixed_schedule_equal", accuracy, "(b) oracle above a fixed schedule of its size, accuracy"),
        ("oracle", "grow_everything_equal", accuracy, "(b) oracle above grow-everything of its size, accuracy"),
        ("plateau", "random", value, "(c) plateau above random legal play, return"),
        ("plateau", unseeing, value, f"(d) plateau above the best that does not look, {unseeing}, return"),
        (best, "greedy", value, f"(e) {best} above greedy, return"),
    ]
    return [
        Criterion(gains, lead.point >= LEAST_GAIN, str(lead)),
        *(criterion for pair in pairs for criterion in beats(played, *pair)),
        room_for_trials(config),
    ]


def room_for_trials(config: EsperConfig) -> Criterion:
    """Two trials one after the other, each judged and pruned, then a third seed that is committed."""
    trial = max(config.prune_age, config.training_steps) + 1
    needed = config.warmup_steps + 2 * trial + config.training_steps + TEMPI[0] + config.holding_steps + 1
    statement = "(f) two seeds can be judged and pruned before a third is committed"
    return Criterion(statement, needed <= config.horizon, f"{needed} of {config.horizon} steps")


def measures_table(table: Table) -> list[str]:
    titles = ("baseline", "test accuracy", "gain", "added", "compute", "MFLOPs", "return", "gain", "plain return")
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for name, row in table.items():
        added, compute = f"{row['added_parameters'].point:.0%}", f"{row['compute'].point:.2f}"
        accuracy, value = ([row[gained], row[f"{gained}_gain"]] for gained in GAINS)
        flops = f"{row['training_flops'].point / 1e6:.0f}"
        cells = [name, *accuracy, added, compute, flops, *value, f"{row['episode_return'].point:.3f}"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def reference_table(table: Table, best: str) -> list[str]:
    """What is left to the oracle or the planner, if that was played."""
    if best not in table:
        return []
    leads = [(f"{best}'s lead, {measure}", "share of its gain") for measure in ("accuracy", "return")]
    titles = ("baseline", *leads[0], *leads[1])
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for name, row in table.items():
        cells = [row[f"{gained}_{best}_{what}"] for gained in GAINS for what in ("lead", "share")]
        lines.append(f"| {' | '.join(map(str, [name, *cells]))} |")
    return [*lines, ""]


def size_of(task: Task) -> dict[str, int]:
    """How much data there is, and how much of it a step trains on."""
    data = task.load()
    splits = {name: len(getattr(data, name)) for name in ("train", "val", "test")}
    return {**splits, "minibatches": task.minibatches_per_step, "batch": task.batch_size}


def metric_line(metric: str) -> str:
    """What the column of accuracy holds."""
    saved = "the share of a uniform guess's bits that is saved"
    told = {"accuracy": "the share of right answers", "compression": saved}
    return f"Accuracy here is the task's metric, {told[metric]}."


def size_lines(result: dict[str, Any]) -> list[str]:
    """What was run, in words."""
    size, config = result["size"], result["config"]
    least, most = (f"{share:.0%}" for share in config["subset"])
    tuned = "these" if result["tuned_for_these_settings"] else "OTHER"
    limit = result["equal_parameters"].get("limit")
    return [
        f"{result['episodes']} {config['instances']} instances from seed {FIRST_SEED}, {config['horizon']} steps each.",
        f"A host trains on {least} to {most} of {size['train']:,} samples,",
        f"{size['minibatches']} batches of {size['batch']} per step.",
        f"{size['val']:,} samples validate and {size['test']:,} test. Constants were tuned for {tuned} settings"
        + ("" if limit is None else f", with up to {limit:.1%} added in those named `_equal`")
        + f" (`{result['tuned_by']}`).",
    ]


def markdown(result: dict[str, Any], table: Table, checks: list[Criterion]) -> str:
    facts = result["provenance"]
    packages = ", ".join(f"{package} {version}" for package, version in facts["versions"].items())
    assert __doc__ is not None
    return "\n".join(
        [
            f"# Growth baselines on {result['environment']}",
            "",
            __doc__.split("\n\n")[2],
            *measures_table(table),
            "",
            *(line for best in REFERENCES for line in reference_table(table, best)),
            *(f"- {check}" for check in checks),
            "",
            metric_line(result["metric"]),
            *size_lines(result),
            f"`{facts['command']}`; {packages}.",
            "",
        ]
    )


def draw(path: Path, table: Table, title: str) -> None:
    """Accuracy and return of every baseline with intervals."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    names = sorted(table, key=lambda name: table[name]["discounted_return"].point)
    for axes, measure in zip(figure.subplots(1, 2, sharey=True), GAINS, strict=True):
        rows = [table[name][measure] for name in names]
        around = [[row.point - row.low for row in rows], [row.high - row.point for row in rows]]
        axes.errorbar([row.point for row in rows], range(len(names)), xerr=around, fmt="o", capsize=3)
        axes.set(xlabel=measure.replace("_", " "))
        axes.set_yticks(range(len(names)), names)
        axes.grid(alpha=0.3)
    figure.suptitle(title)
    figure.savefig(path, dpi=110)


def same_settings(tuned: dict[str, Any], played: dict[str, Any]) -> bool:
    """Whether two configurations agree, as JSON would show them, in all that constants depend on.

    The instance set differs on purpose. Returns are free of shaping, and no baseline reads what weighs its slots.
    """
    beside = dict.fromkeys(("instances", "stage_weight", "stage_potential"))
    first, second = ({**json.loads(json.dumps(one)), **beside} for one in (tuned, played))
    return first == second


def measure(
    env_id: str, episodes: int, settings: dict[str, Any], tuned: dict[str, Any], searched: bool = False
) -> dict[str, Any]:
    """Play all baselines; everything that the result holds, with the table and the criteria as objects."""
    env = make_test_env(env_id, episodes, **settings)
    esper: Any = env.unwrapped
    config: EsperConfig = esper.config
    played = play_all(env, tuned, searched)
    return {
        "environment": env_id,
        "episodes": episodes,
        "first_seed": FIRST_SEED,
        "config": asdict(config),
        "tuned_for_these_settings": same_settings(tuned["config"], asdict(config)),
        "metric": esper.task.metric.__name__,
        "size": size_of(esper.task),
        "tuned_by": tuned["provenance"]["command"],
        "equal_parameters": tuned.get("equal_parameters", {}),
        "provenance": provenance(),
        "baselines": summary(played),
        "criteria": criteria(played, config),
    }


def plain(result: dict[str, Any]) -> dict[str, Any]:
    """The result as JSON takes it."""

    def numbers(one: Estimate) -> dict[str, float | None]:
        return {key: value if isfinite(value) else None for key, value in asdict(one).items()}

    rows = {name: {key: numbers(one) for key, one in row.items()} for name, row in result["baselines"].items()}
    return result | {"baselines": rows, "criteria": [asdict(check) for check in result["criteria"]]}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", required=True, help="the environment's id")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} episodes, no table and no picture")
    parser.add_argument("--episodes", type=int, help=f"held-out instances; {FULL} unless given")
    parser.add_argument("--planner", action="store_true", help="with the planner, which takes as long as 100 others")
    parser.add_argument("--settings", type=json.loads, default={}, help="settings of the environment, as JSON")
    parser.add_argument("--tuned", type=Path, help="the baselines' constants; those of the package unless given")
    parser.add_argument("--json", type=Path, help="where to write the result")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of torch")
    return parser.parse_args()


def main() -> None:
    options = parse()
    torch.set_num_threads(options.threads)
    episodes = options.episodes or (QUICK if options.quick else FULL)
    result = measure(options.env, episodes, options.settings, load_tuned(options.env, options.tuned), options.planner)
    text = markdown(result, result["baselines"], result["criteria"])
    print("\n" + text)
    stem = RESULTS / f"growth_controls_{options.env}"
    if options.json or not options.quick:
        write_json(options.json or stem.with_suffix(".json"), plain(result))
    if not options.quick:
        stem.with_suffix(".md").write_text(text, encoding="utf-8")
        draw(stem.with_suffix(".png"), result["baselines"], options.env)


if __name__ == "__main__":
    main()
