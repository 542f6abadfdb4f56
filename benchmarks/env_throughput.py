"""Environment steps per second: `make_vec` beside Gymnasium's `SyncVectorEnv` of single environments.

    python benchmarks/env_throughput.py --quick --json env_throughput.json   # about two minutes
    python benchmarks/env_throughput.py                                      # everything, into benchmarks/results/

Both arms play whole episodes of random legal actions from the same seeds, with everything on (ablations, observation,
masks, rewards), and take turns step by step in one process with the same threads. Only `step` is timed. The speed of
`SyncVectorEnv` hardly depends on its size, since it is a loop: it has at most 32 environments, eight with --quick.
`overhead_share` is the share of the vector's time outside the phases "host training" and "evaluation".

    python benchmarks/env_throughput.py --load [--quick]   # the vector alone, on one and two threads, quiet and not

--load measures what `threads` costs on a shared machine: with one and two threads and with the environment's own
choice, on a machine that is otherwise quiet and beside one process that never waits. `kept` is the second as a share of
the first. Run it on a quiet machine, or its quiet rows are none.
"""

import argparse
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import esper_env
import gymnasium
import numpy as np
import torch
from common import RESULTS, provenance, write_json
from esper_agent.runs.timing import Stopwatch
from gymnasium.vector import SyncVectorEnv, VectorEnv
from matplotlib.figure import Figure
from numpy.typing import NDArray

IDS = ("Esper-v0", "Esper-Deep-v0", "Esper-CNN-v0")
SIZES, QUICK_SIZES = (1, 4, 16, 64, 256), (4, 64)
SYNC, QUICK_SYNC = 32, 8
Env = VectorEnv[Any, Any, Any]
Row = dict[str, float]


class Arm:
    """One vector environment under random legal play."""

    def __init__(self, env: Env, watch: Stopwatch) -> None:
        self.env, self.watch, self.rng = env, watch, np.random.default_rng(0)
        self.seconds = self.math_seconds = 0.0
        self.steps = 0

    def reset(self, seed: int) -> None:
        _, self.infos = self.env.reset(seed=seed)

    def step(self) -> None:
        """One timed step of all rows."""
        actions = legal_actions(self.infos["action_mask_by_op"], self.rng)
        start, math = self.watch.now(), self.watch.seconds["math"]
        *_, self.infos = self.env.step(actions)
        self.seconds += self.watch.now() - start
        self.math_seconds += self.watch.seconds["math"] - math
        self.steps += self.env.num_envs

    @property
    def speed(self) -> float:
        return self.steps / self.seconds


def legal_actions(by_op: dict[str, NDArray[np.int8]], rng: np.random.Generator) -> dict[str, NDArray[np.int64]]:
    """Uniform over legal operations, then over what each allows."""
    rows = np.arange(len(by_op["op"]))
    op = _choose(by_op["op"][:, 0], rng)
    tables = {head: by_op[head] for head in esper_env.HEADS[1:]}
    rest = {head: _choose(table[rows, op], rng) for head, table in tables.items()}
    return {"op": op, **rest}


def _choose(mask: NDArray[np.int8], rng: np.random.Generator) -> NDArray[np.int64]:
    return np.asarray(np.argmax(mask * rng.uniform(0.5, 1.0, mask.shape), axis=1))


def measure(name: str, size: int, episodes: int, most_singles: int, device: str) -> tuple[Row, float]:
    """Speeds of both arms, and the bytes that a row of the vector holds."""
    watch = Stopwatch(device)
    settings: dict[str, Any] = {"threads": torch.get_num_threads(), "device": device}
    vector = Arm(gymnasium.make_vec(name, num_envs=size, **settings), watch)
    singles = SyncVectorEnv([partial(gymnasium.make, name, **settings)] * min(size, most_singles))
    sync = Arm(singles, watch)
    horizon = vector.env.unwrapped.config.horizon  # type: ignore[attr-defined]
    vector.env.unwrapped.measure_phases(lambda _phase: watch.measure("math"))  # type: ignore[attr-defined]
    for episode in range(episodes):
        for arm in (vector, sync):
            arm.reset(seed=1000 * episode)
        for _ in range(horizon):
            vector.step()
            sync.step()
    row = {
        "vector_sps": round(vector.speed, 1),
        "sync_sps": round(sync.speed, 1),
        "speedup": round(vector.speed / sync.speed, 2),
        "overhead_share": round(1.0 - vector.math_seconds / vector.seconds, 4),
    }
    return row, held_bytes(vector.env.unwrapped.state_dict()) / size  # type: ignore[attr-defined]


def spin() -> None:
    """What a busy process does."""
    while True:
        pass


@contextmanager
def busy_process() -> Iterator[None]:
    """Another process that never waits."""
    process = multiprocessing.get_context("spawn").Process(target=spin, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join()


def speed_alone(name: str, size: int, threads: int | None, steps: int) -> float:
    """Steps per second of the vector on so many threads, None for its own choice."""
    arm = Arm(gymnasium.make_vec(name, num_envs=size, threads=threads), Stopwatch("cpu"))
    arm.reset(seed=0)
    for _ in range(steps):
        arm.step()
    return arm.speed


def measure_load(name: str, size: int, steps: int) -> dict[str, Row]:
    """Speeds on one and two threads and by the environment's choice, quiet and beside a busy process."""
    speeds: dict[str, Row] = {}
    for label, threads in (("one", 1), ("two", 2), ("own", None)):
        quiet = speed_alone(name, size, threads, steps)
        with busy_process():
            busy = speed_alone(name, size, threads, steps)
        speeds[label] = {"quiet_sps": round(quiet, 1), "busy_sps": round(busy, 1), "kept": round(busy / quiet, 3)}
    return speeds


def load_table(result: dict[str, dict[str, dict[str, Row]]]) -> str:
    lines = [
        "# Environment steps per second on a shared machine",
        "",
        "The vector alone under random legal play: on a quiet machine, and beside one process that never waits.",
        "",
        "| id | N | threads | quiet | beside a busy process | kept |",
        "|---|---|---|---|---|---|",
    ]
    for name, sizes in result.items():
        for size, rows in sizes.items():
            for label, row in rows.items():
                speeds = f"{row['quiet_sps']:.0f} | {row['busy_sps']:.0f} | {row['kept']:.0%}"
                lines.append(f"| {name} | {size} | {label} | {speeds} |")
    facts = provenance()
    return "\n".join([*lines, "", f"`{facts['command']}`, {facts['cores']} cores.", ""])


def run_load(options: argparse.Namespace) -> None:
    """Measure, write down and print what `--load` asks for."""
    sizes, steps = (QUICK_SIZES, 5) if options.quick else (SIZES, 60)
    result = {name: {str(size): measure_load(name, size, steps) for size in sizes} for name in options.id}
    print(load_table(result))
    write_json(options.json, result)
    if not options.quick:
        (RESULTS / "env_load.md").write_text(load_table(result), encoding="utf-8")


def held_bytes(tree: Any) -> int:
    if isinstance(tree, dict):
        return sum(held_bytes(value) for value in tree.values())
    return tree.numel() * tree.element_size() if isinstance(tree, torch.Tensor) else 0


def draw(path: Path, result: dict[str, dict[str, Row]]) -> None:
    """Speed against the number of environments, one panel per id."""
    figure = Figure(figsize=(4.2 * len(result), 3.6), layout="constrained")
    for axes, (name, rows) in zip(np.atleast_1d(figure.subplots(1, len(result))), result.items(), strict=True):
        sizes = [int(size) for size in rows]
        for key, label in (("vector_sps", "make_vec"), ("sync_sps", "SyncVectorEnv")):
            axes.plot(sizes, [row[key] for row in rows.values()], marker="o", label=label)
        axes.set(title=name, xscale="log", yscale="log", xlabel="environments", ylabel="steps per second")
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.grid(alpha=0.3, which="both")
        axes.legend()
    figure.savefig(path, dpi=110)


def table(result: dict[str, dict[str, Row]], memory: dict[str, dict[str, float]]) -> str:
    lines = [
        "# Environment steps per second",
        "",
        "Random legal play, whole episodes, arms in turns in one process. Overhead is the share of the vector's time",
        "outside training and evaluation; memory is what a row's state holds, its snapshot included.",
        "",
        "| id | N | make_vec | SyncVectorEnv | speedup | overhead | kB per row |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, rows in result.items():
        for size, row in rows.items():
            numbers = f"{row['vector_sps']:.0f} | {row['sync_sps']:.0f} | {row['speedup']:.1f}x"
            lines.append(
                f"| {name} | {size} | {numbers} | {row['overhead_share']:.1%} | {memory[name][size] / 1e3:.0f} |"
            )
    facts = provenance()
    packages = ", ".join(f"{package} {version}" for package, version in facts["versions"].items())
    lines += ["", f"`{facts['command']}`, {facts['threads']} thread(s) of {facts['cores']} cores; {packages}.", ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two sizes, one episode each, few single environments")
    parser.add_argument("--load", action="store_true", help="the vector alone, quiet and beside a busy process")
    parser.add_argument(
        "--json", help="where to write the result (benchmarks/results/env_throughput.json, env_load.json)"
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of both arms")
    parser.add_argument("--id", nargs="+", default=IDS, choices=IDS, help="which environments")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="where both arms compute")
    options = parser.parse_args()
    stem = "env_throughput" if options.device == "cpu" else f"env_throughput_{options.device}"
    options.json = options.json or RESULTS / ("env_load.json" if options.load else f"{stem}.json")
    if options.load:
        run_load(options)
        return
    torch.set_num_threads(options.threads)
    sizes, most_singles = (QUICK_SIZES, QUICK_SYNC) if options.quick else (SIZES, SYNC)
    result: dict[str, dict[str, Row]] = {name: {} for name in options.id}
    memory: dict[str, dict[str, float]] = {name: {} for name in options.id}
    for name in options.id:
        for size in sizes:
            episodes = 1 if options.quick else max(1, 16 // size)
            row, held = measure(name, size, episodes, most_singles, options.device)
            result[name][str(size)], memory[name][str(size)] = row, held
            print(name, size, row, f"{held / 1e3:.0f} kB per row", flush=True)
    write_json(options.json, result)
    if not options.quick:
        (RESULTS / f"{stem}.md").write_text(table(result, memory), encoding="utf-8")
        draw(RESULTS / f"{stem}.png", result)


if __name__ == "__main__":
    main()
