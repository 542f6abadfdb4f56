"""Tasks are complete and real, and every wrong name or argument gets one clear error."""

import ast
import re
from pathlib import Path

import esper_env
import numpy as np
import pytest
import torch
from engine_tools import build
from esper_env.blueprints import BLUEPRINTS
from esper_env.fused.optimizers import SGD
from esper_env.hosts import HOSTS, CNNHost, MLPHost, TransformerHost
from esper_env.hosts.base import Host
from esper_env.population.population import Engine
from esper_env.registry import Registry
from esper_env.tasks import TASKS, Task
from sklearn.datasets import load_digits

PACKAGE = Path(esper_env.__file__).parent
SHIPPED = ("digits_mlp", "digits_deep", "digits_cnn")  # other tests register tasks of their own
FROM_FILES = [f"{data}_{host}" for data in ("fashion_mnist", "cifar10") for host in ("cnn", "blunted", "capable")]


@pytest.mark.parametrize("name", SHIPPED)
def test_splits_are_disjoint_whole_and_real(name: str) -> None:
    data = TASKS[name].load()
    splits = (data.train, data.val, data.test)
    assert [len(split) for split in splits] == [1000, 240, 557]
    raw = load_digits()
    scale = data.train.inputs.unique().diff().min()  # one grey level, since all seventeen occur
    together = torch.cat([split.inputs for split in splits]).flatten(1)
    grey = ((together - together.min()) / scale).round().long()
    given = {tuple(image): label for image, label in zip(raw.data.astype(int).tolist(), raw.target, strict=True)}
    labels = torch.cat([split.labels for split in splits]).tolist()
    found = {tuple(image): label for image, label in zip(grey.tolist(), labels, strict=True)}
    assert found == given
    assert len(found) == len(raw.target) == sum(len(split) for split in splits)  # so no image is in two splits


@pytest.mark.parametrize("name", SHIPPED)
def test_data_are_standardised_by_the_training_split_alone(name: str) -> None:
    data = TASKS[name].load()
    assert data.train.inputs.mean().abs() < 1e-5
    assert abs(data.train.inputs.std().item() - 1.0) < 1e-5
    assert data.val.inputs.mean().abs() > 1e-4
    assert data.test.inputs.mean().abs() > 1e-4
    for split in (data.train, data.val, data.test):
        assert split.inputs.dtype is torch.float32
        assert split.labels.unique().tolist() == list(range(data.classes))
    assert data.baseline_loss == pytest.approx(np.log(10))


def test_the_default_tasks() -> None:
    assert set(TASKS) >= set(SHIPPED)
    assert [len(TASKS[name].host.slots) for name in SHIPPED] == [3, 6, 3]


@pytest.mark.parametrize("name", [*SHIPPED, *FROM_FILES, "text"])
def test_every_task_offers_seeds_of_clearly_different_sizes(name: str) -> None:
    task = TASKS[name]
    assert len(task.blueprints) >= 5
    for slot in task.host.slots:
        sizes = sorted(sum(p.numel() for p in BLUEPRINTS[kind].template(slot).parameters()) for kind in task.blueprints)
        assert len(set(sizes)) == len(sizes)
        assert sizes[-1] > 4 * sizes[0]


@pytest.mark.parametrize("name", [*SHIPPED, "text"])
def test_slots_have_the_shapes_that_blocks_have(name: str) -> None:
    """Channels first, while a text's activations have them last."""
    host = TASKS[name].host
    network, order = host.template(), -1 if name == "text" else 1
    x = network.enter(TASKS[name].load().train.inputs[:2])
    for slot, block, bridge in zip(host.slots, network.blocks, network.bridges, strict=True):
        assert tuple(x.shape[1:])[::order] == slot.inputs
        h = block(x)
        assert tuple(h.shape[1:])[::order] == slot.outputs
        x = bridge(h)


@pytest.mark.parametrize(("registry", "kind"), [(TASKS, "task"), (BLUEPRINTS, "blueprint"), (HOSTS, "host")])
def test_an_unknown_name_is_answered_with_the_known_ones(registry: Registry[object], kind: str) -> None:
    known = ", ".join(sorted(registry))
    with pytest.raises(ValueError, match=f"^unknown {kind} 'nonesuch'; known: {re.escape(known)}$"):
        registry["nonesuch"]


def test_a_taken_name_is_refused_and_keeps_its_item() -> None:
    registry: Registry[int] = Registry("number")
    registry.register("one", 1)
    with pytest.raises(ValueError, match=r"^number 'one' is registered already$"):
        registry.register("one", 2)
    assert registry["one"] == 1
    assert list(registry) == ["one"]
    assert len(registry) == 1


def test_an_item_knows_its_name() -> None:
    registry: Registry[str] = Registry("word")
    item = registry.register("greeting", "hello")
    assert registry.name_of(item) == "greeting"
    with pytest.raises(ValueError, match=r"^word 'bye' is not registered$"):
        registry.name_of("bye")


def test_a_blueprint_of_another_family_is_refused() -> None:
    host = TASKS["digits_mlp"].host
    with pytest.raises(ValueError, match=r"\['dense', 'image'\] do not fit a host of family 'dense'"):
        Engine(host, (BLUEPRINTS["low_rank"], BLUEPRINTS["pointwise"]), SGD())


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_a_bad_gradient_limit_is_named(value: float) -> None:
    with pytest.raises(ValueError, match=f"max_grad_norm is {value}; allowed: None or a positive number"):
        build("digits_mlp", 1, max_grad_norm=value)


GOOD_MLP = {"inputs": 4, "widths": (3, 3), "classes": 2}
GOOD_CNN = {"image": (1, 8, 8), "channels": (4, 4), "classes": 2}
GOOD_TRANSFORMER = {"vocabulary": 5, "length": 4, "width": 6, "heads": 2, "hidden": 8, "depth": 2}
GOOD: dict[type[Host], dict[str, object]] = {
    MLPHost: GOOD_MLP,
    CNNHost: GOOD_CNN,
    TransformerHost: GOOD_TRANSFORMER,
}


@pytest.mark.parametrize(
    ("host", "field", "value"),
    [
        (MLPHost, "inputs", 0),
        (MLPHost, "inputs", 2.5),
        (MLPHost, "widths", ()),
        (MLPHost, "widths", (3, -1)),
        (MLPHost, "classes", 0),
        (CNNHost, "image", (0, 8, 8)),
        (CNNHost, "image", (8, 8)),
        (CNNHost, "image", (1, 3, 8)),  # two poolings need four pixels
        (CNNHost, "channels", ()),
        (CNNHost, "channels", (4, 3)),  # not a multiple of the norm's groups
        (CNNHost, "norm_groups", 0),
        (CNNHost, "pooled", (0, 2)),  # there is no third block
        (CNNHost, "pooled", (-1,)),
        (CNNHost, "patch", 0),
        (CNNHost, "patch", 3),  # does not divide the image
        *((TransformerHost, field, 0) for field in GOOD_TRANSFORMER),
        (TransformerHost, "width", 7),  # not a multiple of the heads
        (TransformerHost, "depth", 1.5),
    ],
)
def test_a_bad_host_argument_is_named(host: type[Host], field: str, value: object) -> None:
    good = GOOD[host]
    host(**good)
    with pytest.raises(ValueError, match=rf"^{host.__name__}\.{field} .*; allowed: "):
        host(**(good | {field: value}))


def test_a_new_task_is_one_registration() -> None:
    """Nothing else in the package is edited for it."""
    base = TASKS["digits_mlp"]
    host = MLPHost(inputs=64, widths=(8, 8), classes=10)
    task = Task(host, ("low_rank",), base.load, base.optimizer, batch_size=4, minibatches_per_step=1)
    registry: Registry[Task] = Registry("task")
    assert registry.register("tiny", task) is registry["tiny"]


def names_of_tasks(source: str) -> set[str]:
    """What a source says of tasks and their data; comments and docstrings may well say what the data are."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [part for part in body if not _is_note(part)] or [ast.Pass()]  # type: ignore[attr-defined]
    words = re.findall(r"\w*(?:digits|mnist|cifar)\w*", ast.unparse(tree), re.IGNORECASE)
    strings = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return {*words, *(value for value in strings if value in TASKS)}


def _is_note(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


@pytest.mark.ledger("V4", "Z16")
def test_no_code_names_a_task_outside_the_registry() -> None:
    """Task names may appear where tasks are defined, and where environment ids are bound to them."""
    files = [path for path in PACKAGE.rglob("*.py") if PACKAGE / "tasks" not in path.parents]
    assert len(files) > 15
    hits = {str(path.relative_to(PACKAGE)): names_of_tasks(path.read_text(encoding="utf-8")) for path in files}
    assert hits.pop("registration.py")
    assert not {name: found for name, found in hits.items() if found}


@pytest.mark.ledger("Z16")
def test_a_branch_on_the_name_of_a_task_is_found() -> None:
    assert names_of_tasks('def f(task):\n    """Of digits."""\n    return task == "text"') == {"text"}
    assert names_of_tasks('if "cifar" in task: batch = 512') == {"cifar"}
    assert not names_of_tasks('def f():\n    """The text task."""\n    return "texture", text')
