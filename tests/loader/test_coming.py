"""What a stream says of the step behind its state, for all ranks, before anybody reads it."""

import pytest

from loader.batch import Coming, Microbatch, Pack
from loader.dataset import Dataset
from loader.stream import VideoStream
from tests.loader.stream_clips import config


def told(batch: Microbatch | Pack) -> Coming:
    """What should have been said of a batch of pixels."""
    count = len(batch.keys)
    if isinstance(batch, Pack):
        return Coming(batch.buckets, batch.lengths, (True,) * count, False)
    return Coming((batch.bucket,) * count, (batch.length,) * count, (True,) * count, False)


@pytest.mark.parametrize("way", [{"microbatches": 2}, {"regime": "pack"}])
def test_the_next_step_of_all_ranks_is_known(dataset: Dataset, way: dict[str, object]) -> None:
    streams = [VideoStream(dataset, config(**way), rank, 2) for rank in range(2)]
    foreseen: dict[int, list[Coming] | None] = {0: streams[0].coming()}
    readers = [iter(stream) for stream in streams]
    read: dict[int, list[Coming]] = {}
    epochs: dict[int, int] = {}
    for step in range(2 * streams[0].steps_per_epoch):
        for reader in readers:
            while True:
                batch = next(reader)
                assert batch.step == step
                read.setdefault(step, []).append(told(batch))
                if batch.ends_step:
                    break
        epochs[step] = batch.epoch
        said = [stream.coming() for stream in streams]
        assert said[0] == said[1]
        foreseen[step + 1] = said[0]
    assert {epochs[step] for step in read} == {0, 1}
    assert foreseen.pop(len(read)) is None
    assert foreseen == read


def test_asking_moves_nothing(dataset: Dataset) -> None:
    plain = [batch.keys for batch in VideoStream(dataset, config(epochs=1))]
    stream, found = VideoStream(dataset, config(epochs=1)), []
    for batch in stream:
        found.append(batch.keys)
        stream.coming()
    assert found == plain
