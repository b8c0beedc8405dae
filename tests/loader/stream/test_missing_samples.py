"""Damaged samples that no other of their bucket can replace: the run goes on without them, and says so."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from reelweave.loader.batch import Batch, Microbatch, Pack
from reelweave.loader.dataset import Dataset, Sample, open_dataset
from reelweave.loader.errors import RunError
from reelweave.loader.read.decode import decode
from reelweave.loader.stream.video_stream import VideoStream
from tests.loader.stream_clips import BUCKETS, EVERY_KEY, config, make_sample, write

NO_CLIP = b"not a video\n" * 400
TOLERANT = {"max_bad": 1000, "max_bad_share": 1.0}
WIDE = BUCKETS.model_copy(update={"sizes": (*BUCKETS.sizes, (32, 128)), "max_crop": 0.3})


@pytest.fixture
def lonely(samples: list[Sample], tmp_path: Path) -> Dataset:
    """A dataset with one damaged sample that is alone in its bucket."""
    return open_dataset(write(tmp_path, [*samples, make_sample("wide", NO_CLIP, 12, (128, 32))]))


def counted(batches: Sequence[Batch]) -> list[str]:
    return sorted(key for batch in batches if batch.weight for key in batch.keys)


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("regime", ["step", "slot", "pack"])
def test_a_bad_sample_alone_in_its_bucket_leaves_a_filler(
    lonely: Dataset, regime: str, world_size: int
) -> None:
    settings = config(buckets=WIDE, regime=regime, microbatches=2, **TOLERANT)
    ranks = [list(VideoStream(lonely, settings, rank, world_size)) for rank in range(world_size)]
    batches = [batch for rank in ranks for batch in rank]
    for epoch in (0, 1):
        own = [batch for batch in batches if batch.epoch == epoch]
        assert counted(own) == EVERY_KEY
        assert [one.key for batch in own for one in batch.bad] == ["wide"]
    for step in {batch.step for batch in batches}:
        own = [batch for batch in batches if batch.step == step]
        assert sum(batch.weight + batch.missing for batch in own) == pytest.approx(1)
    assert {sum(batch.ends_step for batch in rank) for rank in ranks} == {ranks[0][-1].step + 1}
    for batch in batches:
        if not batch.weight and isinstance(batch, Microbatch) and batch.bad:
            assert batch.video_BCTHW.shape == (1, 3, 9, 32, 128)
            assert not batch.video_BCTHW.any()
            assert batch.missing == pytest.approx(1 / batch.step_samples)


def test_a_pack_goes_on_without_it(lonely: Dataset) -> None:
    settings = config(buckets=WIDE, regime="pack", epochs=1, **TOLERANT)
    [pack] = [batch for batch in VideoStream(lonely, settings) if batch.bad]
    assert isinstance(pack, Pack)
    assert len(pack.keys) == len(pack.videos) == len(pack.lengths) == len(pack.buckets) > 0
    assert "wide" not in pack.keys
    assert pack.weight == pytest.approx(len(pack.keys) / pack.step_samples)


def test_a_resumed_run_passes_it_too(lonely: Dataset) -> None:
    settings = config(buckets=WIDE, epochs=1, **TOLERANT)
    whole = [batch.keys for batch in VideoStream(lonely, settings)]
    for stop in range(len(whole)):
        stream = VideoStream(lonely, settings)
        iterator = iter(stream)
        for _ in range(stop):
            next(iterator)
        iterator.close()
        resumed = VideoStream(lonely, settings)
        resumed.load_state_dict(stream.state_dict())
        assert [batch.keys for batch in resumed] == whole[stop:]
    loaded = DataLoader(VideoStream(lonely, settings), batch_size=None, num_workers=2)
    assert [batch.keys for batch in loaded] == whole


def test_a_bucket_of_nothing_but_bad_samples_leaves_fillers(samples: list[Sample], tmp_path: Path) -> None:
    wide = [make_sample(f"wide{number:02}", NO_CLIP, 12, (128, 32)) for number in range(20)]
    dataset = open_dataset(write(tmp_path, [*samples, *wide]))
    for regime in ("step", "pack"):
        settings = config(buckets=WIDE, regime=regime, epochs=1, **TOLERANT)
        batches = list(VideoStream(dataset, settings))
        assert counted(batches) == EVERY_KEY
        bad = {one.key for batch in batches for one in batch.bad}
        assert bad == {f"wide{number:02}" for number in range(20)}


@pytest.mark.parametrize("decode_clips", [True, False])
def test_a_dataset_of_nothing_but_bad_samples_goes_on(tmp_path: Path, decode_clips: bool) -> None:
    none = [make_sample(f"key{number}", NO_CLIP, 12, (80, 64)) for number in range(3)]
    dataset = open_dataset(write(tmp_path, none))
    for shard in tmp_path.glob("shards/*.tar"):
        shard.write_bytes(bytes(shard.stat().st_size))
    batches = list(VideoStream(dataset, config(epochs=30, decode=decode_clips, max_bad=3, max_bad_share=0.0)))
    assert len(batches) == 30
    assert all(batch.weight == 0 and batch.missing == 1 for batch in batches)
    with pytest.raises(RunError, match=r"more than stream.max_bad=2 .*reelweave verify"):
        list(VideoStream(dataset, config(epochs=30, decode=decode_clips, max_bad=2, max_bad_share=0.0)))


@pytest.mark.parametrize(("frames", "size"), [(1, (64, 80)), (9, (33, 51))])
def test_a_filler_of_a_stream_that_does_not_decode_is_a_clip(
    tmp_path: Path, frames: int, size: tuple[int, int]
) -> None:
    dataset = open_dataset(write(tmp_path, [make_sample("one", NO_CLIP, frames, size[::-1])]))
    for shard in tmp_path.glob("shards/*.tar"):
        shard.write_bytes(bytes(shard.stat().st_size))
    shapes = BUCKETS.model_copy(update={"frames": (frames,), "sizes": (size,)})
    [batch] = list(VideoStream(dataset, config(buckets=shapes, epochs=1, decode=False)))
    assert batch.media is not None
    pixels = np.full((3, frames, *size), 99, np.uint8)
    decode(batch.media[0].numpy().tobytes(), batch.media.frames[0], pixels)
    assert pixels.max() <= 2
    assert isinstance(batch, Microbatch)
    assert batch.video_BCTHW.dtype == torch.uint8


def test_one_bad_sample_is_one_however_often_it_comes(samples: list[Sample], tmp_path: Path) -> None:
    swapped = [
        make_sample("key05", NO_CLIP, 7, (80, 64)) if one.row["key"] == "key05" else one for one in samples
    ]
    dataset = open_dataset(write(tmp_path, swapped))
    batches = list(VideoStream(dataset, config(epochs=12, max_bad=1, max_bad_share=0.0)))
    assert sum(bool(batch.bad) for batch in batches) >= 12
