"""Shared reading by the ranks of a model-parallel group.

Ranks of a model-parallel group need identical batches, so all of them would read the same samples. Instead each reads
and decodes its slice, and collectives complete the batches ("Training Video Foundation Models with NVIDIA NeMo",
section 3.2). Pixels are exchanged rather than encoded clips, because decoding costs more than reading.

A GPU exchanges the pixels alone. What describes them goes between the CPUs, one microbatch ahead and in a
thread. Lengths are thus known when a microbatch is requested, and nothing is read back from the GPU.
"""

import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import groupby
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from pydantic import TypeAdapter

from reelweave.loader.batch import BadSample
from reelweave.loader.errors import RunError, UsageError, first_line
from reelweave.loader.read.host_group import HostGroup, broken_exchange_in_words

T = TypeVar("T")


class LoadedSample(NamedTuple):
    """Sample that has been collated.

    Attributes:
        key: key of the sample.
        caption: caption of the sample.
        passed: number of earlier draws of the sample.
        size: bytes of its content.
        frames: numbers of its frames to use, if the content is an encoded clip.
        bad: unusable samples that it replaces.
        text: bytes of its caption's stored context.
        dataset: number of its dataset in a blend.
        lost: True if nothing usable was found; the content is black then.
        row: its row of the index.
    """

    key: str
    caption: str
    passed: int
    size: int
    frames: list[int]
    bad: list[BadSample]
    text: int = 0
    dataset: int = 0
    lost: bool = False
    row: int = -1


class DecodedSlice(NamedTuple, Generic[T]):
    """One rank's decoded slice of a microbatch; behind `Share.exchange`, the whole microbatch.

    Attributes:
        planned: planned microbatch.
        owners: rank in the group that decodes each sample of the microbatch.
        content: content of the rank's samples, uint8, concatenated.
        contexts: stored contexts of their captions, uint8, concatenated.
        loaded: collated samples of the rank.
    """

    planned: T
    owners: list[int]
    content: torch.Tensor
    contexts: torch.Tensor
    loaded: list[LoadedSample]


def divide(sizes: Sequence[int], totals: Sequence[int]) -> tuple[list[int], list[int]]:
    """Assign each sample of a microbatch to a rank: the rank with the least bytes fills up to the mean, then the next.

    No rank exceeds the mean by more than one sample, and each has one run of samples, sent in one message.

    Args:
        sizes: bytes of each sample.
        totals: bytes that each rank has read before.

    Returns:
        Rank of each sample, and the new totals.
    """
    after = list(totals)
    # A sample without bytes counts as one byte, so that some rank is always below the mean.
    counted = [max(1, size) for size in sizes]
    together = sum(totals) + sum(counted)
    neediest = iter(sorted(range(len(after)), key=after.__getitem__))
    owners, owner = [], next(neediest)
    for size in counted:
        while after[owner] * len(after) >= together:
            owner = next(neediest)
        after[owner] += size
        owners.append(owner)
    return owners, after


class Share:
    """Ranks of a model-parallel group, as one reader of one stream; creating it is a collective of the group.

    The thread that requests a microbatch exchanges its pixels, in plan order; all ranks must request equally often.
    Samples' names, sizes and failures are exchanged by a thread of this object, in a group of its own on the CPU. With
    each request it prepares the next one. So the requests of several streams are exchanged in their order, the same on
    all ranks.

    Args:
        group: process group of ranks that train on the same microbatches; None is all ranks.
        device: device on which pixels are exchanged and stay; None: this process's current GPU if the group uses
            NCCL, else the CPU.

    Attributes:
        rank: rank in the group.
        size: number of ranks in the group.
        device: device on which pixels are exchanged and stay.

    Raises:
        UsageError: no process group is initialized, or this rank is not in it.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, device: torch.device | None = None) -> None:
        if not dist.is_initialized():
            raise UsageError(
                "a share needs a process group: call torch.distributed.init_process_group before"
            )
        self._group = group
        self.rank = dist.get_rank(group)
        if self.rank < 0:
            raise UsageError("a share needs the group that this rank is in, and it is not in this one")
        self.size = dist.get_world_size(group)
        on_gpu = "cuda:nccl" in str(dist.get_backend_config(group))
        self.device = device or (
            torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
        )
        self._host = HostGroup(group, torch.device("cuda" if on_gpu else "cpu"))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="share")
        self._ident = self._thread.submit(threading.get_ident).result()

    def __getstate__(self) -> None:
        raise UsageError(NO_WORKERS)

    def agree(self, facts: dict[str, Any]) -> None:
        """Check that all ranks read the same stream.

        Args:
            facts: JSON values by name.

        Raises:
            UsageError: values differ between ranks; raised on all ranks.
            RunError: another rank has ended.
        """
        first, *rest = self._thread.submit(self._host.gather, facts).result()
        for rank, other in enumerate(rest, start=1):
            for name, value in first.items():
                if other[name] != value:
                    raise UsageError(
                        f"the ranks of a model-parallel group must read one stream, but {name} is {value} on its"
                        f" rank 0 and {other[name]} on its rank {rank}"
                    )

    def exchange(
        self, parts: Iterator[DecodedSlice[T]], pin_memory: bool
    ) -> Generator[DecodedSlice[T], None, None]:
        """Yield complete microbatches from the slices of all ranks.

        Args:
            parts: slices of this rank; the other ranks provide theirs of the same microbatches.
            pin_memory: True for page-locked memory of pixels on the CPU.

        Raises:
            RunError: some rank failed to make a slice, or has ended; raised on all ranks.
        """
        coming = self._thread.submit(self._next, parts)
        try:
            while (local := coming.result()) is not None:
                coming = self._thread.submit(self._next, parts)
                part, replies = local
                by_rank = [iter(loaded) for loaded in replies]
                loaded = [next(by_rank[owner]) for owner in part.owners]
                content, contexts = self._whole(part, loaded, pin_memory)
                yield part._replace(content=content, contexts=contexts, loaded=loaded)
        finally:
            # The other ranks exchange it, too; until then the slices are in use. The thread itself may come here, when
            # it collects garbage with a stream in it, and would wait for its own work.
            if threading.get_ident() != self._ident:
                wait([coming])

    def _next(
        self, parts: Iterator[DecodedSlice[T]]
    ) -> tuple[DecodedSlice[T], list[list[LoadedSample]]] | None:
        """Return the next slice, and the samples that each rank has loaded of the microbatch; None at the end."""
        part, failure = None, None
        try:
            part = next(parts, None)
        except Exception as error:  # noqa: BLE001 - raised below, when the others know
            failure = error
        loaded_json = None if part is None else _LOADED.dump_python(part.loaded, mode="json")
        try:
            replies = self._host.gather((None if failure is None else first_line(failure), loaded_json))
        except RunError as broken:
            raise (failure or broken) from None
        for rank, (reason, _) in enumerate(replies):
            if reason is None:
                continue
            if failure is not None and not isinstance(failure, RunError):
                raise failure
            raise RunError(f"rank {rank} of the model-parallel group cannot go on: {reason}") from failure
        if part is None:
            return None
        return part, [_LOADED.validate_python(loaded) for _, loaded in replies]

    def _whole(
        self, part: DecodedSlice[T], loaded: Sequence[LoadedSample], pin_memory: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return content and contexts of all samples; each owner broadcasts its run of samples, contexts behind."""
        # Consecutive samples of one owner travel together.
        runs = [
            (owner, [part for _, part in run])
            for owner, run in groupby(zip(part.owners, loaded, strict=True), key=itemgetter(0))
        ]
        sizes = [
            (owner, sum(sample.size for sample in run), sum(one.text for one in run)) for owner, run in runs
        ]
        # All pieces are views of one buffer, so that nothing is copied when they have come.
        joint = self._empty(sum(size + text for _, size, text in sizes), pin_memory)
        pieces = torch.split(joint, [size + text for _, size, text in sizes])
        works = []
        # All broadcasts are started, then waited for; an own piece is filled first.
        with broken_exchange_in_words():
            for (owner, size, _), piece in zip(sizes, pieces, strict=True):
                if not len(piece):
                    continue
                if owner == self.rank:
                    piece[:size].copy_(part.content, non_blocking=True)
                    piece[size:].copy_(part.contexts, non_blocking=True)
                works.append(dist.broadcast(piece, group=self._group, group_src=owner, async_op=True))
            for work in works:
                if work is not None:
                    work.wait()
        # With several owners contents and contexts lie by turns, and are brought apart if there are contexts.
        contents = [piece[:size] for (_, size, _), piece in zip(sizes, pieces, strict=True)]
        contexts = [piece[size:] for (_, size, _), piece in zip(sizes, pieces, strict=True)]
        if len(pieces) == 1:
            return contents[0], contexts[0]
        if not any(text for _, _, text in sizes):
            return joint, joint[:0]
        return self._join(contents, pin_memory), self._join(contexts, pin_memory)

    def _join(self, pieces: Sequence[torch.Tensor], pin_memory: bool) -> torch.Tensor:
        return torch.cat(list(pieces), out=self._empty(sum(map(len, pieces)), pin_memory))

    def _empty(self, size: int, pin_memory: bool) -> torch.Tensor:
        pinned = pin_memory and self.device.type == "cpu"
        return torch.empty(size, dtype=torch.uint8, device=self.device, pin_memory=pinned)


NO_WORKERS = (
    "a shared stream cannot run in the worker processes of a DataLoader, which have no part in the process group; use"
    " num_workers=0: the stream reads and decodes in threads of its own"
)

_LOADED = TypeAdapter(list[LoadedSample])
