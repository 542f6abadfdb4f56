"""Devices: one that is not there is refused, and random generators cross from one kind to another."""

import warnings

import torch
from torch import Tensor

_GPU_STATE = 16  # bytes of a CUDA generator's state: its seed and its offset


def choose_device(name: str) -> torch.device:
    """The device of a name; "auto" is the GPU if there is one.

    Raises:
        ValueError: when torch does not know it or cannot reach it.
    """
    gpus = torch.cuda.device_count()
    try:
        device = torch.device(("cuda" if gpus else "cpu") if name == "auto" else name)
    except RuntimeError as error:
        raise ValueError(f"device is {name!r}; allowed: 'auto', 'cpu', 'cuda'") from error
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise ValueError(f"device is {name!r}, and torch sees {gpus} GPUs here; allowed: 'auto', 'cpu'")
    return device


def load_generator(generator: torch.Generator, saved: Tensor, key: int) -> None:
    """Take over a saved state; that of another kind of device says nothing here, and `key` seeds the generator instead.

    Raises:
        ValueError: when it is the state of no generator.
    """
    own = generator.get_state()
    if saved.dtype != torch.uint8 or saved.shape not in {own.shape, (_GPU_STATE,), torch.Generator().get_state().shape}:
        raise ValueError(f"the saved generator has {saved.numel()} values of {saved.dtype}; allowed: {len(own)} bytes")
    if saved.shape == own.shape:
        generator.set_state(saved.clone())
    else:
        generator.manual_seed(key)
        warnings.warn("the checkpoint is from another kind of device: actions are drawn anew from here", stacklevel=2)
