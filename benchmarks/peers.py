"""One training step of N hosts: ours beside JAX's `jit(vmap)` and a plain loop over torch modules, one thread each.

    python benchmarks/peers.py --quick --json peers.json    # about two minutes
    python benchmarks/peers.py                              # into benchmarks/results/peers.json

JAX is installed into an environment of its own below `dist/peers`. Times are processor time per minibatch (forward,
cross-entropy, backward, SGD with momentum on resident data); each side is judged by its fastest epoch. Hosts with
seeds have them in the first slots, live, of all dense blueprints in turn; JAX pads them (see `peers_jax.py`).
"""

import argparse
import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, provenance, write_json
from engine_throughput import BATCH, CASES, fastest, loop_arm, population_arm, seeded_arm

HOME = Path(__file__).parent.parent / "dist" / "peers"
JAX_SIDE = Path(__file__).with_name("peers_jax.py")
SIZES = {"mlp": (1, 16, 64, 256), "digits_cnn": (16, 64)}
QUICK = {"mlp": (16, 64), "digits_cnn": (16,)}
SEEDS = (0, 1, 3)
ONE_THREAD = {"OMP_NUM_THREADS": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "NPROC": "1"}


def jax_python() -> Path:
    """The interpreter of an environment with JAX, made once."""
    python = HOME / "bin" / "python"
    if not python.exists():
        venv.create(HOME, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "jax"], check=True)
    return python


def jax_ms(host: str, n: int, seeds: int, seconds: float) -> float:
    """What JAX takes, in a process of its own that is kept on one core where the system allows it."""
    case = {"host": host, "n": n, "seeds": seeds, "minibatches": CASES[host].minibatches, "batch": BATCH}
    command = [str(jax_python()), str(JAX_SIDE), json.dumps(case | {"seconds": seconds})]
    one_core = partial(os.sched_setaffinity, 0, {min(os.sched_getaffinity(0))}) if sys.platform == "linux" else None
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | ONE_THREAD
    result = subprocess.run(command, env=environment, preexec_fn=one_core, check=True, capture_output=True, text=True)
    return float(result.stdout)


def measure(host: str, n: int, seeds: int, seconds: float) -> dict[str, Any]:
    """All sides of one case; the loop has no seeds."""
    ours = seeded_arm(n, seeds) if seeds else population_arm(CASES[host], n)
    arms: dict[str, Callable[[], object]] = {"ours": ours}
    if not seeds:
        arms["loop"] = loop_arm(CASES[host], n)
    times = fastest(arms, CASES[host].minibatches, seconds) | {"jax": jax_ms(host, n, seeds, seconds)}
    row = {"host": host, "n": n, "seeds": seeds} | {f"{name}_ms": round(ms, 3) for name, ms in times.items()}
    ratios = {f"{name}_to_ours": round(ms / times["ours"], 2) for name, ms in times.items() if name != "ours"}
    print("  ".join(f"{name} {value}" for name, value in (row | ratios).items()), flush=True)
    return row | ratios


def main() -> None:
    """Measure and write down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", default=RESULTS / "peers.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sizes, seconds = (QUICK, 1.0) if arguments.quick else (SIZES, 4.0)
    rows = [measure("mlp", n, seeds, seconds) for seeds in SEEDS for n in sizes["mlp"]]
    rows += [measure("digits_cnn", n, 0, seconds) for n in sizes["digits_cnn"]]
    write_json(arguments.json, {"provenance": provenance(), "rows": rows})


if __name__ == "__main__":
    main()
