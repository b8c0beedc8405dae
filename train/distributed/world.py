"""Processes of a run: rank, size, device, and a few exact collectives."""

import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from reelweave.loader.base.processors import processors
from reelweave.loader.errors import RunError, UsageError, first_line
from reelweave.train.distributed.heartbeat import Heartbeat, lost_message
from reelweave.train.distributed.launcher import Launcher
from reelweave.train.distributed.rendezvous import meet


class RankError(RunError):
    """Failure of one rank, raised by all ranks that it has told of it.

    Attributes:
        rank: the failed rank, among all.
    """

    def __init__(self, message: str, rank: int) -> None:
        super().__init__(message)
        self.rank = rank


@dataclass(frozen=True)
class World:
    """Processes that train one model, or a subset of them.

    Attributes:
        rank: rank of this process, from 0.
        size: number of processes.
        device: compute device of this process.
        group: process group; None: all processes.
        store: store that is new to all processes of this start; None: a subset, one process alone, or a process group
            that was there before.
        timeout: time after which a collective that does not end is an error; None: PyTorch's.
    """

    rank: int
    size: int
    device: torch.device
    group: dist.ProcessGroup | None = None
    store: Store | None = field(default=None, compare=False, repr=False)
    timeout: timedelta | None = field(default=None, compare=False)

    def sum_(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace tensors of one dtype by their sums over all ranks, in one collective."""
        self._together(tensors, lambda flat: dist.all_reduce(flat, group=self.group))

    def sums(self, addends: Sequence[float]) -> list[float]:
        """Return the sums of numbers over all ranks, as float64, in one collective."""
        if self.size == 1:
            return [float(addend) for addend in addends]
        totals = self._send(torch.tensor(addends, dtype=torch.float64))
        self.sum_([totals])
        return totals.tolist()

    def largest(self, local: int) -> int:
        """Return the maximum of a number over all ranks."""
        if self.size == 1:
            return local
        maximum = self._send(torch.tensor(local))
        dist.all_reduce(maximum, dist.ReduceOp.MAX, group=self.group)
        return int(maximum)

    def broadcast_(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace tensors of one dtype by those of rank 0, in one collective."""
        self._together(tensors, lambda flat: dist.broadcast(flat, group=self.group, group_src=0))

    def gather(self, rows_nK: torch.Tensor) -> torch.Tensor:
        """Concatenate the rows of all ranks by rank; their numbers may differ."""
        if self.size == 1:
            return rows_nK
        counts = torch.zeros(self.size, dtype=torch.int64, device=self.device)
        counts[self.rank] = len(rows_nK)
        self.sum_([counts])
        sizes: list[int] = counts.tolist()
        padded = rows_nK.new_zeros((max(sizes), *rows_nK.shape[1:]))
        padded[: len(rows_nK)] = rows_nK
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(parts, padded, group=self.group)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    def global_rank(self, rank: int) -> int:
        """Return the number that one of these ranks has among all processes."""
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    def gather_text(self, text: str) -> list[str]:
        """Return every rank's text; no text may contain a zero byte."""
        if self.size == 1:
            return [text]
        own_n1 = torch.frombuffer(bytearray(text.encode() + b"\0"), dtype=torch.uint8).reshape(-1, 1)
        text_bytes = self.gather(self._send(own_n1)).cpu().numpy().tobytes()
        return text_bytes.decode().split("\0")[:-1]

    def barrier(self) -> None:
        """Block until every rank has called it."""
        self.sum_([torch.zeros(1, device=self.device)])

    def _send(self, host: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the host on the device, from page-locked memory: no copy waits for what runs there."""
        if self.device.type == "cpu":
            return host.to(self.device)
        return host.pin_memory().to(self.device, non_blocking=True)

    def _together(
        self, tensors: Sequence[torch.Tensor], collective: Callable[[torch.Tensor], object]
    ) -> None:
        if self.size == 1 or not tensors:
            return
        if len(tensors) == 1 and tensors[0].is_contiguous():
            collective(tensors[0].detach())
            return
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        collective(flat)
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.detach().copy_(part.view_as(tensor))


ALONE = World(0, 1, torch.device("cpu"))
"""A process by itself."""


@contextmanager
def join(
    device: Literal["auto", "cpu", "cuda"], lost_after_s: float = 60.0, collective_timeout_s: float = 1800.0
) -> Iterator[World]:
    """Enter the world of this process: torchrun's (RANK is set), or a world of one.

    An existing process group is used and left as it is. PyTorch's threads are no more than the processors that this
    process may use, its share of them where torchrun started several, unless OMP_NUM_THREADS says otherwise.

    Args:
        device: requested device.
        lost_after_s: heartbeat timeout after which a rank counts as lost.
        collective_timeout_s: time after which a collective that does not end is an error. A rank that is lost is
            noticed by its heartbeat; this is for ranks that live and never come.

    Raises:
        UsageError: a GPU is requested and there is none.
        RunError: another rank was lost; the message names it.

    A rank whose torchrun is killed gets SIGTERM (`reelweave.train.distributed.launcher`).
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("device=cuda, but torch finds no GPU here; use device=cpu or device=auto")
    if device == "cpu" or not torch.cuda.is_available():
        rank_device = torch.device("cpu")
    else:
        rank_device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(rank_device)
    if "OMP_NUM_THREADS" not in os.environ:
        # PyTorch counts the machine's processors: under a quota of one, 64 threads wait for each other.
        share = max(1, processors() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        torch.set_num_threads(min(torch.get_num_threads(), share))
    heartbeat, store, timeout = None, None, None
    started = "RANK" in os.environ and not dist.is_initialized()
    launcher = Launcher(lost_after_s) if started else None
    if started:
        # This module takes the group that exists when it is first imported as a default argument, and AdamW
        # imports it at its first step: the group would outlive its destruction, and its threads now and then
        # abort the process at exit.
        importlib.import_module("torch.distributed.nn.functional")
        store, rank, size = next(rendezvous("env://"))
        store = meet(store, rank, size)
        # NCCL and gloo, unless another one was registered for the device.
        backend, timeout = (
            dist.get_default_backend_for_device(rank_device),
            timedelta(seconds=collective_timeout_s),
        )
        # With its device NCCL makes every communicator where its group is made, by a split of this one, and none later.
        # Messages between two ranks then take their group's, in order: PyTorch warns of that, and groups allow for it.
        os.environ.setdefault("TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING", "false")
        dist.init_process_group(
            backend,
            store=store,
            rank=rank,
            world_size=size,
            timeout=timeout,
            device_id=rank_device if rank_device.type == "cuda" else None,
        )
        if launcher and (size > 1 or launcher.watched):
            heartbeat = Heartbeat(store, rank, size, lost_after_s, launcher)
    global_rank = dist.get_rank() if dist.is_initialized() else 0
    failed: int | None = global_rank
    try:
        size = dist.get_world_size() if dist.is_initialized() else 1
        yield World(global_rank, size, rank_device, store=store, timeout=timeout)
        failed = None
    except (RuntimeError, RunError) as error:
        causes = list(_causes(error))
        failed_ranks = [cause.rank for cause in causes if isinstance(cause, RankError)]
        if failed_ranks:
            failed = failed_ranks[0]
        elif heartbeat is not None and _may_be_broken(causes) and (who := heartbeat.describe_lost()):
            raise RunError(lost_message(who, first_line(error))) from error
        raise
    finally:
        if heartbeat is not None:
            heartbeat.end(failed)
        # After an error NCCL would wait for ranks that may never come; the process ends and torchrun sees it.
        if started and (failed is None or rank_device.type != "cuda"):
            dist.destroy_process_group()
        if launcher is not None:
            launcher.end()


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes: the loader and the sampler say in words what a broken collective ended."""
    while error is not None:
        yield error
        error = error.__cause__


def _may_be_broken(causes: Sequence[BaseException]) -> bool:
    """Return whether another rank may have broken a collective; Gloo raises bare RuntimeErrors."""
    bare = any(isinstance(cause, RuntimeError) for cause in causes)
    return bare and not any(isinstance(cause, torch.OutOfMemoryError) for cause in causes)
