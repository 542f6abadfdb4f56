"""Wall-clock timing that waits for the device, so that asynchronous work is counted where it happens."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def synchronize(device: torch.device) -> None:
    """Wait for all work queued on a device; the CPU has no queue."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


class Stopwatch:
    """Seconds by section, measured from a synchronised device to a synchronised device."""

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self.seconds: dict[str, float] = defaultdict(float)

    def now(self) -> float:
        """Seconds on a monotonic clock, after the device has finished its work."""
        synchronize(self.device)
        return time.perf_counter()

    @contextmanager
    def measure(self, section: str) -> Iterator[None]:
        """Add the time spent inside the block to a section."""
        start = self.now()
        try:
            yield
        finally:
            self.seconds[section] += self.now() - start
