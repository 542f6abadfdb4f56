"""What a step costs: measured times fitted by a + b*N, counted work, and what both say about an accelerator.

    python benchmarks/cost_model.py            # writes benchmarks/results/cost_model.{json,md}
    python benchmarks/cost_model.py --ranks    # also trains with one and two ranks in turn; else what is stored is kept

The times are those of engine_throughput.json and env_throughput.json; counting.py counts the work. The accelerator's
figures are arguments, and none of them was measured.
"""

import argparse
import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from common import RESULTS, provenance, write_json
from counting import Row, step_work, work
from engine_throughput import CASES, make_data, make_population
from esper_env.population.training import train_epoch
from esper_env.tasks import TASKS
from rank_throughput import measure_ranks

TASK, SIZES = "digits_mlp", (16, 64, 256, 1024, 4096)  # the task is that of Esper-v0
# Hosts whose code and minibatch are still those that were timed, so that times and counts belong together.
UNCHANGED = ("mlp", "digits_cnn", "cnn_28", "cifar10_cnn", "text", "transformer_48")
ASSUMED = {"launch_us": 10.0, "gigabytes_per_second": 1000.0, "gigaflops": 10_000.0}


def fit(sizes: Iterable[float], times: Iterable[float]) -> Row:
    """The line a + b*N with the least squares of relative errors, and the largest of these."""
    x, t = np.array([*sizes], dtype=np.float64), np.array([*times])
    (a, b), *_ = np.linalg.lstsq(np.stack([1.0 / t, x / t], axis=1), np.ones_like(t), rcond=None)
    return {"a_ms": float(a), "b_ms": float(b), "error": float(np.abs((a + b * x) / t - 1.0).max())}


def fit_hosts(engine: dict[str, Any]) -> dict[str, Row]:
    """Training minibatches by N, and the size of each host where it is known."""
    timed = {name: rows for name, rows in engine.items() if isinstance(rows.get("1"), dict)}
    lines = {name: fit(map(int, rows), (row["population_ms"] for row in rows.values())) for name, rows in timed.items()}
    return {name: line | (host_work(name) if name in UNCHANGED else {}) for name, line in lines.items()}


def host_work(name: str) -> Row:
    """Parameters, FLOPs and bytes of one host's minibatch."""
    case = CASES[name]
    population = make_population(case, 1)
    counted = work(partial(train_epoch, population, make_data(case, 1)))
    per_minibatch = {key: counted[key] / case.minibatches for key in ("flops", "bytes")}
    return {"parameters": population.body.values.shape[1], **per_minibatch}


def fit_steps(env: dict[str, Any], part: str | None = None) -> dict[str, Row]:
    """Whole environment steps by N, or a share of them."""
    found = {}
    for name, rows in env.items():
        times = [1e3 * int(n) / row["vector_sps"] * (row[part] if part else 1.0) for n, row in rows.items()]
        found[name] = fit(map(int, rows), times)
    return found


def predict(row: Row, assumed: Row) -> Row:
    """Milliseconds that launches, memory and arithmetic would take alone; the largest is the step's."""
    parts = {
        "launch": row["kernels"] * assumed["launch_us"] / 1e3,
        "memory": row["bytes"] / assumed["gigabytes_per_second"] / 1e6,
        "arithmetic": row["flops"] / assumed["gigaflops"] / 1e6,
    }
    return parts | {"step": max(parts.values())}


def at(line: Row, n: int) -> float:
    """Milliseconds by a fitted line."""
    return line["a_ms"] + line["b_ms"] * n


def crossover(predicted: Row, n: int) -> float:
    """The N from which launches are no longer the limit, if their number stays."""
    return n * predicted["launch"] / max(predicted["memory"], predicted["arithmetic"])


def model(assumed: Row) -> dict[str, Any]:
    """Everything but ranks."""
    engine, env = (json.loads((RESULTS / f"{name}_throughput.json").read_text("utf-8")) for name in ("engine", "env"))
    seeds = engine["seeds_ms"]
    counts = {n: step_work(TASKS[TASK], n) for n in SIZES}
    predicted = {n: {way: predict(row[way], assumed) for way in ("whole", "tiled")} for n, row in counts.items()}
    lines = {"steps": fit_steps(env), "outside": fit_steps(env, "overhead_share")}
    for n, row in predicted.items():
        row["lines"] = {part: at(line["Esper-v0"], n) for part, line in lines.items()}
    return {
        "hosts": fit_hosts(engine),
        "seeds": {"mlp, N = 64": fit(map(int, seeds), seeds.values())},
        **lines,
        "counts": counts,
        "assumed": assumed,
        "predicted": predicted,
        "crossover": crossover(predicted[SIZES[-1]]["whole"], SIZES[-1]),
    }


def table(*rows: Iterable[object]) -> list[str]:
    """A table, its head first, after an empty line."""
    head, *body = ("| " + " | ".join(map(str, row)) + " |" for row in rows)
    return ["", head, "|" + "---|" * head.count(" | ") + "---|", *body]


def line_cells(name: str, row: Row) -> list[str]:
    return [name, f"{row['a_ms']:.2f}", f"{row['b_ms']:.3f}", f"{row['error']:.0%}"]


def host_cells(name: str, row: Row) -> list[str]:
    if "bytes" not in row:
        return [*line_cells(name, row), "-", "-", "-", "-"]
    sizes = [f"{row['parameters']:,}", f"{row['flops'] / 1e6:.2f}", f"{row['bytes'] / 1e6:.2f}"]
    return [*line_cells(name, row), *sizes, f"{row['bytes'] / row['b_ms'] / 1e6:.1f}"]


def count_cells(n: int, row: dict[str, Row]) -> list[str]:
    kernels = [f"{row[part]['kernels']:,}" for part in ("epoch", "evaluation", "whole", "tiled")]
    return [f"{n:,}", *kernels, f"{row['whole']['flops'] / 1e9:.2f}", f"{row['whole']['bytes'] / 1e9:.2f}"]


def prediction_cells(n: int, row: dict[str, Row]) -> list[str]:
    whole, tiled, lines = row["whole"], row["tiled"], row["lines"]
    return [f"{n:,}", *(f"{ms:.1f}" for ms in (*whole.values(), tiled["step"], lines["outside"], lines["steps"]))]


def fit_tables(result: dict[str, Any]) -> list[str]:
    fitted, sizes = ("a, ms", "b, ms", "largest error"), ("parameters", "MFLOP", "MB", "GB/s reached")
    lines = table(("minibatch of a host", *fitted, *sizes), *(host_cells(*item) for item in result["hosts"].items()))
    heads = {"seeds": "by seeds per host", "steps": "environment step", "outside": "outside training and evaluation"}
    for key, head in heads.items():
        lines += table((head, *fitted), *(line_cells(*item) for item in result[key].items()))
    return lines


def prediction_tables(result: dict[str, Any]) -> list[str]:
    kernels = ("kernels of the epoch", "of the evaluation", "of both", "of both in tiles as shipped", "GFLOP", "GB")
    times = ("launches", "memory", "arithmetic", "largest", "largest in tiles", "line: outside", "line: whole step")
    launch, bandwidth, rate = result["assumed"].values()
    return [
        *table(("N", *kernels), *(count_cells(*item) for item in result["counts"].items())),
        "",
        f"Assumed, not measured: {launch:g} us per launch, {bandwidth:g} GB/s, {rate:g} GFLOP/s. In ms, beside",
        "the lines that were fitted on a CPU:",
        *table(("N", *times), *(prediction_cells(*item) for item in result["predicted"].items())),
        "",
        f"In one tile, launches are the limit up to N = {result['crossover']:,.0f}.",
    ]


def stored_ranks(path: Path) -> dict[str, float] | None:
    """What an earlier run measured with one and two ranks."""
    stored: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return stored.get("ranks")


def report(result: dict[str, Any]) -> str:
    """The result as tables."""
    lines = ["# Cost model", *fit_tables(result), *prediction_tables(result)]
    if result["ranks"]:
        lines += table(("ranks", "steps per second"), *((n, f"{speed:.0f}") for n, speed in result["ranks"].items()))
    facts = result["provenance"]
    return "\n".join([*lines, "", f"`{facts['command']}`, torch {facts['versions']['torch']}.", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in ASSUMED.items():
        text = f"of the accelerator ({value:g}: assumed, not measured)"
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=value, help=text)
    parser.add_argument("--ranks", action="store_true", help="also measure training with one and two ranks; minutes")
    parser.add_argument("--json", type=Path, default=RESULTS / "cost_model.json", help="where to write the result")
    options = parser.parse_args()
    result = model({name: getattr(options, name) for name in ASSUMED}) | {"provenance": provenance()}
    result["ranks"] = measure_ranks() if options.ranks else stored_ranks(options.json)
    write_json(options.json, result)
    options.json.with_suffix(".md").write_text(report(result), encoding="utf-8")
    print(report(result))


if __name__ == "__main__":
    main()
