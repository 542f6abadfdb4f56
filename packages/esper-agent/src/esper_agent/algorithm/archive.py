"""The file of a checkpoint, read with suspicion: nothing in it is run, trusted or allocated before it was checked.

It is a zip archive by `torch.save`. What torch would load gladly can still be harmful: a pickle may build gigabytes, a
tensor may claim more elements than its storage has, and records are mapped without a look at their length or
compression.
"""

import pickle
import pickletools
import zipfile
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

FORMAT = "esper-agent checkpoint"
_REBUILD = ("torch._utils _rebuild_tensor_v2", "collections OrderedDict")  # with storages, all that our pickles name
_NAMING = ("GLOBAL", "STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4")


class CheckpointError(Exception):
    """A checkpoint that cannot be written or read."""


def load_document(path: Path) -> Any:
    """What `torch.save` wrote, with the tensors under `tensors` mapped from the file.

    Raises:
        CheckpointError: when the file is missing, damaged, foreign or hostile.
    """
    try:
        records = _check_archive(path)
        document = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        if isinstance(document, dict) and "tensors" in document:
            _check_tensors(document["tensors"], records)
        return document
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} does not exist") from error
    except pickle.UnpicklingError as error:
        raise CheckpointError(f"{path} holds code or foreign objects; nothing was loaded or run") from error
    except Exception as error:  # there is no end to what a damaged or foreign file can raise
        raise CheckpointError(f"{path} is damaged or not an {FORMAT}: {error!s:.200}") from error


def _check_archive(path: Path) -> Counter[tuple[int, int]]:
    """Refuse, before anything is loaded, what no checkpoint holds; size and checksum of each tensor's record."""
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ValueError("it is compressed")
        if sum(entry.file_size for entry in entries) > path.stat().st_size or len(set(archive.namelist())) < len(
            entries
        ):
            raise ValueError("its records overlap")
        data = [entry for entry in entries if entry.filename.split("/")[1:2] == ["data"]]
        for entry in entries:
            if entry not in data:
                content = archive.read(entry)  # compares checksums
                if entry.filename.endswith(".pkl"):
                    _check_pickle(content)
    return Counter((entry.file_size, entry.CRC) for entry in data if entry.file_size)


def _check_pickle(content: bytes) -> None:
    """Refuse a pickle that names anything but tensors: even what torch thinks harmless can fill the memory."""
    for operation, argument, _ in pickletools.genops(content):
        if operation.name in _NAMING and argument not in _REBUILD:
            module, _, name = str(argument).partition(" ")
            if operation.name != "GLOBAL" or module != "torch" or not name.endswith("Storage"):
                raise pickle.UnpicklingError(f"it names {argument}")


def _check_tensors(tensors: Any, records: Counter[tuple[int, int]]) -> None:
    """Refuse tensors that are larger than their storage, and storages that are not exactly the stored records."""
    if type(tensors) is not list or any(type(tensor) is not Tensor for tensor in tensors):
        raise ValueError("its tensors are none")
    storages = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if tensor.nbytes != storage.nbytes():
            raise ValueError(f"a tensor of {tensor.nbytes} bytes has a storage of {storage.nbytes()}")
        storages[storage.data_ptr()] = storage
    found = Counter((storage.nbytes(), _checksum(storage)) for storage in storages.values() if storage.nbytes())
    if found != records:
        raise ValueError("its tensors do not match their checksums")


def _checksum(storage: torch.UntypedStorage) -> int:
    content: Any = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    return zlib.crc32(content)
