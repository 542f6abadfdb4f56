"""Make environments that are cheap to step, play them at random, and compare what they give."""

import resource
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from esper_env import HEADS, RELEVANT_HEADS, EsperVectorEnv, Op
from esper_env.fused.optimizers import SGD
from esper_env.hosts import MLPHost
from esper_env.mdp.simulation import Simulation
from esper_env.registration import ENVIRONMENTS
from esper_env.tasks import TASKS, Data, Split, Task
from esper_env.tasks.cifar10 import load_cifar10
from esper_env.tasks.data import DATASETS
from esper_env.tasks.digits import load_digits
from esper_env.tasks.fashion_mnist import load_fashion_mnist
from esper_env.tasks.images import Sizes
from quick_life import QUICK_LIFE

torch.set_num_threads(1)  # small tensors gain nothing from threads, and lose much on a busy machine

FILES = ("fashion_mnist", "cifar10")  # data sets that must be fetched or imported


def needs_files(value: str, task: str) -> Any:
    """A parameter of a test that is skipped where the files of its task are missing."""
    needed = [DATASETS[name] for name in FILES if task.startswith(name) and DATASETS[name].missing()]
    return pytest.param(value, marks=[pytest.mark.skip(reason=f"{d.name} is missing; run {d.command}") for d in needed])


IDS = [needs_files(name, settings["task"]) for name, settings in ENVIRONMENTS.items()]
IMAGE_TASKS = [needs_files(f"{name}_cnn", name) for name in FILES]
TINY = "tiny_digits"
WAIT = dict.fromkeys(HEADS, 0)
OP_WEIGHTS = np.array([1.0, 1.0, 3.0, 1.0, 0.25])  # random play that prunes less reaches every stage
Action = dict[str, Any]


def load_tiny() -> Data:
    """A few of the digits."""
    full = load_digits()
    sizes = {"train": 60, "val": 40, "test": 30}
    splits = {name: getattr(full, name) for name in sizes}
    cut = {name: Split(split.inputs[: sizes[name]], split.labels[: sizes[name]]) for name, split in splits.items()}
    return replace(full, **cut)


# The same hosts on few of the images, for tests that make many environments.
FEW = {"Esper-FashionMNIST-v0": "fashion_mnist_few", "Esper-CIFAR10-v0": "cifar10_few"}
for few, whole, load in (
    ("fashion_mnist_few", "fashion_mnist_cnn", load_fashion_mnist),
    ("cifar10_few", "cifar10_cnn", load_cifar10),
):
    sizes = Sizes(train=400, val=50, test=50)
    TASKS.register(few, replace(TASKS[whole], load=partial(load, sizes), batch_size=16, minibatches_per_step=2))


def settings_of(name: str) -> dict[str, Any]:
    """What an id fixes, on few images where it needs files."""
    settings = dict(gymnasium.spec(name).kwargs)
    return settings | {"task": FEW.get(name, settings["task"])}


TASKS.register(
    TINY,
    Task(
        host=MLPHost(inputs=64, widths=(8, 6, 6), classes=10),
        blueprints=("low_rank", "narrow_mlp", "gated_unit"),
        load=load_tiny,
        optimizer=SGD(momentum=0.9),
        batch_size=8,
        minibatches_per_step=2,
    ),
)


def tiny(n: int = 1, **settings: Any) -> EsperVectorEnv:
    """A vector environment that steps in a few milliseconds, with instances that no change of a default moves."""
    fixed = {"learning_rate": (0.06, 0.14), "lesion_weights": (0.2, 0.6, 0.2), **QUICK_LIFE}
    return EsperVectorEnv(n, **{"task": TINY, "horizon": 12} | fixed | settings)


def canonical_actions(sizes: dict[str, int]) -> list[tuple[int, ...]]:
    """Every joint action whose irrelevant heads are zero, in the order of HEADS."""
    return [
        action
        for action in product(*(range(sizes[head]) for head in HEADS))
        if all(v == 0 or head in RELEVANT_HEADS[Op(action[0])] for head, v in zip(HEADS[1:], action[1:], strict=True))
    ]


def batch(actions: Any) -> Action:
    """Rows of joint actions as the dict that a vector environment takes."""
    table = np.asarray(actions)
    return {head: table[:, place].copy() for place, head in enumerate(HEADS)}


def legal_action(by_op: dict[str, np.ndarray], row: int, rng: np.random.Generator) -> tuple[int, ...]:
    """A joint action that the tables of one row call legal; operations first, then their arguments."""
    weights = OP_WEIGHTS * by_op["op"][row, 0]
    op = int(rng.choice(len(Op), p=weights / weights.sum()))
    rest = (int(rng.choice(np.flatnonzero(by_op[head][row, op]))) for head in HEADS[1:])
    return (op, *rest)


def legal_actions(infos: dict[str, Any], rng: np.random.Generator) -> Action:
    """One legal action per row."""
    by_op = {head: np.asarray(table) for head, table in infos["action_mask_by_op"].items()}
    return batch([legal_action(by_op, row, rng) for row in range(len(by_op["op"]))])


def any_actions(env: EsperVectorEnv, rng: np.random.Generator) -> Action:
    """One action per row, legal or not."""
    sizes = env.simulation.head_sizes
    return {head: rng.integers(sizes[head], size=env.num_envs) for head in HEADS}


def play(env: EsperVectorEnv, steps: int, seed: int = 0, illegal: float = 0.0) -> Iterator[tuple[Any, ...]]:
    """Reset and step at random; with probability `illegal` a step's actions are drawn without masks."""
    rng = np.random.default_rng(seed)
    _, infos = env.reset(seed=seed)
    for _ in range(steps):
        actions = any_actions(env, rng) if rng.random() < illegal else legal_actions(infos, rng)
        result = env.step(actions)
        infos = result[-1]
        yield (actions, *result)


def act(op: Op, slot: int = 0, blueprint: int = 0, blend: int = 0, tempo: int = 0) -> Action:
    """The action of a single environment."""
    return dict(zip(HEADS, (int(op), slot, blueprint, blend, tempo), strict=True))


def everywhere(action: Action, n: int) -> Action:
    """The same action in n rows."""
    return {head: np.full(n, value) for head, value in action.items()}


def leaves(tree: Any, path: str = "") -> dict[str, Any]:
    """A nested dict as one dict from paths to values."""
    if isinstance(tree, dict):
        return {name: leaf for key, value in tree.items() for name, leaf in leaves(value, f"{path}/{key}").items()}
    return {path: tree}


def resident_bytes() -> int:
    """Memory that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def array(value: Any) -> np.ndarray:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def assert_same(one: Any, other: Any) -> None:
    """Equal nested results, bit for bit."""
    mine, theirs = leaves(one), leaves(other)
    assert mine.keys() == theirs.keys()
    for path, value in mine.items():
        np.testing.assert_array_equal(array(value), array(theirs[path]), err_msg=path)


def assert_close(one: Any, other: Any, tolerance: float) -> None:
    """Equal nested results: numbers to a tolerance, everything discrete exactly."""
    mine, theirs = leaves(one), leaves(other)
    assert mine.keys() == theirs.keys()
    for path, value in mine.items():
        a, b = array(value), array(theirs[path])
        exact = a.dtype.kind != "f"
        np.testing.assert_allclose(a, b, rtol=0, atol=0 if exact else tolerance, err_msg=path)


def row_bits(simulation: Simulation, row: int) -> dict[str, Any]:
    """Everything that one row is: parameters, optimiser state, seeds, lifecycle and measurements."""
    population = simulation.population
    seeds = {
        f"{key}": [tensor[int(cohort.rows.searchsorted(row))].clone() for tensor in cohort.tensors()]
        for key, cohort in population.seeds.items()
        if row in cohort.rows
    }
    parts = {f"{key}.{i}": tensor for key, tensors in seeds.items() for i, tensor in enumerate(tensors)}
    return {
        "body": {str(i): tensor[row].clone() for i, tensor in enumerate(population.body.tensors())},
        "seeds": parts,
        "census": {name: table[row].copy() for name, table in vars(population.census).items()},
        "alpha": population.alpha[row].clone(),
        "state": {name: tensor[row].clone() for name, tensor in simulation.state.tensors().items()},
    }
