"""Keep freed memory in the process: on the CPU, large activations are otherwise bound by page faults."""

from functools import cache

import torch

# glibc takes blocks up to this size from its heap at most, once one of that size has been freed.
_LARGEST_HEAP_BLOCK = 31 << 20


@cache
def retain_freed_memory() -> None:
    """Free one large block, once per process.

    The C library gives memory back to the system above twice the largest block freed so far, and takes it again page by
    page: up to a third of a training step of large images. Freeing a large block first raises that limit.
    """
    torch.empty(_LARGEST_HEAP_BLOCK, dtype=torch.uint8)
