"""One training step of N hosts: the population against a plain Python loop over modules, side by side in one run.

    python benchmarks/engine_throughput.py --quick --json engine.json
    python benchmarks/engine_throughput.py            # writes benchmarks/results/engine_throughput.{json,md,png}
    python benchmarks/engine_throughput.py --hosts text transformer_48   # these again, the others as they were stored
    python benchmarks/engine_throughput.py --default  # only what fusing by hand gains over the default, torch.func.vmap

Both arms do the same work on the same threads: forward, cross-entropy, backward and SGD with momentum on the same
minibatches, drawn from resident data. Arms take turns, and each is judged by its fastest turn, so that load on the
machine weighs on both alike. With one thread, what counts is the processor's time, which other jobs do not add to. The
times are per minibatch, from an epoch of several.
"""

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import esper_env.population.population as population_module
import matplotlib.figure
import numpy as np
import torch
import torch.nn.functional as F
from common import RESULTS, provenance, write_json
from esper_env.blueprints import BLUEPRINTS
from esper_env.fused.minibatches import Minibatches
from esper_env.fused.optimizers import SGD
from esper_env.hosts import CNNHost, Host, MLPHost, TransformerHost, host_of
from esper_env.population.population import Engine, Population
from esper_env.population.training import train_epoch
from esper_env.tasks import TASKS
from esper_env.tasks.digits import DENSE_SEEDS

BATCH, LEARNING_RATE, MOMENTUM, POOL, CLASSES = 32, 0.05, 0.9, 1000, 10
NO_TILES = 1 << 60
DEFAULT_SIZES = [1, 16, 64]


@dataclass(frozen=True)
class Case:
    """A host and how much of it is measured."""

    host: Host
    sample: tuple[int, ...]
    minibatches: int
    batch: int = BATCH


CASES = {
    "mlp": Case(MLPHost(64, (24, 24, 24), CLASSES), (64,), 8),
    "digits_cnn": Case(CNNHost((1, 8, 8), (6, 8, 8), CLASSES), (1, 8, 8), 4),
    "cnn_28": Case(CNNHost((1, 28, 28), (16, 16, 16), CLASSES), (1, 28, 28), 2),
    "cifar10_cnn": Case(TASKS["cifar10_cnn"].host, (3, 32, 32), 2),
    "text": Case(TASKS["text"].host, (24,), 4, TASKS["text"].batch_size),
    "transformer_48": Case(TransformerHost(48, length=32, width=48, heads=4, hidden=96, depth=3), (32,), 1),
}


def make_data(case: Case, n: int) -> Minibatches:
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(POOL, (n, case.minibatches, case.batch), generator=generator)
    if isinstance(case.host, TransformerHost):
        inputs, labels = torch.randint(case.host.vocabulary, (2, POOL, *case.sample), generator=generator)
    else:
        inputs = torch.randn(POOL, *case.sample, generator=generator)
        labels = torch.randint(CLASSES, (POOL,), generator=generator)
    return Minibatches(inputs, index, labels[index])


def by_default(case: Case) -> Case:
    """The same host with nothing fused by hand."""
    sample = case.host.sample()
    host = host_of(case.host.template, case.host.family, sample.dtype)
    return replace(case, host=host(shape=tuple(sample.shape[1:])))


def make_population(case: Case, n: int, blueprints: tuple[str, ...] = ()) -> Population:
    engine = Engine(case.host, tuple(BLUEPRINTS[name] for name in blueprints), SGD(MOMENTUM))
    population = Population.unborn(engine, n)
    widths = np.array([[slot.outputs[0] for slot in case.host.slots]] * n)
    population.rebirth(np.arange(n), torch.arange(n), torch.full((n,), LEARNING_RATE), widths)
    return population


def population_arm(case: Case, n: int) -> Callable[[], object]:
    return partial(train_epoch, make_population(case, n), make_data(case, n))


def default_arm(case: Case, n: int) -> Callable[[], object]:
    return partial(train_epoch, make_population(by_default(case), n), make_data(case, n))


def loop_arm(case: Case, n: int) -> Callable[[], object]:
    data = make_data(case, n)
    networks = [case.host.template() for _ in range(n)]
    optimizers = [torch.optim.SGD(net.parameters(), LEARNING_RATE, MOMENTUM, foreach=True) for net in networks]

    def run() -> None:
        for row, (network, optimizer) in enumerate(zip(networks, optimizers, strict=True)):
            for number in range(case.minibatches):
                optimizer.zero_grad(set_to_none=True)
                logits = network(data.inputs[data.index[row, number]])
                F.cross_entropy(logits.flatten(0, -2), data.labels[row, number].flatten()).backward()
                optimizer.step()

    return run


def fastest(arms: dict[str, Callable[[], object]], per_call: int, seconds: float) -> dict[str, float]:
    """Milliseconds per minibatch of each arm's fastest turn; arms take turns until the time is up."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    best = dict.fromkeys(arms, float("inf"))
    for arm in arms.values():
        arm()
    end, turns = time.perf_counter() + seconds, 0
    while time.perf_counter() < end or turns < 2:
        turns += 1
        for name, arm in arms.items():
            start = clock()
            arm()
            best[name] = min(best[name], (clock() - start) * 1e3 / per_call)
    return best


def compare(case: Case, sizes: list[int], seconds: float) -> Iterator[tuple[int, dict[str, float]]]:
    for n in sizes:
        times = fastest({"loop": loop_arm(case, n), "population": population_arm(case, n)}, case.minibatches, seconds)
        yield (
            n,
            {
                "loop_ms": times["loop"],
                "population_ms": times["population"],
                "speedup": times["loop"] / times["population"],
            },
        )


def compare_default(sizes: list[int], seconds: float) -> dict[str, Any]:
    """Each host as shipped, with parts fused by hand, beside the default, `torch.func.vmap` over the plain parts."""
    result: dict[str, Any] = {"provenance": provenance()}
    for name, case in CASES.items():
        result[name] = {}
        for n in sizes:
            arms = {"default": default_arm(case, n), "by_hand": population_arm(case, n)}
            times = fastest(arms, case.minibatches, seconds)
            result[name][str(n)] = {f"{arm}_ms": time for arm, time in times.items()}
            print(
                f"{name:<14} N={n:<4} default {times['default']:9.2f} ms   by hand {times['by_hand']:8.2f} ms",
                flush=True,
            )
    return result


def untiled(arm: Callable[[], object]) -> Callable[[], object]:
    def run() -> None:
        tile_bytes, population_module.TILE_BYTES = population_module.TILE_BYTES, NO_TILES
        arm()
        population_module.TILE_BYTES = tile_bytes

    return run


def tiling_gain(n: int, seconds: float) -> dict[str, float]:
    """What tiles of rows gain on the largest activations."""
    case = CASES["cnn_28"]
    arms = {"tiled": population_arm(case, n), "whole": untiled(population_arm(case, n))}
    times = fastest(arms, case.minibatches, seconds)
    return {"tiled_ms": times["tiled"], "whole_ms": times["whole"], "gain": times["whole"] / times["tiled"]}


def multiply_adds(host: MLPHost) -> int:
    widths = (host.inputs, *host.widths, host.classes)
    return sum(i * o for i, o in itertools.pairwise(widths))


def gemm_share(mlp_ms: float, n: int, seconds: float) -> dict[str, float]:
    """Which share of the machine's measured matrix-product peak the MLP's training step reaches."""
    size = 1024
    left, right = torch.randn(size, size), torch.randn(size, size)
    peak_ms = fastest({"gemm": lambda: left @ right}, 1, seconds)["gemm"]
    peak = 2 * size**3 / peak_ms / 1e6
    host = CASES["mlp"].host
    assert isinstance(host, MLPHost)
    # Forward, gradient by weights, gradient by inputs: the last is not needed for the first layer.
    products = 3 * multiply_adds(host) - host.inputs * host.widths[0]
    reached = 2 * products * BATCH * n / mlp_ms / 1e6
    return {"peak_gflops": peak, "reached_gflops": reached, "share": reached / peak}


def seeded_arm(n: int, count: int) -> Callable[[], object]:
    """n MLP hosts with live seeds in their first slots, of all dense blueprints in turn."""
    case, rows = CASES["mlp"], np.arange(n)
    population, data = make_population(case, n, DENSE_SEEDS), make_data(case, n)
    for slot in range(count):
        slots, kinds, blends = np.full(n, slot), (rows + slot) % len(DENSE_SEEDS), np.zeros(n, dtype=np.int64)
        population.germinate(rows, slots, kinds, blends, torch.arange(n), torch.zeros(n).long())
        population.advance(rows, slots)
    population.alpha.copy_(torch.from_numpy(population.census.live))
    return partial(train_epoch, population, data)


def seeds_cost(n: int, seconds: float) -> dict[str, float]:
    """Milliseconds per minibatch of n MLP hosts by how many live seeds each has."""
    case = CASES["mlp"]
    counts = range(len(case.host.slots) + 1)
    return {str(c): fastest({"seeds": seeded_arm(n, c)}, case.minibatches, seconds)["seeds"] for c in counts}


def measure_hosts(names: Iterable[str], sizes: list[int], seconds: float) -> dict[str, Any]:
    """Both arms of each host by N."""
    result: dict[str, Any] = {}
    for name in names:
        result[name] = {}
        for n, row in compare(CASES[name], sizes, seconds):
            result[name][str(n)] = row
            print(
                f"{name:<14} N={n:<4} loop {row['loop_ms']:9.2f} ms   population {row['population_ms']:8.2f} ms"
                f"   speedup {row['speedup']:5.1f}x",
                flush=True,
            )
    return result


def measure(sizes: list[int], seconds: float) -> dict[str, Any]:
    """Everything."""
    result, n = measure_hosts(CASES, sizes, seconds), 64
    result["tiling"] = tiling_gain(16, seconds)
    result["gemm"] = gemm_share(result["mlp"][str(n)]["population_ms"], n, min(seconds, 2.0))
    result["seeds_ms"] = seeds_cost(n, min(seconds, 2.0))
    result["default"] = compare_default(DEFAULT_SIZES, min(seconds, 2.0))
    return result | {"provenance": provenance(), "measured_again": {}}


def measure_again(names: list[str], sizes: list[int], seconds: float) -> dict[str, Any]:
    """The stored result with other rows for some hosts, and without hosts that are no longer measured."""
    stored = json.loads((RESULTS / "engine_throughput.json").read_text("utf-8"))
    kept = {name: part for name, part in stored.items() if name in CASES or not isinstance(part.get("1"), dict)}
    again = stored.get("measured_again", {}) | dict.fromkeys(names, provenance())
    return kept | measure_hosts(names, sizes, seconds) | {"measured_again": again}


def measure_default(seconds: float) -> dict[str, Any]:
    """The stored result with another comparison with the default."""
    stored: dict[str, Any] = json.loads((RESULTS / "engine_throughput.json").read_text("utf-8"))
    return stored | {"default": compare_default(DEFAULT_SIZES, seconds)}


def default_table(result: dict[str, Any]) -> list[str]:
    run = result["provenance"]
    lines = [
        "",
        "Every host as shipped, fused by hand, beside the default, `torch.func.vmap` over its plain parts",
        f"(`{run['command']}`, torch {run['versions']['torch']}); ms per minibatch, to be compared within a row.",
        "",
        "| host | N | default | by hand | ratio |",
        "|---|---|---|---|---|",
    ]
    for name in CASES:
        for n, row in result[name].items():
            default, by_hand = row["default_ms"], row["by_hand_ms"]
            lines.append(f"| {name} | {n} | {default:.2f} | {by_hand:.2f} | {default / by_hand:.1f}x |")
    return lines


def report(result: dict[str, Any]) -> str:
    runs = {name: result["measured_again"].get(name, result["provenance"]) for name in CASES}
    commands = dict.fromkeys(f"`{run['command']}` (torch {run['versions']['torch']})" for run in runs.values())
    lines = [
        f"{', '.join(commands)}; milliseconds per minibatch.",
        "",
        "| host | batch | threads | N | loop | population | speedup |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, case in CASES.items():
        for n, row in result[name].items():
            times = f"{row['loop_ms']:.2f} | {row['population_ms']:.2f} | {row['speedup']:.1f}x"
            lines.append(f"| {name} | {case.batch} | {runs[name]['threads']} | {n} | {times} |")
    tiling, gemm = result["tiling"], result["gemm"]
    seeds = ", ".join(f"{count}: {ms:.2f}" for count, ms in result["seeds_ms"].items())
    lines += [
        "",
        f"Tiles of rows on the 28x28 CNN at N = 16: {tiling['gain']:.2f}x "
        f"({tiling['whole_ms']:.1f} ms whole, {tiling['tiled_ms']:.1f} ms tiled).",
        f"The MLP step at N = 64 reaches {gemm['reached_gflops']:.1f} of {gemm['peak_gflops']:.1f} GFLOP/s, "
        f"{100 * gemm['share']:.0f} % of the machine's measured matrix-product peak.",
        f"MLP at N = 64 by live seeds per host (five blueprints mixed), ms: {seeds}.",
        *default_table(result["default"]),
    ]
    return "\n".join(lines) + "\n"


def plot(result: dict[str, Any]) -> matplotlib.figure.Figure:
    figure = matplotlib.figure.Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name in CASES:
        sizes = [int(n) for n in result[name]]
        left.plot(sizes, [row["speedup"] for row in result[name].values()], "o-", label=name)
        right.plot(sizes, [row["population_ms"] / int(n) for n, row in result[name].items()], "o-", label=name)
    left.axhline(1.0, color="grey", linewidth=0.8)
    left.set(xscale="log", xlabel="hosts N", ylabel="times as fast as the loop", title="One training step")
    right.set(xscale="log", yscale="log", xlabel="hosts N", ylabel="ms per host and minibatch", title="Cost per host")
    left.legend(frameon=False)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer sizes and shorter turns; about a minute")
    parser.add_argument(
        "--hosts", nargs="+", choices=CASES, help="measure these only, and keep what is stored of others"
    )
    parser.add_argument("--default", action="store_true", help="compare with the default only, and keep what is stored")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of torch")
    parser.add_argument("--json", metavar="PATH", help="where to write the result (default: benchmarks/results)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    sizes, seconds = ([1, 16, 64], 1.0) if args.quick else ([1, 4, 16, 64, 256], 10.0)
    if args.default:
        result = measure_default(min(seconds, 2.0))
    else:
        result = measure_again(args.hosts, sizes, seconds) if args.hosts else measure(sizes, seconds)
    print("\n" + report(result))
    write_json(args.json or RESULTS / "engine_throughput.json", result)
    if not args.quick:
        (RESULTS / "engine_throughput.md").write_text(report(result), encoding="utf-8")
        plot(result).savefig(RESULTS / "engine_throughput.png", dpi=120)


if __name__ == "__main__":
    main()
