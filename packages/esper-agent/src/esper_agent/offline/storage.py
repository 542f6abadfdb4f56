"""Minari's storage: where a dataset lives, and how a new one gets its name only when it is complete."""

import importlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from esper_agent.runs.directory import RunError

FORMAT = "hdf5"  # Minari's arrow form cannot read back infos that are plain numbers
DATA_FILE = "main_data.hdf5"
OWN_METADATA = "esper"
PARTS = ("observations", "actions", "rewards", "terminations", "truncations", "infos")


def minari(module: str = "minari") -> Any:
    """A module of Minari.

    Raises:
        RunError: when it is not installed; names the extra that brings it.
    """
    try:
        importlib.import_module("minari.dataset._storages.hdf5_storage")
        return importlib.import_module(module)
    except ImportError as error:
        raise RunError('datasets need Minari: pip install "esper-agent[offline]"') from error


def dataset_path(dataset_id: str) -> Path:
    """Where Minari looks for a dataset: under MINARI_DATASETS_PATH, or ~/.minari/datasets.

    Raises:
        RunError: for a name that Minari does not take.
    """
    try:
        minari("minari.dataset.minari_dataset").parse_dataset_id(dataset_id)
    except (ValueError, TypeError) as error:
        allowed = "Minari's form, such as esper/plateau-v0 (letters, digits, - and _, ending in -v and a number)"
        raise RunError(f"dataset is {dataset_id!r}; allowed: a name of {allowed}") from error
    path: Path = minari("minari.storage.datasets_root_dir").get_dataset_path(dataset_id)
    return path


class DatasetWriter:
    """Appends episodes to a storage in Minari's layout.

    Minari's own `update_episodes` makes every array a chunked, extendable one, which takes five times as long and three
    times the space: episodes that are complete never grow.

    Args:
        storage: Minari's, new.
    """

    def __init__(self, storage: Any) -> None:
        self.storage, self.episodes, self.steps = storage, 0, 0
        self.h5py = importlib.import_module("h5py")
        self.file = self.h5py.File(Path(storage.data_path) / DATA_FILE, "a", track_order=True)
        self.types: dict[np.dtype[Any], Any] = {}
        self.layout = self.h5py.h5p.create(self.h5py.h5p.DATASET_CREATE)
        self.layout.set_layout(self.h5py.h5d.CONTIGUOUS)

    def add(self, episode: Any, metadata: Mapping[str, Any]) -> None:
        """Append one of Minari's EpisodeBuffers, with what is to be known about it."""
        group = self.file.create_group(f"episode_{self.episodes}")
        steps = len(episode.rewards)
        group.attrs.update({"id": self.episodes, "seed": episode.seed, "total_steps": steps, **metadata})
        self._add_tree(group.id, {name: getattr(episode, name) for name in PARTS})
        self.episodes, self.steps = self.episodes + 1, self.steps + steps

    def _add_tree(self, group: Any, tree: Mapping[str, Any]) -> None:
        for name, part in tree.items():
            if isinstance(part, Mapping):
                self._add_tree(self.h5py.h5g.create(group, name.encode()), part)
            else:
                self._add_array(group, name, np.ascontiguousarray(part))

    def _add_array(self, group: Any, name: str, array: np.ndarray[Any, Any]) -> None:
        if array.dtype not in self.types:
            self.types[array.dtype] = self.h5py.h5t.py_create(array.dtype, logical=True)
        shape = self.h5py.h5s.create_simple(array.shape)
        made = self.h5py.h5d.create(group, name.encode(), self.types[array.dtype], shape, self.layout)
        made.write(self.h5py.h5s.ALL, self.h5py.h5s.ALL, array)

    def close(self, metadata: Mapping[str, Any]) -> None:
        """Complete the dataset with what is to be known about it."""
        self.file.close()
        size = self.storage.get_size()
        counts = {"total_episodes": self.episodes, "total_steps": self.steps, "dataset_size": size}
        self.storage.update_metadata({**counts, **metadata})


@contextmanager
def new_dataset(dataset_id: str, **spaces: Any) -> Iterator[DatasetWriter]:
    """An empty dataset that gets its name at the end, unless something is raised before.

    Raises:
        RunError: when the dataset is there already, or cannot be written.
    """
    path = dataset_path(dataset_id)
    if path.exists():
        raise RunError(f"the dataset {dataset_id} is there already, in {path}; choose another name or version")
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        _make_namespace(dataset_id)
        (partial / "data").mkdir(parents=True)
        storage = minari("minari.dataset.minari_storage").MinariStorage
        writer = DatasetWriter(storage.new(partial / "data", data_format=FORMAT, **spaces))
        yield writer
        partial.rename(path)
    except OSError as error:
        raise RunError(f"cannot write the dataset {dataset_id} to {path}: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _make_namespace(dataset_id: str) -> None:
    """Tell Minari of the folder that a dataset's name begins with."""
    names = minari("minari.namespace")
    namespace, _, _ = minari("minari.dataset.minari_dataset").parse_dataset_id(dataset_id)
    if namespace is not None and namespace not in names.list_local_namespaces():
        names.create_namespace(namespace)
