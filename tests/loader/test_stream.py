"""The stream against a real dataset: exact coverage, order, and failures that name what is wrong."""

import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from loader.buckets import Bucket
from loader.dataset import Dataset, Sample, open_dataset
from loader.errors import RunError, UsageError
from loader.plan import plan_epoch, start_frame
from loader.policy import Division
from loader.storage import open_storage
from loader.stream import Microbatch, VideoStream
from tests.loader.stream_clips import BUCKETS, SAMPLES, SHAPELESS, config, digest, keys, make_sample, write
from tests.media import read_number


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_every_sample_counts_once_per_epoch_over_all_ranks(dataset: Dataset, world_size: int) -> None:
    streams = [VideoStream(dataset, config(), rank, world_size) for rank in range(world_size)]
    ranks = [list(stream) for stream in streams]
    for epoch in (0, 1):
        parts = [[micro for micro in rank if micro.epoch == epoch] for rank in ranks]
        assert {len(part) for part in parts} == {streams[0].steps_per_epoch}
        counted = [key for part in parts for micro in part if micro.weight for key in micro.keys]
        assert sorted(counted) == [f"key{number:02}" for number in range(SAMPLES)]
    for step in zip(*ranks, strict=True):
        assert len({(micro.epoch, micro.position, micro.step_samples) for micro in step}) == 1
        assert sum(micro.weight for micro in step) == pytest.approx(1)
        assert sum(len(micro.keys) for micro in step if micro.weight) == step[0].step_samples
    without = streams[0].assignment.unassigned.named(dataset.index.column("key"))
    assert list(without) == [(SHAPELESS, "4 frames, the smallest bucket has 5")]


@pytest.mark.parametrize("world_size", [1, 2])
def test_several_microbatches_make_a_step(dataset: Dataset, world_size: int) -> None:
    settings = config(microbatches=2, epochs=1)
    streams = [VideoStream(dataset, settings, rank, world_size) for rank in range(world_size)]
    found = [micro for stream in streams for micro in stream]
    counted = sorted(key for micro in found if micro.weight for key in micro.keys)
    assert counted == [f"key{number:02}" for number in range(SAMPLES)]
    for position in range(streams[0].steps_per_epoch):
        step = [micro for micro in found if micro.position == position]
        assert sum(micro.weight for micro in step) == pytest.approx(1)
        assert sum(micro.ends_step for micro in step) == world_size
    plain = list(VideoStream(dataset, settings, 0, world_size))
    loaded = list(DataLoader(VideoStream(dataset, settings, 0, world_size), batch_size=None, num_workers=2))
    assert [digest(micro) for micro in loaded] == [digest(micro) for micro in plain]


def test_pixels_and_captions_belong_to_the_keys(dataset: Dataset, samples: list[Sample]) -> None:
    by_key = {sample.row["key"]: sample.row for sample in samples}
    shapes = set()
    for micro in VideoStream(dataset, config()):
        bucket = micro.bucket
        shapes.add(bucket)
        assert micro.video_BCTHW.dtype == torch.uint8
        assert micro.video_BCTHW.shape == (len(micro.keys), 3, bucket.frames, bucket.height, bucket.width)
        assert micro.captions == tuple(f"the caption of {key}" for key in micro.keys)
        for key, video_CTHW in zip(micro.keys, micro.video_BCTHW.numpy(), strict=True):
            start = start_frame(3, micro.epoch, key, by_key[key]["frames"], bucket.frames)
            numbers = [read_number(picture) for picture in video_CTHW.transpose(1, 2, 3, 0)]
            assert numbers == list(range(start, start + bucket.frames))
    assert shapes == {Bucket(frames, *size) for frames in (5, 9) for size in BUCKETS.sizes}


def test_epochs_differ_and_seeds_differ_and_equal_seeds_agree(dataset: Dataset) -> None:
    one, again, other = (list(VideoStream(dataset, config(seed=seed))) for seed in (3, 3, 4))
    half = len(one) // 2
    assert [digest(micro) for micro in one] == [digest(micro) for micro in again]
    assert keys(one) != keys(other)
    assert keys(one[:half]) != keys(one[half:])


def test_threads_and_prefetch_do_not_change_the_stream(dataset: Dataset) -> None:
    streams = [
        VideoStream(dataset, config(workers=workers, prefetch=ahead)) for workers, ahead in ((1, 1), (4, 7))
    ]
    one, other = ([digest(micro) for micro in stream] for stream in streams)
    assert one == other


@pytest.mark.parametrize(("processes", "start"), [(1, "fork"), (2, "fork"), (2, "spawn")])
def test_worker_processes_give_back_plan_order(dataset: Dataset, processes: int, start: str) -> None:
    whole = [digest(micro) for micro in VideoStream(dataset, config())]
    stream = VideoStream(dataset, config())
    loader = DataLoader(stream, batch_size=None, num_workers=processes, multiprocessing_context=start)
    seen = list(loader)
    assert [digest(micro) for micro in seen] == whole
    resumed = VideoStream(dataset, config())
    resumed.load_state_dict(stream.state_after(seen[4]))
    assert [digest(micro) for micro in resumed] == whole[5:]


@pytest.mark.parametrize(("rank", "world_size"), [(-1, 2), (2, 2), (0, 0)])
def test_a_rank_outside_the_world_is_refused(dataset: Dataset, rank: int, world_size: int) -> None:
    with pytest.raises(UsageError, match=f"rank {rank}"):
        VideoStream(dataset, config(), rank, world_size)


def test_a_clip_that_cannot_be_decoded_is_named_after_all_before_it(
    samples: list[Sample], tmp_path: Path
) -> None:
    no_clip = make_sample("notaclip", b"not a video\n" * 400, 12, (80, 64))
    dataset = open_dataset(write(tmp_path, [*samples, no_clip]))
    stream = VideoStream(dataset, config(prefetch=9))
    seen: list[Microbatch] = []
    with pytest.raises(RunError, match=r"sample notaclip in shards/\d+\.tar: the clip cannot be decoded"):
        seen.extend(stream)
    row = dataset.index.column("key").to_pylist().index("notaclip")
    plan = plan_epoch(stream.assignment, seed=3, epoch=0, division=Division(1))
    [broken] = [position for position, step in enumerate(plan) if row in step.microbatches[0].rows]
    assert [micro.position for micro in seen] == list(range(broken))


@pytest.mark.parametrize("damage", ["a flipped byte", "a cut shard", "a missing shard"])
def test_a_damaged_shard_is_named(samples: list[Sample], tmp_path: Path, damage: str) -> None:
    dataset = open_dataset(write(tmp_path, samples))
    shard = tmp_path / dataset.index.column("shard")[0].as_py()
    content = bytearray(shard.read_bytes())
    if damage == "a flipped byte":
        [clip] = [part for part in dataset.index.column("members")[0].as_py() if part["suffix"] == "mp4"]
        content[clip["offset"] + clip["size"] // 2] ^= 1
        shard.write_bytes(content)
    elif damage == "a cut shard":
        shard.write_bytes(content[:2000])
    else:
        shard.unlink()
    with pytest.raises(RunError, match=shard.name) as caught:
        list(VideoStream(dataset, config(epochs=1)))
    assert "key" in str(caught.value)


def test_closing_the_iterator_ends_its_threads(dataset: Dataset) -> None:
    iterator = iter(VideoStream(dataset, config(epochs=None)))
    next(iterator)
    assert any(thread.name.startswith("decode") for thread in threading.enumerate())
    iterator.close()
    assert not any(thread.name.startswith("decode") for thread in threading.enumerate())


def test_prefetch_bounds_what_is_decoded_ahead(folder: Path) -> None:
    class CountingDataset(Dataset):
        reads = 0

        def read_member(self, row_number: int, suffix: str) -> bytes:
            self.reads += 1
            return super().read_member(row_number, suffix)

    dataset = CountingDataset(open_storage(folder))
    iterator = iter(VideoStream(dataset, config(prefetch=1, workers=1)))
    handed_out = 0
    for _ in range(3):
        handed_out += len(next(iterator).keys)
        assert handed_out <= dataset.reads <= handed_out + 4  # 4 is the largest B
    iterator.close()


def test_microbatches_are_full_sized_by_the_formula(dataset: Dataset) -> None:
    stream = VideoStream(dataset, config(epochs=1))
    batches = {
        bucket: size.batch
        for bucket, size in zip(stream.assignment.buckets, stream.assignment.batch_sizes, strict=True)
    }
    assert batches[Bucket(5, 64, 80)] == 4
    assert batches[Bucket(9, 64, 80)] == 3
    sizes: dict[Bucket, list[int]] = {}
    for micro in stream:
        sizes.setdefault(micro.bucket, []).append(len(micro.keys))
    for bucket, counts in sizes.items():
        assert sum(count < batches[bucket] for count in counts) <= 1
        assert max(counts) <= batches[bucket]
    assert np.sum([sum(counts) for counts in sizes.values()]) == SAMPLES
