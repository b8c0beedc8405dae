"""What a stream says of the step behind its state, for all ranks, before anybody reads it."""

from collections.abc import Iterator

import pytest

from reelweave.loader.batch import Microbatch, Pack, UpcomingMicrobatch
from reelweave.loader.dataset import Dataset
from reelweave.loader.stream.video_stream import VideoStream
from tests.loader.stream_clips import config


def told(batch: Microbatch | Pack) -> UpcomingMicrobatch:
    """What should have been said of a batch of pixels."""
    count = len(batch.keys)
    if isinstance(batch, Pack):
        return UpcomingMicrobatch(batch.buckets, batch.lengths, (True,) * count, False)
    return UpcomingMicrobatch((batch.bucket,) * count, (batch.length,) * count, (True,) * count, False)


def step_of(reader: Iterator[Microbatch | Pack]) -> list[UpcomingMicrobatch]:
    """What a rank reads in its next step; nothing behind the last one."""
    read = []
    for batch in reader:
        read.append(told(batch))
        if batch.ends_step:
            break
    return read


@pytest.mark.parametrize("way", [{}, {"microbatches": 4, "epochs": 5}, {"regime": "pack"}])
def test_the_next_step_of_all_ranks_is_known(dataset: Dataset, way: dict[str, object]) -> None:
    streams = [VideoStream(dataset, config(**way), rank, 2) for rank in range(2)]
    coming, steps = [stream.upcoming() for stream in streams], 0
    readers = [iter(stream) for stream in streams]
    while read := [batch for reader in readers for batch in step_of(reader)]:
        assert coming == [read, read]
        coming, steps = [stream.upcoming() for stream in streams], steps + 1
    assert coming == [None, None]
    assert steps > streams[0].steps_per_epoch


def test_asking_moves_nothing(dataset: Dataset) -> None:
    plain = [batch.keys for batch in VideoStream(dataset, config(epochs=1))]
    stream, found = VideoStream(dataset, config(epochs=1)), []
    for batch in stream:
        found.append(batch.keys)
        stream.upcoming()
    assert found == plain
