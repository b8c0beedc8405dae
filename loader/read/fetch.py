"""Reads that follow the plan: exactly the planned samples, neighbours in one request, many in flight."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

MAX_RANGE_BYTES = 16 * 2**20
_WASTE = 0.05


class ByteRange(NamedTuple):
    """Bytes in a shard, which goes by its number."""

    shard: int
    offset: int
    size: int


@dataclass(frozen=True)
class RangeRequest:
    """One request.

    Attributes:
        span: what is read.
        wanted: numbers of the places it holds.
    """

    span: ByteRange
    wanted: tuple[int, ...]


def coalesced(
    places: Sequence[ByteRange], waste: float = _WASTE, most: int = MAX_RANGE_BYTES
) -> list[RangeRequest]:
    """Requests that hold all places: neighbours are read together, with the gap between them where it is small.

    Args:
        places: in any order; one may come twice.
        waste: bytes of gaps over bytes wanted, at most, in every request.
        most: bytes of a request that holds more than one place.
    """
    found: list[RangeRequest] = []
    open_place, wanted, used = None, [], 0
    for number in sorted(range(len(places)), key=lambda each: places[each]):
        place = places[number]
        if open_place is not None and place.shard == open_place.shard:
            end = max(open_place.offset + open_place.size, place.offset + place.size)
            size, fresh = (
                end - open_place.offset,
                end - max(place.offset, open_place.offset + open_place.size),
            )
            together = used + max(0, fresh)
            if size <= most and size - together <= waste * together:
                open_place, used = open_place._replace(size=size), together
                wanted.append(number)
                continue
        if open_place is not None:
            found.append(RangeRequest(open_place, tuple(wanted)))
        open_place, wanted, used = place, [number], place.size
    return found if open_place is None else [*found, RangeRequest(open_place, tuple(wanted))]


class Fetched(NamedTuple):
    """The bytes of one place, once they are there.

    Attributes:
        request: that brings them, perhaps with others.
        asked: what it reads.
        start: where they begin in what it brings.
        size: of them.
    """

    request: Future[bytes]
    asked: ByteRange
    start: int
    size: int

    def result(self) -> memoryview:
        """The bytes.

        Raises:
            FileNotFoundError: there is no such shard.
            RunError: it could not be read.
            EOFError: the shard ends before them.
        """
        part = memoryview(self.request.result())[self.start : self.start + self.size]
        if len(part) < self.size:
            raise EOFError
        return part


class Fetcher:
    """Reads places in threads of its own.

    Args:
        read: ``read(shard, offset, size)`` gives these bytes, fewer where the shard ends.
        threads: requests in flight.
        together: whether one request may read neighbours.
    """

    def __init__(self, read: Callable[[int, int, int], bytes], threads: int, together: bool = True) -> None:
        self._read = read
        self._most = MAX_RANGE_BYTES if together else 0
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="fetch")

    def fetch(self, places: Sequence[ByteRange]) -> list[Fetched]:
        """Begins to read; in the order of the places."""
        found: dict[int, Fetched] = {}
        for request in coalesced(places, most=self._most):
            future = self._pool.submit(self._read, *request.span)
            for number in request.wanted:
                start = places[number].offset - request.span.offset
                found[number] = Fetched(future, request.span, start, places[number].size)
        return [found[number] for number in range(len(places))]

    def close(self) -> None:
        """Waits for what is in flight and forgets the rest."""
        self._pool.shutdown(wait=True, cancel_futures=True)
