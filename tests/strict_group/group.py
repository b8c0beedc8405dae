"""A process group that is gloo's where NCCL would do the same, and an error elsewhere."""

import itertools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from tests.strict_group.call import Call, Pending
from tests.strict_group.lane import Lane, Message
from tests.strict_group.ledger import Ledger
from tests.strict_group.refused import Refused, call_site, of_objects, step_runs
from tests.strict_group.tensors import check

_PATIENCE_S = 300.0
_ORDER = "order"


class StrictGroup(dist.ProcessGroup):
    """A group of this rank.

    Args:
        store: part of the store for this group.
        rank: this rank, in the group.
        members: all of its ranks, among all.
        timeout: of gloo.
        ledger: what all ranks have issued.
        name: name of the group, the same on all of its ranks.
    """

    _ledger_of_run: Ledger | None = None

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        members: Sequence[int],
        timeout: timedelta,
        ledger: Ledger,
        name: str,
    ) -> None:
        super().__init__(rank, len(members))
        self._members, self._ledger, self._name, self._description = tuple(members), ledger, name, ""
        self._gloo = _gloo_group(store, rank, len(members), timeout, name)
        self._lane = Lane(ledger, name)
        self._issued: list[Call] = []
        self._batch: list[Message] | None = None
        self._number = itertools.count()
        self._used: set[int | None] = set()

    @classmethod
    def create(cls, options: Any, _: object) -> "StrictGroup":
        """Make a group for torch."""
        members, size = options.global_ranks_in_group or range(options.group_size), options.group_size
        if not options.global_ranks_in_group:
            cls._ledger_of_run = Ledger(options.store, options.group_rank, _PATIENCE_S)
        ledger = cls._ledger_of_run
        assert ledger
        if size > 1 and step_runs():
            raise Refused(
                f"rank {ledger.rank}: a new group of ranks {', '.join(map(str, members))} in a training step, at"
                f" {call_site()}: NCCL makes its communicator there, while all ranks wait"
            )
        return cls(options.store, options.group_rank, members, options.timeout, ledger, str(options.group_id))

    # What torch asks of a group.

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def group_desc(self) -> str:
        return self._description

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    def getBackendName(self) -> str:
        return "strict"

    def name(self) -> str:
        return "strict"

    def _get_backend(self, device: torch.device) -> Any:
        return SimpleNamespace(
            supports_coalescing=True,
            supports_splitting=False,
            options=self._gloo._get_backend(torch.device("cpu")).options,
            name=self.name,
        )

    def shutdown(self) -> None:
        """Say that this rank leaves; refuse what is still under way or was not waited for."""
        peers = [rank for rank in self._members if rank != self._ledger.rank]
        with suppress(RuntimeError):  # the store ends with the first rank
            for way in ("send", "recv"):
                self._ledger.end(f"{self._name}:{way}", peers)
            if len(self._members) == dist.get_world_size():
                self._ledger.end(_ORDER, peers)
        self._lane.close()
        if sys.exc_info()[0] is not None:
            return  # another error ends this rank
        for call in self._issued:
            call.done.result()
            if call.outputs:
                raise Refused(f"{call.where}: nobody waited for its result")

    abort = shutdown

    # Collectives.

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Pending:
        return self._all("all_reduce", tensors, tensors, lambda a, _: self._gloo.allreduce(a, opts), opts)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Pending:
        one = dist.AllreduceOptions()
        one.reduceOp = opts.reduceOp
        return self._several([self.allreduce([x], one) for x in tensors])

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> Pending:
        sends = opts.rootRank == self.rank()
        inputs, outputs = (tensors, []) if sends else ([], tensors)
        return self._all("broadcast", inputs, outputs, lambda a, b: self._gloo.broadcast(a or b, opts), opts)

    def reduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Pending:
        outputs = tensors if opts.rootRank == self.rank() else []
        return self._all("reduce", tensors, outputs, lambda a, _: self._gloo.reduce(a, opts), opts)

    def allgather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> Pending:
        self._check_parts("all_gather", outputs[0], inputs[0])
        return self._all("all_gather", inputs, outputs[0], lambda a, b: self._gloo.allgather([b], a), opts)

    def all_gather_single(self, output: torch.Tensor, x: torch.Tensor, opts: Any = None) -> Pending:
        self._check_whole("all_gather_into_tensor", output, x)
        run = self._one(self._gloo, "all_gather_single", "_allgather_base")
        return self._all("all_gather_into_tensor", [x], [output], lambda a, b: run(b[0], a[0]), opts)

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Pending:
        pairs = zip(outputs, inputs, strict=True)
        return self._several([self.all_gather_single(output, x, opts) for output, x in pairs])

    def reduce_scatter(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None
    ) -> Pending:
        self._check_parts("reduce_scatter", inputs[0], outputs[0])

        def start(a: list[torch.Tensor], b: list[torch.Tensor]) -> Any:
            return self._gloo.reduce_scatter(b, [a], opts)

        return self._all("reduce_scatter", inputs[0], outputs, start, opts)

    def reduce_scatter_single(self, output: torch.Tensor, x: torch.Tensor, opts: Any = None) -> Pending:
        self._check_whole("reduce_scatter_tensor", x, output)
        run = self._one(self._gloo, "reduce_scatter_single", "_reduce_scatter_base")
        return self._all("reduce_scatter_tensor", [x], [output], lambda a, b: run(b[0], a[0], opts), opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Pending:
        pairs = zip(outputs, inputs, strict=True)
        return self._several([self.reduce_scatter_single(output, x, opts) for output, x in pairs])

    def all_to_all_single(
        self,
        output: torch.Tensor,
        x: torch.Tensor,
        received: list[int] | None,
        sent: list[int] | None,
        opts: Any = None,
    ) -> Pending:
        run = self._one(self._gloo, "all_to_all_single", "alltoall_base")
        splits = [self._elements(x, sent), self._elements(output, received)]

        def start(a: list[torch.Tensor], b: list[torch.Tensor]) -> Any:
            return run(b[0], a[0], received or [], sent or [])

        return self._all("all_to_all_single", [x], [output], start, opts, splits)

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Pending:
        splits = [[x.numel() for x in inputs], [x.numel() for x in outputs]]

        def start(a: list[torch.Tensor], b: list[torch.Tensor]) -> Any:
            return self._gloo.alltoall(b, a)

        return self._all("all_to_all", inputs, outputs, start, opts, splits)

    def gather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> Pending:
        def start(a: list[torch.Tensor], b: list[torch.Tensor]) -> Any:
            return self._gloo.gather([b] if outputs else [], a, opts)

        return self._all("gather", inputs, outputs[0] if outputs else [], start, opts)

    def scatter(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None
    ) -> Pending:
        def start(a: list[torch.Tensor], b: list[torch.Tensor]) -> Any:
            return self._gloo.scatter(b, [a] if inputs else [], opts)

        return self._all("scatter", inputs[0] if inputs else [], outputs, start, opts)

    def barrier(self, opts: Any = None) -> Pending:
        if not getattr(opts, "device_ids", None):
            raise Refused(
                f"{self._where('barrier')}: without device_ids NCCL guesses the GPU; sum a tensor of one"
            )
        x = torch.zeros(1, device="cpu")
        return self._all("barrier", [x], [x], lambda a, _: self._gloo.allreduce(a), None)

    # The names of torch before 2.15.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # Messages.

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int = 0) -> Pending:
        return self._message("send", tensors[0], peer, tag)

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int = 0) -> Pending:
        return self._message("recv", tensors[0], peer, tag)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> Pending:
        raise Refused(f"{self._where('recv')}: NCCL receives from a rank that is named")

    def _start_coalescing(self, device: torch.device) -> None:
        self._batch = []

    def _end_coalescing(self, device: torch.device) -> Pending:
        batch, self._batch = self._batch or [], None
        if batch:
            self._lane.run_messages(batch)
        return Pending(self._finish, [message.call for message in batch])

    def _message(self, way: str, x: torch.Tensor, peer: int, tag: int) -> Pending:
        other = self._members[peer]
        where = self._where(f"{way} of {_words([x])} {'to' if way == 'send' else 'from'} rank {other}")
        self._check(where, [other])
        check([x], where)
        call = Call(where, *(([x], []) if way == "send" else ([], [x])))
        self._issued.append(call)

        def start() -> dist.Work:
            work: dist.Work = (
                self._gloo.send(call.sent, peer, tag)
                if way == "send"
                else self._gloo.recv(call.received, peer, tag)
            )
            return work

        message = Message(way, other, call, start)
        if self._batch is None:
            self._lane.run_messages([message])
        else:
            self._batch.append(message)
        return Pending(self._finish, [call])

    # What all calls share.

    def _all(
        self,
        name: str,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        start: Callable[[list[torch.Tensor], list[torch.Tensor]], Any],
        opts: Any,
        splits: Sequence[Sequence[int]] | None = None,
    ) -> Pending:
        """Issue a call of all ranks of the group."""
        tensors = list(inputs) or list(outputs)
        where = self._where(f"{name} of {_words(tensors)}")
        peers = [rank for rank in self._members if rank != self._ledger.rank]
        self._check(where, peers if splits else [None])
        check([*inputs, *outputs], where)
        entry = {
            "group": self._name,
            "number": next(self._number),
            "call": name,
            "dtype": str(tensors[0].dtype),
            "size": None if splits else tensors[0].numel(),
            "root": getattr(opts, "rootRank", None),
            "reduces": _reduction(opts),
            "where": where,
            "splits": splits,
        }
        keys = self._ledger.write(_ORDER, peers, json.dumps(entry))
        call = Call(where, inputs, outputs)
        self._issued.append(call)
        self._lane.run_collective(call, entry, keys, lambda: start(call.sent, call.received), self._compare)
        return Pending(self._finish, [call])

    def _compare(self, call: Call, own: Mapping[str, Any], peer: int, other: Mapping[str, Any]) -> None:
        """Refuse a call of another rank that is not this one."""
        same = ("group", "number", "call", "dtype", "size", "root", "reduces")
        differs = [name for name in same if own[name] != other[name]]
        if not differs and own["splits"]:
            index, theirs = self._members.index(peer), self._members.index(self._ledger.rank)
            sends = own["splits"][0][index] != other["splits"][1][theirs]
            differs = ["splits"] if sends or own["splits"][1][index] != other["splits"][0][theirs] else []
        if differs:
            raise Refused(f"{call.where}, but {other['where']}: {', '.join(differs)} differ")

    def _check(self, where: str, connections: Sequence[int | None]) -> None:
        """Refuse what a training step must not do: objects, and what NCCL connects at its first use.

        Args:
            where: the call.
            connections: ranks that it sends to or receives from; None stands for the rings of sums and gathers.
        """
        if step_runs():
            if objects := of_objects():
                raise Refused(
                    f"{where}: {objects} in a training step pickles on the host, and waits for the GPU"
                )
            if len(self._members) > 1 and not self._used.issuperset(connections):
                raise Refused(
                    f"{where}: the first one, in a training step: NCCL connects there, while all ranks wait"
                )
        self._used.update(connections)

    def _finish(self, calls: Sequence[Call]) -> None:
        """Finish calls, and all before them: a communicator is one stream."""
        last = max((index for index, call in enumerate(self._issued) if call in calls), default=-1)
        finished, self._issued = self._issued[: last + 1], self._issued[last + 1 :]
        for call in finished:
            call.finish()

    def _several(self, works: Sequence[Pending]) -> Pending:
        return works[-1]

    def _where(self, what: str) -> str:
        ranks = ", ".join(map(str, self._members))
        return f"rank {self._ledger.rank} in group {self._name} (ranks {ranks}): {what} at {call_site()}"

    def _check_parts(self, name: str, parts: Sequence[torch.Tensor], part: torch.Tensor) -> None:
        if any(x.numel() != part.numel() for x in parts):
            sizes = ", ".join(str(x.numel()) for x in parts)
            raise Refused(f"{self._where(name)}: parts of {sizes} elements, and one of {part.numel()}")

    def _check_whole(self, name: str, whole: torch.Tensor, part: torch.Tensor) -> None:
        if whole.numel() != part.numel() * self.size():
            raise Refused(
                f"{self._where(name)}: {whole.numel()} elements are not {self.size()} times {part.numel()}"
            )

    def _elements(self, x: torch.Tensor, splits: Sequence[int] | None) -> list[int]:
        """Return the number of elements for each rank of an all-to-all."""
        rows = len(x)
        if not splits:
            return [x.numel() // self.size()] * self.size()
        return [split * (x.numel() // rows if rows else 0) for split in splits]

    @staticmethod
    def _one(backend: Any, *names: str) -> Any:
        """Return the first function that this version of torch has."""
        return next(getattr(backend, name) for name in names if hasattr(backend, name))


def _gloo_group(store: dist.Store, rank: int, size: int, timeout: timedelta, name: str) -> Any:
    """Return a group of torch's around gloo, through whose operators `count_sent_bytes` sees what is sent."""
    group: Any = dist.ProcessGroup(store, rank, size)
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    gloo = c10d.ProcessGroupGloo(store, rank, size, timeout)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
    group._set_group_name(name)
    return group


def _words(tensors: Sequence[torch.Tensor]) -> str:
    return f"{' + '.join(str(x.numel()) for x in tensors[:3])} {str(tensors[0].dtype).removeprefix('torch.')}"


def _reduction(opts: Any) -> str | None:
    """Return the name of a reduction; None for calls without one."""
    names = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
    reduces = getattr(opts, "reduceOp", None)
    return None if reduces is None else next(n for n in names if reduces == getattr(dist.ReduceOp, n))
