"""Environment steps per second of a short training with one and with two ranks, in turn, on the same cores."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

TRAINING = ["--n-envs=64", "--total-timesteps=19200", "--set=n_steps=30", "--set=sequence_length=30", "--no-progress"]


def rank_speed(ranks: int) -> float:
    """Environment steps per second of a short training, after its first update, with all cores dealt out to ranks."""
    threads = max(1, (os.cpu_count() or 1) // ranks)
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory) / "run"
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m", "esper_agent"]
        command = [sys.executable, *launch, "train", "Esper-v0", "--run-dir", str(run), *TRAINING]
        subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": str(threads)})
        first, *_, last = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    steps, seconds = (last[key] - first[key] for key in ("time/total_timesteps", "time/time_elapsed"))
    return float(steps / seconds)


def measure_ranks(turns: int = 2) -> dict[str, float]:
    """The fastest turn of each number of ranks."""
    speeds = [{str(ranks): rank_speed(ranks) for ranks in (1, 2)} for _ in range(turns)]
    return {ranks: max(turn[ranks] for turn in speeds) for ranks in speeds[0]}
