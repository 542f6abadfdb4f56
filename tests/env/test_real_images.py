"""Fashion-MNIST and CIFAR-10 as published, in disjoint splits; skipped where their files are missing."""

import json
from dataclasses import replace
from functools import partial
from io import BytesIO
from itertools import product
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from data_tools import crafted, installed
from engine_tools import Place, Stage, build, grow, logits, minibatches, validation
from env_tools import FILES, WAIT, everywhere, needs_files
from esper_env import EsperVectorEnv, Op
from esper_env.population.population import Blend
from esper_env.population.training import train_epoch
from esper_env.tasks import TASKS, Data
from esper_env.tasks.cifar10 import PIXELS, from_pictures, load_cifar10, read_batch
from esper_env.tasks.data import DATASETS, DataError, install
from esper_env.tasks.data.recipes import plain
from esper_env.tasks.digits import IMAGE_SEEDS
from esper_env.tasks.fashion_mnist import load_fashion_mnist
from esper_env.tasks.images import CLASSES, SMALL, Published, Sizes, split
from PIL import Image

IDS = {"fashion_mnist": "Esper-FashionMNIST-v0", "cifar10": "Esper-CIFAR10-v0"}
LOADS = {"fashion_mnist": load_fashion_mnist, "cifar10": load_cifar10}
# Of the training images, as publications state them; of every tenth image they hold to two digits.
MOMENTS = {"fashion_mnist": ([0.2860], [0.3530]), "cifar10": ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616])}
ROWS, SEED = 6, IMAGE_SEEDS.index("bottleneck")
present = pytest.mark.parametrize("name", [needs_files(name, name) for name in FILES])


def raw(name: str) -> np.ndarray:
    """Every tenth training image, straight from the bytes of the installed files."""
    folder = DATASETS[name].directory
    if name == "fashion_mnist":
        return np.fromfile(folder / "train-images-idx3-ubyte", np.uint8)[16:].reshape(-1, 1, 784)[::10]
    parts = [np.fromfile(folder / f"data_batch_{number}.bin", np.uint8) for number in range(1, 6)]
    return np.concatenate(parts).reshape(-1, 3073)[::10, 1:].reshape(-1, 3, 1024)


@present
def test_the_files_have_the_published_moments(name: str) -> None:
    images = raw(name) / 255.0
    np.testing.assert_allclose(images.mean(axis=(0, 2)), MOMENTS[name][0], atol=0.01)
    np.testing.assert_allclose(images.std(axis=(0, 2)), MOMENTS[name][1], atol=0.01)


@present
def test_neighbours_agree_on_labels_so_images_have_their_own(name: str) -> None:
    data: Data = TASKS[f"{name}_cnn"].load()
    splits = (data.train, data.val, data.test)
    assert [len(part) for part in splits] == [SMALL.train, SMALL.val, SMALL.test]
    assert all(part.labels.unique().tolist() == list(range(CLASSES)) for part in splits)
    for part, least in ((data.val, 256), (data.test, 256)):
        nearest = torch.cdist(part.inputs[:least].flatten(1), data.train.inputs.flatten(1)).argmin(dim=1)
        agreement = (data.train.labels[nearest] == part.labels[:least]).double().mean().item()
        assert agreement > {"fashion_mnist": 0.7, "cifar10": 0.2}[name]  # chance is 0.1


@present
def test_every_host_of_a_data_set_learns(name: str) -> None:
    for kind in ("cnn", "blunted", "minimal"):
        env = EsperVectorEnv(2, task=f"{name}_{kind}", learning_rate=(0.01, 0.01), live_units=(1, 1))
        env.reset(seed=0)
        before = env.simulation.state.loss.clone()
        for _ in range(3):
            env.step(everywhere(WAIT, 2))
        assert (env.simulation.state.loss < before).all()


@present
def test_every_seed_is_born_silent_and_learns_from_its_first_step(name: str) -> None:
    """Every blueprint under every blend in every slot, one row each."""
    task = f"{name}_cnn"
    cases = list(product(range(3), range(len(TASKS[task].blueprints)), Blend))
    population = build(task, len(cases), dtype=torch.float32)
    inputs, _ = validation(task, population, 20)
    before = logits(population, inputs)
    grow(population, [Place(row, *case, Stage.HOLDING) for row, case in enumerate(cases)])
    assert torch.equal(logits(population, inputs), before)
    report = train_epoch(population, minibatches(task, population, count=1))
    assert all(report.seed_grad_norm[row, slot] > 1e-4 for row, (slot, _, _) in enumerate(cases))


def committed_metric(place: str) -> np.ndarray:
    """Final metric of hosts with one lesioned block; a seed is planted, advanced, fossilised as soon as it may be."""
    env = gymnasium.make_vec("Esper-FashionMNIST-v0", ROWS, autoreset_mode="disabled", lesion_weights=(0, 1, 0))
    simulation = env.unwrapped.simulation
    _, infos = env.reset(seed=0)
    slot = simulation.instance.live_units.argmin(axis=1) + (place == "beside another block")
    for step in range(simulation.config.horizon):
        actions = everywhere(WAIT, ROWS) | {"slot": slot % 3, "blueprint": np.full(ROWS, SEED)}
        if step >= 2 and place != "nowhere":
            actions["op"] = np.array(
                [first_legal(infos["action_mask_by_op"], row, slot[row] % 3) for row in range(ROWS)]
            )
        *_, infos = env.step(actions)
    metric: np.ndarray = infos["committed_metric"]
    return metric


def first_legal(by_op: dict[str, np.ndarray], row: int, slot: int) -> int:
    legal = (op for op in (Op.FOSSILIZE, Op.ADVANCE, Op.GERMINATE) if by_op["op"][row, 0, op])
    return next((op for op in legal if by_op["slot"][row, op, slot]), Op.WAIT)


@pytest.mark.slow
@pytest.mark.skipif(
    bool(DATASETS["fashion_mnist"].missing()), reason="Fashion-MNIST is missing: tests/install_data.sh installs it"
)
def test_growing_pays_beside_the_lesioned_block() -> None:
    never, right, wrong = map(committed_metric, ("nowhere", "beside the lesioned block", "beside another block"))
    assert (right - never).mean() > 0.1
    assert (right - never).mean() > 2 * (wrong - never).mean()


@pytest.mark.parametrize("name", FILES)
def test_a_missing_data_set_is_told_in_one_line_with_its_command(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESPER_DATA", str(tmp_path))
    never_loaded = partial(LOADS[name], Sizes(1, 1, 1))
    task = f"{name}_absent"
    TASKS.register(task, replace(TASKS[f"{name}_cnn"], load=never_loaded))
    with pytest.raises(DataError) as raised:
        gymnasium.make(IDS[name], task=task)
    message = str(raised.value)
    assert "\n" not in message
    assert message.startswith(f"{name}: missing in {tmp_path / name}: ")
    assert f"run `esper-env data fetch {name}` or `esper-env data import {name} PATH`" in message


# Splitting, on crafted images


def numbered(first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Images that are all of one level, their number, which also gives their label."""
    number = np.arange(first, first + count, dtype=np.uint8)
    return np.broadcast_to(number[:, None, None, None], (count, 2, 4, 4)), number % CLASSES


def test_splits_are_disjoint_keep_their_labels_and_are_standardised_by_the_training_split() -> None:
    data = split(Published(*numbered(0, 150), *numbered(150, 100)), Sizes(train=90, val=40, test=60))
    parts = (data.train, data.val, data.test)
    inputs = data.train.inputs.double()
    assert inputs.mean(dim=(0, 2, 3)).abs().max() < 1e-5
    assert (inputs.std(dim=(0, 2, 3)) - 1).abs().max() < 1e-5
    levels = torch.cat([part.inputs[:, 0, 0, 0] for part in parts])
    numbers = ((levels - levels.min()) / levels.unique().diff().min()).round().long()  # up to where they begin
    labels = torch.cat([part.labels for part in parts])
    assert len(((labels - numbers) % CLASSES).unique()) == 1
    held = [set(part.tolist()) for part in numbers.split([90, 40, 60])]
    assert len(set.union(*held)) == 190
    assert max(held[0] | held[1]) < min(held[2])  # the test split comes from the images published for testing


def test_splits_are_the_same_every_time_and_larger_ones_are_possible() -> None:
    given = Published(*numbered(0, 150), *numbered(150, 100))
    one, two = (split(given, Sizes(90, 40, 60)) for _ in range(2))
    assert torch.equal(one.train.inputs, two.train.inputs)
    assert len(split(given, Sizes(110, 40, 100)).train) == 110


# The binary files of CIFAR-10, on crafted images


def binary(count: int, seed: int) -> bytes:
    table = np.random.default_rng(seed).integers(256, size=(count, 1 + PIXELS), dtype=np.uint8)
    table[:, 0] %= CLASSES
    return table.tobytes()


def test_binary_batches_are_planes_of_red_green_and_blue(tmp_path: Path) -> None:
    contents = binary(3, seed=0)
    (tmp_path / "batch.bin").write_bytes(contents)
    images, labels = read_batch(tmp_path / "batch.bin")
    for number in range(3):
        record = contents[number * 3073 : (number + 1) * 3073]
        assert labels[number] == record[0]
        for colour, row, column in ((0, 0, 0), (1, 3, 7), (2, 31, 30)):
            assert images[number, colour, row, column] == record[1 + colour * 1024 + row * 32 + column]


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", r"has 0 bytes; allowed: multiples of 3073"),
        (binary(2, 0)[:-1], r"has 6145 bytes; allowed: multiples of 3073"),
        (b"\x0a" + bytes(PIXELS), r"has the label 10; allowed: 0 to 9"),
    ],
)
def test_a_bad_binary_batch_is_refused_by_name(tmp_path: Path, contents: bytes, message: str) -> None:
    (tmp_path / "batch.bin").write_bytes(contents)
    with pytest.raises(DataError, match=rf"batch\.bin {message}"):
        read_batch(tmp_path / "batch.bin")


def pictures(folder: Path, batches: dict[str, bytes]) -> Path:
    """The batches as lossless pictures with one image per row, and two lists of labels."""
    folder.mkdir()
    labels: dict[str, list[int]] = {"train_lables.json": [], "test_lables.json": []}
    for name, contents in batches.items():
        table = np.frombuffer(contents, np.uint8).reshape(-1, 1 + PIXELS)
        pixels = np.ascontiguousarray(table[:, 1:].reshape(-1, 3, 1024).transpose(0, 2, 1))
        Image.fromarray(pixels).save(folder / name.replace(".bin", ".png"))
        labels["test_lables.json" if name.startswith("test") else "train_lables.json"] += table[:, 0].tolist()
    for name, numbers in labels.items():
        (folder / name).write_text(json.dumps(numbers), encoding="ascii")
    return folder


BATCHES = {f"data_batch_{k}.bin": binary(4, k) for k in (1, 2)} | {"test_batch.bin": binary(4, 9)}


def test_pictures_become_the_binary_files_byte_by_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPER_DATA", str(tmp_path / "data"))
    dataset = crafted(BATCHES, recipes=(plain, from_pictures))
    install(dataset, pictures(tmp_path / "package", BATCHES))
    assert installed(dataset) == BATCHES


def blank(width: int, height: int) -> bytes:
    """A picture in which every pixel is black: some kilobytes, however large."""
    stream = BytesIO()
    Image.new("1", (width, height)).save(stream, "PNG")
    return stream.getvalue()


PICTURES = {
    "no picture": b"no picture",
    "bomb": blank(14_000, 14_000),  # beyond what Pillow opens
    "large bomb": blank(10_000, 10_000),  # beyond what Pillow warns of
    "wide picture": blank(2048, 4),
    "high picture": blank(1024, 10_001),
}
LABELS = {
    "few labels": "[1, 2]",
    "no labels": '{"a": [',
    "nested labels": "[[1, 2], [3, 4]]",
    "deep labels": "[" * 100_000,
    "one label": "7",
    "many labels": json.dumps([1] * 500_000),
}


@pytest.mark.ledger("Y9")
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("fault", ["cut picture", *PICTURES, *LABELS])
def test_bad_pictures_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setenv("ESPER_DATA", str(tmp_path / "data"))
    folder = pictures(tmp_path / "package", BATCHES)
    picture, labels = folder / "test_batch.png", folder / "test_lables.json"
    message = {
        "cut picture": r"test_batch\.png cannot be read",
        "no picture": r"test_batch\.png cannot be read",
        "few labels": r"test_lables\.json has too few labels for test_batch; allowed: one for each of 4 images",
        "bomb": r"test_batch\.png cannot be read: Image size",
        "large bomb": r"test_batch\.png has 10000 x 10000 pixels; allowed: 1024 x up to 10000",
        "wide picture": r"test_batch\.png has 2048 x 4 pixels; allowed: 1024 x up to 10000",
        "high picture": r"test_batch\.png has 1024 x 10001 pixels; allowed: 1024 x up to 10000",
    }.get(fault, r"test_lables\.json is not a list of labels")
    if fault == "cut picture":
        picture.write_bytes(picture.read_bytes()[:-200])
    elif fault in PICTURES:
        picture.write_bytes(PICTURES[fault])
    else:
        labels.write_text(LABELS[fault], encoding="ascii")
    dataset = crafted(BATCHES, recipes=(plain, from_pictures))
    with pytest.raises(DataError, match=message):
        install(dataset, folder)
    assert "test_batch.bin" not in installed(dataset)
