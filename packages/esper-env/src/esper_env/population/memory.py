"""Keep freed memory in the process: on the CPU, large activations are otherwise bound by page faults."""

import ctypes
import os
import platform
from functools import cache

# Of glibc's malloc.h: what is set, and to how many bytes. It accepts no more than 32 MiB for the second.
_KEPT = {-1: 1 << 30, -3: 32 << 20}  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
_OWN_SETTING = "MALLOC_TRIM_THRESHOLD_"


@cache
def retain_freed_memory() -> bool:
    """Let glibc keep up to 1 GiB of freed memory, once per process; whether it was told so.

    By default it gives memory back to the system above a small limit and takes it again page by page: up to half of
    a training step of large images. Who sets glibc's own variable MALLOC_TRIM_THRESHOLD_ decides instead.
    """
    if platform.libc_ver()[0] != "glibc" or _OWN_SETTING in os.environ:
        return False
    process = ctypes.CDLL(None)
    told = [process.mallopt(option, size) for option, size in _KEPT.items()]
    return told == [1] * len(_KEPT)
