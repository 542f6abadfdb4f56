"""A device is not kept waiting: a step reads two results on the host, whatever it decides, and none else."""

from typing import Any

import numpy as np
import pytest
import torch
from env_tools import WAIT, act, everywhere, tiny
from esper_env import Op
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

READING_METHODS = {"cpu", "numpy", "item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__array__"}
READING_OPERATIONS = {
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_dim",
    "is_nonzero",
    "equal",
}


class Methods(TorchFunctionMode):
    """Notes the methods of tensors that bring values to the host; `cpu().numpy()` is one read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        result = func(*args, **(kwargs or {}))
        if name in READING_METHODS and not (name == "numpy" and self.reads[-1:] == ["cpu"]):
            self.reads.append(name)
        return result


class Operations(TorchDispatchMode):
    """Notes the operations whose results' shape or branch depend on values."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        masked = name.startswith("index") and any(
            getattr(i, "dtype", None) == torch.bool for i in (args[1] if isinstance(args[1], list | tuple) else [])
        )
        if name in READING_OPERATIONS or masked:
            self.reads.append(name)
        return func(*args, **(kwargs or {}))


def reads_of_a_step(env: Any, action: dict[str, int]) -> list[str]:
    actions = {head: torch.from_numpy(values) for head, values in everywhere(action, env.num_envs).items()}
    with Operations() as operations, Methods() as methods:
        env.step(actions)
    return [*methods.reads, *operations.reads]


@pytest.mark.parametrize("task", ["tiny_digits", "digits_cnn", "text"])
def test_a_step_reads_two_results_whatever_it_decides(task: str) -> None:
    env = tiny(4, task=task, training_steps=1, lesion_weights=(0, 0, 1), horizon=20, output="torch")
    env.reset(seed=0)
    script = [WAIT, act(Op.GERMINATE, slot=1, blend=2), act(Op.ADVANCE, slot=1), *[WAIT] * 3, act(Op.FOSSILIZE, slot=1)]
    script += [act(Op.GERMINATE, slot=0), act(Op.PRUNE, slot=0)]
    assert [reads_of_a_step(env, action) for action in script] == [["cpu", "cpu"]] * len(script)


def test_every_way_to_read_is_counted() -> None:
    numbers = torch.arange(3)
    with Operations() as operations, Methods() as methods:
        assert bool(numbers.any())
        numbers.max().item()
        numbers.tolist()
        numbers.cpu().numpy()
        np.asarray(numbers)
        numbers[numbers > 0]
        numbers.nonzero()
    assert len(methods.reads) >= 5
    assert {"index", "nonzero"} <= set(operations.reads)
