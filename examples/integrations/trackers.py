"""Weights & Biases and MLflow: one flag each of `esper-agent train`, here without a network.

python examples/integrations/trackers.py
"""

import os
import tempfile
from pathlib import Path

import mlflow
from esper_agent.cli import main

with tempfile.TemporaryDirectory() as folder:
    run = Path(folder) / "run"
    os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    mlflow.set_tracking_uri(f"sqlite:///{Path(folder) / 'mlflow.db'}")
    small = (
        "--total-timesteps 80 --n-envs 4 --no-progress --env-set horizon=10 --set n_steps=10 --set sequence_length=10"
    )
    main(["train", "Esper-v0", "--run-dir", str(run), *small.split(), "--logger", "wandb", "--logger", "mlflow"])
    metrics = mlflow.search_runs(output_format="list")[0].data.metrics
    assert metrics["time/total_timesteps"] == 80
    offline = [path for path in run.rglob("*.wandb") if path.stat().st_size]
    print(f"MLflow has {len(metrics)} metrics, W&B {len(offline)} offline run")
