"""One stored checkpoint of each version; `python tests/agent/checkpoint_fixtures.py` makes that of the current one.

A fixture of an older version is never made again: it is what a user of that version has on the disk.
"""

import shutil
from pathlib import Path

from esper_agent import FactoredRecurrentPPO
from esper_agent.algorithm.checkpoint import SCHEMA_VERSION, upgrade_checkpoint

DIRECTORY = Path(__file__).parent / "fixtures"
ENV = "resumable_env:Resumable-v0"


def fixture_file(version: int) -> Path:
    return DIRECTORY / f"checkpoint_v{version}.ckpt"


def make_agent(seed: int) -> FactoredRecurrentPPO:
    sizes = {"lstm_size": 4, "encoder_sizes": (4,), "head_hidden": 4}
    return FactoredRecurrentPPO(ENV, n_envs=2, seed=seed, n_steps=8, sequence_length=8, n_minibatches=1, **sizes)


if __name__ == "__main__":
    shutil.copy(fixture_file(SCHEMA_VERSION - 1), fixture_file(SCHEMA_VERSION))
    upgrade_checkpoint(fixture_file(SCHEMA_VERSION))
