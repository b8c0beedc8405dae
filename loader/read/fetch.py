"""Range reads of planned samples: adjacent samples in one request, and many requests in flight."""

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

MAX_RANGE_BYTES = 16 * 2**20
_WASTE = 0.05


class ByteRange(NamedTuple):
    """Byte range in a shard, by the shard's number."""

    shard: int
    offset: int
    size: int


@dataclass(frozen=True)
class RangeRequest:
    """Request for one byte range.

    Attributes:
        span: byte range to read.
        wanted: numbers of the requested ranges inside it.
    """

    span: ByteRange
    wanted: tuple[int, ...]


def coalesce_ranges(
    ranges: Sequence[ByteRange], waste: float = _WASTE, max_bytes: int = MAX_RANGE_BYTES
) -> list[RangeRequest]:
    """Coalesce byte ranges into requests: adjacent ranges are read together, small gaps included.

    Args:
        ranges: byte ranges in any order; duplicates are allowed.
        waste: maximum ratio of gap bytes to requested bytes in every request.
        max_bytes: maximum bytes of a request for more than one range.
    """
    requests: list[RangeRequest] = []
    open_place, indices, used = None, [], 0
    for index in sorted(range(len(ranges)), key=lambda each: ranges[each]):
        byte_range = ranges[index]
        if open_place is not None and byte_range.shard == open_place.shard:
            end = max(open_place.offset + open_place.size, byte_range.offset + byte_range.size)
            size, fresh = (
                end - open_place.offset,
                end - max(byte_range.offset, open_place.offset + open_place.size),
            )
            together = used + max(0, fresh)
            if size <= max_bytes and size - together <= waste * together:
                open_place, used = open_place._replace(size=size), together
                indices.append(index)
                continue
        if open_place is not None:
            requests.append(RangeRequest(open_place, tuple(indices)))
        open_place, indices, used = byte_range, [index], byte_range.size
    return requests if open_place is None else [*requests, RangeRequest(open_place, tuple(indices))]


Answer = bytes | Exception
"""Bytes of a request, or why it failed."""


class Fetched(NamedTuple):
    """Future bytes of one range.

    Attributes:
        answers: answers to requests that one thread makes in turn.
        position: position among them of the request that reads the range, perhaps with others.
        asked: byte range of the request.
        start: offset of the range in the request's bytes.
        size: size of the range in bytes.
    """

    answers: Future[list[Answer]]
    position: int
    asked: ByteRange
    start: int
    size: int

    def result(self) -> memoryview:
        """Wait for the bytes and return them.

        Raises:
            FileNotFoundError: the shard does not exist.
            RunError: the shard could not be read.
            EOFError: the shard ends before the range.
        """
        answer = self.answers.result()[self.position]
        if isinstance(answer, Exception):
            raise answer
        part = memoryview(answer)[self.start : self.start + self.size]
        if len(part) < self.size:
            raise EOFError
        return part


class Fetcher:
    """Reader of byte ranges in its own threads.

    A thread makes several requests in turn where there are more than threads: handing over each one costs more than
    a read from this machine.

    Args:
        read: ``read(shard, offset, size)`` returns these bytes, fewer at the end of the shard.
        threads: maximum number of requests in flight.
        together: True to coalesce adjacent ranges.
    """

    def __init__(self, read: Callable[[int, int, int], bytes], threads: int, together: bool = True) -> None:
        self._read, self._threads, self._closed = read, threads, False
        self._most = MAX_RANGE_BYTES if together else 0
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="fetch")

    def fetch(self, ranges: Sequence[ByteRange]) -> list[Fetched]:
        """Start reading; return the future bytes in the order of the ranges."""
        fetched: dict[int, Fetched] = {}
        requests = coalesce_ranges(ranges, max_bytes=self._most)
        # Dealt out in turn, so that as many are in flight as there are threads.
        for first in range(min(self._threads, len(requests))):
            group = requests[first :: self._threads]
            answers = self._pool.submit(self._answer, [request.span for request in group])
            for at, request in enumerate(group):
                for index in request.wanted:
                    start = ranges[index].offset - request.span.offset
                    fetched[index] = Fetched(answers, at, request.span, start, ranges[index].size)
        return [fetched[index] for index in range(len(ranges))]

    def _answer(self, spans: Sequence[ByteRange]) -> list[Answer]:
        answers: list[Answer] = []
        for span in spans:
            if self._closed:
                raise CancelledError
            try:
                answers.append(self._read(*span))
            except Exception as error:  # noqa: BLE001 - raised where the bytes are wanted
                answers.append(error)
        return answers

    def close(self) -> None:
        """Wait for requests in flight and cancel the others."""
        self._closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)
