"""Hundreds of updates, each with a checkpoint, leave memory and files as they were."""

import resource
from pathlib import Path

import pytest
import resumable_env  # noqa: F401 (registers its environment)
from esper_agent import FactoredRecurrentPPO
from esper_agent.runs.action_shares import ActionShares
from esper_agent.runs.directory import RunConfig, RunDirectory
from esper_agent.runs.training import CheckpointRun
from stable_baselines3.common.callbacks import BaseCallback

UPDATES, EVERY = 300, 50
MOST_GROWTH = 8 << 20  # bytes; one checkpoint held per update would be several times that


class Meter(BaseCallback):
    """Reads off, now and then, how much memory and how many files this process holds."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[int] = []
        self.files: list[int] = []

    def _on_rollout_end(self) -> None:
        if self.model.num_timesteps % (EVERY * 64) == 0:
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
            self.held.append(pages * resource.getpagesize())
            self.files.append(len(list(Path("/proc/self/fd").iterdir())))

    def _on_step(self) -> bool:
        return True


@pytest.mark.soak
def test_hundreds_of_updates_and_checkpoints_leak_nothing(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.create()
    model = FactoredRecurrentPPO("Resumable-v0", n_envs=4, seed=0, n_steps=16, sequence_length=16)
    model.set_logger(run.logger(0, RunConfig("Esper-v0")))
    meter = Meter()
    model.learn(UPDATES * 64, [ActionShares(), CheckpointRun(run, every=1, keep=3), meter])
    model.logger.close()
    assert len(run.metrics()) == UPDATES
    assert len(run.checkpoints()) == 3
    assert len(set(meter.files)) == 1
    assert meter.held[-1] - meter.held[0] < MOST_GROWTH
