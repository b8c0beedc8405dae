"""Count of the bytes that this process sends to other ranks, by group and kind of operation.

PyTorch's own communication operators get a counting kernel before the device's while a count is open. Every operation
passes through them, on gloo and NCCL alike: from Python, from compiled graphs, from DTensor and FSDP, and from any
thread. Other operators are untouched: a count costs about 0.1 ms of processor time a collective, and nothing otherwise.

Convention, for P ranks:

- point to point and all-to-all: all elements for other ranks;
- all-gather: this rank's part, to each of the P - 1 others;
- reduce-scatter: all parts but this rank's own;
- all-reduce: a reduce-scatter and an all-gather around a ring of nearly equal chunks. This is 2 (P - 1) / P of the
  tensor, or within one element of it where P does not divide the tensor;
- broadcast and reduce: a chain, in which every rank but the last sends the whole tensor once;
- gather: this rank's part, except at the root; scatter: at the root, all parts but its own.

Backends may choose other algorithms, which send as much in total (trees) or use the switch (NVLink SHARP). Headers,
rendezvous and barriers are not counted.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist

Kind = Literal[
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "scatter",
    "send",
]


class Sent(NamedTuple):
    """Operations of one kind within one group.

    Attributes:
        calls: number of operations, including those that send nothing.
        bytes: bytes that this rank sent.
    """

    calls: int = 0
    bytes: int = 0


@dataclass
class SentBytes:
    """Bytes that this rank has sent since `count_sent_bytes`.

    Attributes:
        by_group: operations by name of the process group (``ProcessGroup.group_name``) and kind.
    """

    by_group: dict[tuple[str, Kind], Sent] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock, repr=False)

    @property
    def total(self) -> int:
        """Bytes of all groups and kinds."""
        return sum(sent.bytes for sent in self.by_group.values())

    def within(self, group: dist.ProcessGroup) -> dict[Kind, Sent]:
        """Return the operations of one group by kind."""
        return {kind: sent for (name, kind), sent in self.by_group.items() if name == group.group_name}

    def by_kind(self) -> dict[Kind, int]:
        """Return the bytes of all groups by kind."""
        totals: dict[Kind, int] = {}
        for (_, kind), sent in self.by_group.items():
            totals[kind] = totals.get(kind, 0) + sent.bytes
        return totals

    def add(self, group: str, kind: Kind, num_bytes: int) -> None:
        with self._lock:
            calls, sent = self.by_group.get((group, kind), Sent())
            self.by_group[group, kind] = Sent(calls + 1, sent + num_bytes)


@contextmanager
def count_sent_bytes() -> Iterator[SentBytes]:
    """Count the bytes that this process sends, in all its groups and threads, until the end of the block."""
    sent = SentBytes()
    # PyTorch's own context for kernels that are registered for a while. Every call passes this dispatch key, in any
    # thread and mode, and only the creation of tensors has kernels there.
    with torch.library._scoped_library("c10d", "IMPL", "BackendSelect") as library:
        for operator, (kind, count) in _OPERATORS.items():
            library.impl(operator, _counting(operator, kind, count, sent))
        yield sent


def _counting(operator: str, kind: Kind, count: "_Count", sent: SentBytes) -> Callable[..., object]:
    """Return a kernel that counts and calls the device's own."""
    overload: Any = getattr(torch.ops.c10d, operator).default

    def run(*arguments: Any) -> object:
        group = next(
            dist.ProcessGroup.unbox(argument)
            for argument in arguments
            if isinstance(argument, torch.ScriptObject)
        )
        sent.add(group.group_name, kind, count(arguments, group.rank(), group.size()))
        # Unlike a kernel of `torch.library.get_kernel`, this call releases the interpreter's lock, for which threads of
        # gloo may wait with a lock of their own.
        return overload._op_dk(_key(arguments), *arguments)

    return run


def _key(arguments: Sequence[Any]) -> torch._C.DispatchKey:
    """Return the dispatch key of the device that the tensors are on."""
    tensor = next(iter(_tensors(arguments)))
    return torch._C._dispatch_key_parse(torch._C._dispatch_key_for_device(tensor.device.type))


def _tensors(arguments: object) -> Iterator[torch.Tensor]:
    if isinstance(arguments, torch.Tensor):
        yield arguments
    elif isinstance(arguments, list | tuple):
        for argument in arguments:
            yield from _tensors(argument)


_Count = Callable[[Sequence[Any], int, int], int]
"""Function from an operator's arguments, rank and number of ranks to bytes."""


def _all_reduce(arguments: Sequence[Any], rank: int, size: int) -> int:
    def one(tensor: torch.Tensor) -> int:
        elements = tensor.numel()
        # Rank r owns chunk r: it passes on all others while summing, then all but that of the next rank.
        local_chunk, following = (_chunk(elements, chunk % size, size) for chunk in (rank, rank + 1))
        return (2 * elements - local_chunk - following) * tensor.element_size()

    return sum(map(one, arguments[0]))


def _chunk(elements: int, rank: int, size: int) -> int:
    return elements // size + (rank < elements % size)


def _to_others(index: int) -> _Count:
    """Return a count of the bytes of argument ``index``, sent once to every peer."""
    return lambda arguments, _rank, size: (size - 1) * sum(x.nbytes for x in _flat(arguments[index]))


def _all_but_own(index: int) -> _Count:
    """Return the count of lists with a tensor for each rank, but for this rank's own."""

    def count(arguments: Sequence[Any], rank: int, _size: int) -> int:
        lists = arguments[index] if isinstance(arguments[index][0], list) else [arguments[index]]
        return sum(sum(x.nbytes for x in parts) - parts[rank].nbytes for parts in lists)

    return count


def _own_share_stays(index: int) -> _Count:
    """Return the count of tensors with equal shares for each rank, but for this rank's own."""
    return lambda arguments, _rank, size: sum(x.nbytes // size * (size - 1) for x in _flat(arguments[index]))


def _all_to_all_rows(arguments: Sequence[Any], rank: int, size: int) -> int:
    rows, splits = arguments[1], arguments[4]
    local_rows = splits[rank] if splits else len(rows) // size
    return int((len(rows) - local_rows) * rows[:1].nbytes)


def _broadcast(arguments: Sequence[Any], rank: int, size: int) -> int:
    last = (rank + 1) % size == arguments[2]
    return 0 if last else sum(x.nbytes for x in arguments[0])


def _reduce(arguments: Sequence[Any], rank: int, _size: int) -> int:
    return 0 if rank == arguments[3] else sum(x.nbytes for x in arguments[0])


def _gather(arguments: Sequence[Any], rank: int, _size: int) -> int:
    return 0 if rank == arguments[3] else sum(x.nbytes for x in _flat(arguments[1]))


def _scatter(arguments: Sequence[Any], rank: int, size: int) -> int:
    return _all_but_own(1)(arguments, rank, size) if rank == arguments[3] else 0


def _flat(tensors: torch.Tensor | Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


_OPERATORS: Mapping[str, tuple[Kind, _Count]] = {
    "allreduce_": ("all_reduce", _all_reduce),
    "allreduce_coalesced_": ("all_reduce", _all_reduce),
    "allgather_": ("all_gather", _to_others(1)),
    "allgather_coalesced_": ("all_gather", _to_others(1)),
    "_allgather_base_": ("all_gather", _to_others(1)),
    "allgather_into_tensor_coalesced_": ("all_gather", _to_others(1)),
    "reduce_scatter_": ("reduce_scatter", _all_but_own(1)),
    "_reduce_scatter_base_": ("reduce_scatter", _own_share_stays(1)),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", _own_share_stays(1)),
    "alltoall_": ("all_to_all", _all_but_own(1)),
    "alltoall_base_": ("all_to_all", _all_to_all_rows),
    "broadcast_": ("broadcast", _broadcast),
    "reduce_": ("reduce", _reduce),
    "gather_": ("gather", _gather),
    "scatter_": ("scatter", _scatter),
    "send": ("send", lambda arguments, _rank, _size: sum(x.nbytes for x in arguments[0])),
}
