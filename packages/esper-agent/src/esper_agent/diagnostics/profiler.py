"""A torch profiler for any device, writing TensorBoard traces where it is told."""

import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

Availability = Callable[[], bool]

# Which activity records a device's kernels, and how to know that the device is there.
DEVICE_ACTIVITIES: dict[str, tuple[ProfilerActivity, Availability]] = {
    "cpu": (ProfilerActivity.CPU, lambda: True),
    "cuda": (ProfilerActivity.CUDA, lambda: torch.cuda.is_available()),
    "xpu": (ProfilerActivity.XPU, lambda: torch.xpu.is_available()),
    "mtia": (ProfilerActivity.MTIA, lambda: torch.mtia.is_available()),
}


def activities(device: str) -> list[ProfilerActivity]:
    """What to record for a device; falls back to the CPU with a warning when it cannot be recorded."""
    kind = torch.device(device).type
    activity, available = DEVICE_ACTIVITIES.get(kind, (ProfilerActivity.CPU, lambda: False))
    if not available():
        warnings.warn(f"the profiler cannot record {kind!r} here; it records the CPU only", stacklevel=2)
        return [ProfilerActivity.CPU]
    return list(dict.fromkeys([ProfilerActivity.CPU, activity]))


def trace(directory: Path, device: str, *, wait: int, warmup: int, active: int) -> profile:
    """A profiler context; call its `step()` after each update.

    Args:
        directory: where the traces go.
        device: the learner's device.
        wait: updates to skip.
        warmup: updates to run under the profiler without recording.
        active: updates to record.
    """
    return profile(
        activities=activities(device),
        schedule=schedule(wait=wait, warmup=warmup, active=active, repeat=1),
        on_trace_ready=tensorboard_trace_handler(str(directory), use_gzip=True),  # a tenth of the size
    )
