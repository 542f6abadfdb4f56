"""Cost: one vector step is one tensor program whatever the number of rows, and memory stays flat."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from env_tools import WAIT, act, everywhere, tiny
from esper_env import EsperVectorEnv, Op
from torch.utils._python_dispatch import TorchDispatchMode


class OpCounter(TorchDispatchMode):
    """Counts the tensor operations that run under it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[str(func)] += 1
        return func(*args, **(kwargs or {}))


def operations(env: EsperVectorEnv, action: dict[str, int]) -> Counter[str]:
    with OpCounter() as counter:
        env.step(everywhere(action, env.num_envs))
    return counter.calls


SCRIPT = {
    "waiting": [],
    "incubating": [act(Op.GERMINATE, slot=1)],
    "blending": [act(Op.GERMINATE, slot=1), act(Op.ADVANCE, slot=1)],
    "committed and incubating": [
        act(Op.GERMINATE, slot=1),
        act(Op.ADVANCE, slot=1),
        *[WAIT] * 3,
        act(Op.FOSSILIZE, slot=1),
        act(Op.GERMINATE, slot=0, blend=2),
    ],
}


@pytest.mark.parametrize("occupancy", SCRIPT)
@pytest.mark.parametrize("task", ["tiny_digits", "digits_cnn", "text"])
def test_a_step_runs_as_many_operations_for_64_rows_as_for_4(
    task: str, occupancy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esper_env.population.population.TILE_BYTES", 1 << 40)  # tiling is for the cache, not for rows
    counts = []
    for n in (4, {"tiny_digits": 64, "digits_cnn": 16, "text": 6}[task]):
        env = tiny(n, task=task, training_steps=1, lesion_weights=(0, 0, 1), horizon=20)
        env.reset(seed=0)
        for action in SCRIPT[occupancy]:
            env.step(everywhere(action, n))
        counts.append(operations(env, WAIT))
    assert counts[0] == counts[1]
    assert sum(counts[0].values()) > 100


@pytest.mark.parametrize("op", [Op.GERMINATE, Op.ADVANCE, Op.PRUNE])
def test_operations_of_all_rows_at_once_cost_as_much_as_those_of_a_few(op: Op) -> None:
    counts = []
    for n in (4, 64):
        env = tiny(n, training_steps=1, lesion_weights=(0, 0, 1))
        env.reset(seed=0)
        if op is not Op.GERMINATE:
            env.step(everywhere(act(Op.GERMINATE, slot=2), n))
        counts.append(operations(env, act(op, slot=2)))
    assert counts[0] == counts[1]


def test_resetting_all_rows_costs_as_much_as_resetting_a_few() -> None:
    counts = []
    for n in (4, 64):
        env = tiny(n, lesion_weights=(0, 0, 1))
        env.reset(seed=0)
        with OpCounter() as counter:
            env.simulation.reset(np.arange(n))
        counts.append(counter.calls)
    assert counts[0] == counts[1]


@pytest.mark.soak
@pytest.mark.parametrize("task", ["digits_mlp", "digits_cnn", "text"])
def test_memory_is_linear_in_the_number_of_rows(task: str) -> None:
    def held_by(n: int) -> int:
        env = EsperVectorEnv(n, task=task)
        env.reset(seed=0)
        state = env.state_dict()
        return sum(t.numel() * t.element_size() for t in tensors(state))

    small, large = held_by(8), held_by(64)
    assert large == pytest.approx(8 * small, rel=0.01)


def tensors(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, dict):
        return [tensor for value in tree.values() for tensor in tensors(value)]
    return [tree] if isinstance(tree, torch.Tensor) else []
