"""Trained agents that come with the package: for each id a checkpoint and its card, by benchmarks/pretrain.py.

`FactoredRecurrentPPO.pretrained("Esper-v0")` and `--pretrained Esper-v0` of the commands read them as suspiciously as
any checkpoint, and besides refuse a file that is not the one which the card speaks of.
"""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Self

from esper_agent.algorithm.archive import CheckpointError
from esper_agent.algorithm.environments import AnyEnv

DIRECTORY = Path(__file__).parent


def pretrained_ids() -> list[str]:
    """The environments that an agent is shipped for."""
    return sorted(file.stem for file in DIRECTORY.glob("*.json"))


def read_card(env_id: str) -> dict[str, Any]:
    """What is known about a shipped agent: its training, its results on test instances, and their limits.

    Raises:
        ValueError: when none is shipped for that id; it names those that there are.
    """
    if env_id not in pretrained_ids():
        raise ValueError(f"no pretrained agent for {env_id!r}; there are: {', '.join(pretrained_ids())}")
    card: dict[str, Any] = json.loads((DIRECTORY / f"{env_id}.json").read_text(encoding="utf-8"))
    return card


def pretrained_file(env_id: str) -> Path:
    """The checkpoint of a shipped agent.

    Raises:
        ValueError: when none is shipped for that id.
        CheckpointError: when the file is not the one that the card speaks of.
    """
    card, file = read_card(env_id), DIRECTORY / f"{env_id}.ckpt"
    if not file.is_file() or sha256(file.read_bytes()).hexdigest() != card["sha256"]:
        raise CheckpointError(
            f"{file} is not there, or not the file that its card speaks of; install esper-agent again"
        )
    return file


class Pretrained:
    """The way to the agents that come with the package; `FactoredRecurrentPPO` inherits this."""

    load: ClassVar[Any]

    @classmethod
    def pretrained(
        cls, env_id: str, env: str | AnyEnv | None = None, device: str = "cpu", *, n_envs: int | None = None
    ) -> Self:
        """The agent that comes with the package for an id; `esper_agent.pretrained.read_card` says what it scores.

        Args:
            env_id: for which environment it was trained.
            env: the environment to play or go on learning in; without one the agent predicts.
            device: "auto", "cpu" or "cuda".
            n_envs: how many environments to make when `env` is an id; None as for a new agent.

        Raises:
            ValueError: when there is none for that id; it names those that there are.
        """
        agent: Self = cls.load(pretrained_file(env_id), env, device, n_envs=n_envs)
        return agent
