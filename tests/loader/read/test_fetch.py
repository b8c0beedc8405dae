"""Reads that follow the plan: every byte asked for, few requests, little waste."""

import threading

import numpy as np
import pytest

from reelweave.loader.errors import RunError
from reelweave.loader.read.fetch import MAX_RANGE_BYTES, ByteRange, Fetcher, coalesce_ranges

SHARDS = {name: np.random.default_rng(number).bytes(50_000) for number, name in enumerate("ab")}


def read(shard: str, offset: int, size: int) -> bytes:
    if shard not in SHARDS:
        raise FileNotFoundError(shard)
    return SHARDS[shard][offset : offset + size]


@pytest.mark.parametrize("seed", range(20))
def test_every_place_gets_its_bytes_with_little_waste(seed: int) -> None:
    generator = np.random.default_rng(seed)
    places = [
        ByteRange(
            "ab"[generator.integers(2)], int(generator.integers(49_000)), int(generator.integers(1, 900))
        )
        for _ in range(int(generator.integers(1, 80)))
    ]
    fetcher = Fetcher(read, 4)
    for place, fetched in zip(places, fetcher.fetch(places), strict=True):
        assert bytes(fetched.result()) == read(*place)
    fetcher.close()
    wanted = {(place.shard, at) for place in places for at in range(place.offset, place.offset + place.size)}
    assert len(wanted) <= sum(each.span.size for each in coalesce_ranges(places)) <= 1.05 * len(wanted)


def test_neighbours_are_read_together_and_large_ones_are_not() -> None:
    neighbours = [ByteRange("a", 1000 * number, 1000) for number in (3, 1, 0, 2)]
    assert [each.span for each in coalesce_ranges(neighbours)] == [ByteRange("a", 0, 4000)]
    near = [ByteRange("a", 0, 1000), ByteRange("a", 1040, 1000), ByteRange("a", 2500, 1000)]
    assert [each.wanted for each in coalesce_ranges(near)] == [(0, 1), (2,)]
    large = [ByteRange("a", number * MAX_RANGE_BYTES, MAX_RANGE_BYTES) for number in range(3)]
    assert len(coalesce_ranges(large)) == 3
    assert coalesce_ranges([]) == []


def test_requests_are_in_flight_together() -> None:
    barrier = threading.Barrier(3, timeout=240)

    def slow(shard: str, offset: int, size: int) -> bytes:
        barrier.wait()
        return read(shard, offset, size)

    fetcher = Fetcher(slow, 3)
    found = fetcher.fetch([ByteRange("a", 10_000 * number, 10) for number in range(3)])
    assert [bytes(each.result()) for each in found] == [read("a", 10_000 * number, 10) for number in range(3)]
    fetcher.close()


def test_more_requests_than_threads_keep_all_threads_busy() -> None:
    """Five requests of four threads: the first four are in flight together, not three groups of two."""
    barrier, begun = threading.Barrier(4, timeout=240), []

    def slow(shard: str, offset: int, size: int) -> bytes:
        begun.append(offset)
        if len(begun) <= 4:
            barrier.wait()
        return read(shard, offset, size)

    fetcher = Fetcher(slow, 4)
    found = fetcher.fetch([ByteRange("a", 10_000 * number, 10) for number in range(5)])
    assert [bytes(each.result()) for each in found] == [read("a", 10_000 * number, 10) for number in range(5)]
    fetcher.close()


def test_a_shard_that_ends_early_fails_only_what_lies_behind_its_end() -> None:
    fetcher = Fetcher(read, 1)
    first, second = fetcher.fetch([ByteRange("a", 49_900, 100), ByteRange("a", 50_000, 100)])
    assert bytes(first.result()) == read("a", 49_900, 100)
    with pytest.raises(EOFError):
        second.result()
    [missing] = fetcher.fetch([ByteRange("c", 0, 1)])
    with pytest.raises(FileNotFoundError):
        missing.result()
    fetcher.close()


def test_closing_forgets_what_has_not_begun() -> None:
    begun, waiting = [], threading.Event()

    def slow(shard: str, offset: int, size: int) -> bytes:
        begun.append(offset)
        if len(begun) == 1:
            waiting.wait(20)
        return b"x" * size

    fetcher = Fetcher(slow, 1)
    fetcher.fetch([ByteRange("a", 10_000 * number, 10) for number in range(50)])
    [last] = fetcher.fetch([ByteRange("b", 0, 10)])
    last.answers.add_done_callback(lambda _: waiting.set())
    fetcher.close()
    assert len(begun) <= 1


def test_requests_in_turn_each_have_their_own_end() -> None:
    """More requests than threads: one that fails takes none of those with it."""

    def some(shard: str, offset: int, size: int) -> bytes:
        if offset == 20_000:
            raise RunError("no")
        return read(shard, offset, size)

    fetcher = Fetcher(some, 1)
    found = fetcher.fetch([ByteRange("a", 10_000 * number, 10) for number in range(4)])
    for number in (0, 1, 3):
        assert bytes(found[number].result()) == read("a", 10_000 * number, 10)
    with pytest.raises(RunError, match="no"):
        found[2].result()
    fetcher.close()
