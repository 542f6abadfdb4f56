"""The ranks that train one policy together under torchrun; alone, every helper gives back what it was given.

torchrun --nproc-per-node 2 -m esper_agent train Esper-v0 --run-dir runs/first
"""

import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

PATIENCE = timedelta(minutes=30)  # for a rank that neither answers nor dies; a slow rollout is no failure


class LostRanksError(Exception):
    """The other ranks are gone, so this one cannot go on."""

    def __init__(self, rank: int, reason: object) -> None:
        text = f"rank {rank} lost the other ranks ({reason}); the run continues from its last checkpoint with --resume"
        super().__init__(text)


@dataclass(frozen=True)
class Ranks:
    """All processes of a job, seen from one of them.

    Everything that talks to the others has to be called by all ranks, in the same order.

    Attributes:
        rank: number of this process.
        size: how many there are.
    """

    rank: int = 0
    size: int = 1

    @property
    def several(self) -> bool:
        """Whether there is anyone to talk to."""
        return self.size > 1

    @property
    def leads(self) -> bool:
        """Whether this process logs and saves."""
        return self.rank == 0

    def share(self, n_envs: int) -> int:
        """How many of all environments each rank has.

        Raises:
            ValueError: when they cannot be dealt out evenly.
        """
        if n_envs % self.size:
            raise ValueError(f"n_envs is {n_envs}; allowed: a multiple of {self.size}, the number of ranks")
        return n_envs // self.size

    def uniform(self, shape: Sequence[int], generator: torch.Generator, device: torch.device) -> Tensor:
        """This rank's numbers out of those that one process with all environments, in the last dimension, would draw.

        So the generators of all ranks stay alike, and how many ranks there are does not change what is played.
        """
        *others, rows = shape
        numbers = torch.rand((*others, rows * self.size), generator=generator, device=device)
        return numbers[..., self.rank * rows : (self.rank + 1) * rows]

    def sum(self, *tensors: Tensor) -> list[Tensor]:
        """The sums over all ranks of tensors of one type, in one message."""
        return self._reduce(tensors, dist.ReduceOp.SUM)

    def largest(self, *tensors: Tensor) -> list[Tensor]:
        """The elementwise maxima over all ranks of tensors of one type, in one message."""
        return self._reduce(tensors, dist.ReduceOp.MAX)

    def _reduce(self, tensors: Sequence[Tensor], operation: Any) -> list[Tensor]:
        if not self.several:
            return list(tensors)
        flat = torch.cat([tensor.detach().flatten() for tensor in tensors])
        with self._talking():
            dist.all_reduce(flat, operation)
        parts = flat.split([tensor.numel() for tensor in tensors])
        return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]

    def join(self, rows: Tensor) -> Tensor:
        """The rows of all ranks, [n, ...], in their order; ranks may have different numbers of them."""
        if not self.several:
            return rows
        counts = self.gather(len(rows))
        padded = rows.new_zeros(max(counts), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in counts]
        with self._talking():
            dist.all_gather(parts, padded)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    def gather(self, value: Any) -> list[Any]:
        """What each rank has, for all of them; small plain data."""
        values = [value] * self.size
        if self.several:
            with self._talking():
                dist.all_gather_object(values, value)
        return values

    def gather_to_leader(self, value: Any) -> list[Any]:
        """What each rank has, for the leader; the others get nothing."""
        values = [value] * self.size if self.leads else []
        if self.several:
            with self._talking():
                dist.gather_object(value, values if self.leads else None)
        return values

    def copy_from_leader(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors with the leader's."""
        if self.several:
            with self._talking():
                for tensor in tensors:
                    dist.broadcast(tensor, 0)

    def wait(self) -> None:
        """Until all ranks are here."""
        if self.several:
            with self._talking():
                dist.barrier()

    @contextmanager
    def _talking(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            reason = str(error).strip() or type(error).__name__
            raise LostRanksError(self.rank, reason.splitlines()[0]) from error


ALONE = Ranks()


@contextmanager
def join_ranks() -> Iterator[Ranks]:
    """The ranks of this job if torchrun started it, else this process alone.

    On CUDA each rank takes the GPU of its local number: "cuda" is that one from then on, for agent and environment.
    When a rank fails, the first one to notice raises what it met; the others leave without a word.
    """
    if not dist.is_available() or not dist.is_torchelastic_launched():
        yield ALONE
        return
    gpus = torch.cuda.device_count()
    if gpus:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % gpus)
    store, rank, size = next(rendezvous("env://", timeout=PATIENCE))
    dist.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo", store=store, rank=rank, world_size=size)
    try:
        with _dying_aloud(rank):
            yield Ranks(rank, size)
    except (Exception, KeyboardInterrupt):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun ends the rest of a failed job: say why before
        if _is_first(store):
            raise
        raise SystemExit(1) from None
    dist.destroy_process_group()


@contextmanager
def _dying_aloud(rank: int) -> Iterator[None]:
    """Turn the SIGTERM by which torchrun ends the rest of a failed job into an error that says so."""

    def handle(_signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise LostRanksError(rank, "SIGTERM: one of them died, or the job was stopped")

    previous = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _is_first(store: Any) -> bool:
    """Whether no other rank has reported a failure before."""
    try:
        return int(store.add("failures", 1)) == 1
    except RuntimeError:  # the store died with the rank, or the launcher, that held it
        return True
