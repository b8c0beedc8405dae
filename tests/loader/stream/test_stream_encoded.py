"""A stream that does not decode hands out the very clips, in one tensor, with the frames that are wanted of them."""

from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader

from reelweave.loader.batch import Microbatch
from reelweave.loader.dataset import Dataset, Sample, open_dataset
from reelweave.loader.read.decode import decode
from reelweave.loader.stream.video_stream import VideoStream
from tests.loader.stream_clips import config, write


def contents(micro: Microbatch) -> tuple[object, ...]:
    assert micro.media is not None
    clips = [micro.media[number].numpy().tobytes() for number in range(len(micro.media))]
    return (
        micro.step,
        micro.keys,
        micro.captions,
        micro.weight,
        clips,
        [frames.tolist() for frames in micro.media.frames],
    )


def test_the_clips_are_those_of_the_keys(dataset: Dataset) -> None:
    for micro in VideoStream(dataset, config(decode=False)):
        assert len(micro.media) == len(micro.keys)
        assert micro.video_BCTHW.numel() == 0
        assert micro.media.bytes_N.numel() == micro.media.offsets[-1]
        for number, key in enumerate(micro.keys):
            assert micro.media[number].numpy().tobytes() == dataset.read_media(dataset.row_numbers[key])


def test_decoding_them_gives_what_the_stream_decodes(dataset: Dataset) -> None:
    streams = [VideoStream(dataset, config(decode=decoded, epochs=1)) for decoded in (False, True)]
    for encoded, decoded in zip(*streams, strict=True):
        assert encoded.keys == decoded.keys
        video_BCTHW = np.empty(decoded.video_BCTHW.shape, np.uint8)
        for number, video_CTHW in enumerate(video_BCTHW):
            decode(encoded.media[number].numpy().tobytes(), encoded.media.frames[number], video_CTHW)
        assert (video_BCTHW == decoded.video_BCTHW.numpy()).all()


def test_packs_hold_encoded_clips_too(dataset: Dataset) -> None:
    for pack in VideoStream(dataset, config(decode=False, regime="pack", microbatches=2, epochs=1)):
        assert [video.numel() for video in pack.videos] == [0] * len(pack.keys)
        assert [len(frames_T) for frames_T in pack.media.frames] == [bucket.frames for bucket in pack.buckets]
        for number, key in enumerate(pack.keys):
            assert pack.media[number].numpy().tobytes() == dataset.read_media(dataset.row_numbers[key])


def test_worker_processes_hand_them_over_in_shared_memory(dataset: Dataset) -> None:
    stream = VideoStream(dataset, config(decode=False))
    seen = list(DataLoader(stream, batch_size=None, num_workers=2))
    assert all(micro.media.bytes_N.is_shared() for micro in seen)
    alone = VideoStream(dataset, config(decode=False))
    assert [contents(micro) for micro in seen] == [contents(micro) for micro in alone]


@pytest.mark.parametrize("processes", [0, 2])
def test_another_stands_in_for_a_damaged_one(samples: list[Sample], tmp_path: Path, processes: int) -> None:
    row = open_dataset(write(tmp_path, samples)).row(11)
    [clip] = [part for part in row["members"] if part["suffix"] == "mp4"]
    shard = tmp_path / row["shard"]
    content = bytearray(shard.read_bytes())
    content[clip["offset"] + clip["size"] // 2] ^= 1
    shard.write_bytes(content)
    streams = [
        VideoStream(open_dataset(tmp_path), config(decode=decode, epochs=1)) for decode in (False, True)
    ]
    encoded, decoded = (list(DataLoader(one, batch_size=None, num_workers=processes)) for one in streams)
    assert [bad.key for micro in encoded for bad in micro.bad] == [row["key"]]
    assert [micro.keys for micro in encoded] == [micro.keys for micro in decoded]
    for micro in encoded:
        for number, key in enumerate(micro.keys):
            assert key != row["key"]
            [whole] = [sample.clip for sample in samples if sample.row["key"] == key]
            assert micro.media[number].numpy().tobytes() == whole
