"""Weights & Biases and MLflow: what a run logs to TensorBoard, in both, without a network.

python examples/integrations/trackers.py
"""

import os
import tempfile
from pathlib import Path

import gymnasium
import mlflow
import wandb
from esper_agent import FactoredRecurrentPPO
from stable_baselines3.common.logger import KVWriter, Logger


class Trackers(KVWriter):
    """Gives the numbers of every log line to W&B and MLflow; SB3's logger calls it."""

    def write(self, key_values, key_excluded, step=0):
        """One line."""
        del key_excluded
        numbers = {key: float(value) for key, value in key_values.items() if isinstance(value, int | float)}
        wandb.log(numbers, step=step)
        mlflow.log_metrics(numbers, step=step)

    def close(self):
        """End both."""
        wandb.finish()
        mlflow.end_run()


with tempfile.TemporaryDirectory() as folder:
    wandb.init(project="esper", mode="offline", dir=folder, settings=wandb.Settings(silent=True))
    mlflow.set_tracking_uri(f"sqlite:///{Path(folder) / 'mlflow.db'}")
    run = mlflow.start_run().info.run_id
    env = gymnasium.make_vec("esper_env:Esper-v0", num_envs=4, autoreset_mode="same_step", output="torch", horizon=10)
    agent = FactoredRecurrentPPO(env, n_steps=10, sequence_length=10, seed=0)
    agent.set_logger(Logger(folder, [Trackers()]))
    agent.learn(80)
    agent.logger.close()
    metrics = mlflow.get_run(run).data.metrics
    assert metrics["time/total_timesteps"] == 80
    offline = [path for path in Path(folder).rglob("*.wandb") if os.path.getsize(path)]
    print(f"MLflow has {len(metrics)} metrics, W&B {len(offline)} offline run")
