"""Fashion-MNIST: grey pictures of clothes, 28x28, as IDX files."""

from esper_env.tasks.augmentation import Augmentation
from esper_env.tasks.base import Data, kept
from esper_env.tasks.data import DATASETS, DataFile, Dataset
from esper_env.tasks.data.idx import read_idx
from esper_env.tasks.images import Published, Sizes, register_tasks, split

PLACE = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"
FILES = {
    "train-images-idx3-ubyte": (47_040_016, "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),
    "train-labels-idx1-ubyte": (60_008, "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
    "t10k-images-idx3-ubyte": (7_840_016, "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
    "t10k-labels-idx1-ubyte": (10_008, "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
}

FASHION_MNIST = DATASETS.register(
    "fashion_mnist",
    Dataset(
        name="fashion_mnist",
        summary="Fashion-MNIST: 70,000 grey images of clothes, 28x28; MIT licence",
        files=tuple(DataFile(name, size, sha256) for name, (size, sha256) in FILES.items()),
        importable="a directory with the IDX files, plain or gzipped, such as /usr/share/datasets/fashion-mnist of "
        "Debian's package dataset-fashion-mnist",
        urls=tuple(f"{PLACE}/{name}.gz" for name in FILES),
    ),
)


@kept
def load_fashion_mnist(sizes: Sizes) -> Data:
    """Splits of these sizes."""
    folder = FASHION_MNIST.require()
    train, train_labels, test, test_labels = (read_idx(folder / name) for name in FILES)
    return split(Published(train[:, None], train_labels, test[:, None], test_labels), sizes)


register_tasks("fashion_mnist", (1, 28, 28), load_fashion_mnist, Augmentation(shift=1), minibatches=8, published=60_000)
