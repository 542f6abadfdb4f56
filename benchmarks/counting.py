"""Work counted op by op: how many kernels, FLOPs and bytes the training and validation of an environment step take.

Populations live on torch's meta device, which knows shapes and computes nothing: counts do not depend on the machine.
"""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch
from engine_throughput import untiled
from esper_env.blueprints import BLUEPRINTS
from esper_env.blueprints.blends import Blend
from esper_env.fused.minibatches import Minibatches
from esper_env.population.evaluation import evaluate
from esper_env.population.population import Engine, Population
from esper_env.population.training import train_epoch
from esper_env.tasks.base import Task
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

FREE = ("empty", "new_empty", "_unsafe_view", "_reshape_alias")  # launch nothing, though no schema calls them views
GATHERS = ("index", "index_select", "gather", "embedding")  # read as much of their first argument as they write
Run = Callable[[], object]
Row = dict[str, float]


class Tally(TorchDispatchMode):
    """Counts the ops that compute or copy, and the bytes that each reads and writes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernels = self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result, name = func(*args, **(kwargs or {})), func.overloadpacket.__name__
        if not func.is_view and not name.startswith(FREE):
            read = (result, *args[1:]) if name in GATHERS else args
            self.kernels += 1
            self.bytes += sum(held_bytes(t) for t in tree_leaves((read, kwargs, result)) if isinstance(t, Tensor))
        return result


def held_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor; what is expanded lies in memory once."""
    strided = zip(tensor.shape, tensor.stride(), strict=True)
    return prod(size for size, stride in strided if stride) * tensor.element_size()


def work(run: Run) -> Row:
    """Kernels, FLOPs (of matrix products and convolutions) and bytes of a run."""
    run()  # templates are built once, at first use
    with FlopCounterMode(display=False) as flops, Tally() as tally:
        run()
    return {"kernels": tally.kernels, "flops": flops.get_total_flops(), "bytes": tally.bytes}


def grown(task: Task, n: int, device: str) -> Population:
    """Hosts with one lesioned block and seeds in all slots: all blueprints and blends in turn, every other one live."""
    blueprints = tuple(BLUEPRINTS[name] for name in task.blueprints)
    engine = Engine(task.host, blueprints, task.optimizer, task.max_grad_norm, device, metric=task.metric)
    population, rows, keys = Population.unborn(engine, n), np.arange(n), torch.arange(n, device=device)
    widths = np.array([slot.outputs[0] for slot in task.host.slots])
    lesioned = np.where(rows[:, None] % len(widths) == np.arange(len(widths)), widths // 2, widths)
    population.rebirth(rows, keys, torch.full((n,), 0.1, device=device), lesioned)
    for slot in range(len(widths)):
        here, turn = np.full(n, slot), rows + slot
        population.germinate(rows, here, turn % len(blueprints), turn % len(Blend), keys, torch.zeros_like(keys))
        population.advance(rows[turn % 2 == 0], here[turn % 2 == 0])
    return population


def epoch_and_evaluation(task: Task, n: int, device: str = "meta") -> tuple[Run, Run]:
    """What an environment step of n grown hosts trains, and what it validates."""
    population, data = grown(task, n, device), task.load()
    train, val = data.train.to(population.lr), data.val.to(population.lr)
    index = torch.zeros(n, task.minibatches_per_step, task.batch_size, dtype=torch.int64, device=device)
    minibatches = Minibatches(train.inputs, index, train.labels[index])
    return partial(train_epoch, population, minibatches), partial(evaluate, population, val.inputs, val.labels)


def step_work(task: Task, n: int) -> dict[str, Row]:
    """The work of a step: of its two parts and their sum with all rows in one tile, and of the sum in tiles as shipped.

    Args:
        task: What is learned.
        n: How many hosts.
    """
    epoch, evaluation = epoch_and_evaluation(task, n)
    parts = {"epoch": work(untiled(epoch)), "evaluation": work(untiled(evaluation))}
    return parts | {"whole": total(*parts.values()), "tiled": total(work(epoch), work(evaluation))}


def total(first: Row, second: Row) -> Row:
    """The work of both."""
    return {key: first[key] + second[key] for key in first}
