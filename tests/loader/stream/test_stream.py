"""The stream against a real dataset: exact coverage, order, and failures that name what is wrong."""

import re
import struct
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from prometheus_client import REGISTRY
from torch.utils.data import DataLoader

from reelweave.loader.batch import Microbatch, ReadCounts
from reelweave.loader.buckets.assignment import Bucket
from reelweave.loader.buckets.frame_sampling import FrameSampling
from reelweave.loader.dataset import Dataset, Sample, open_dataset
from reelweave.loader.errors import RunError, UsageError
from reelweave.loader.plan.epoch_plan import plan_epoch
from reelweave.loader.plan.policy import StepLayout
from reelweave.loader.storage import StorageConfig, open_storage
from reelweave.loader.stream.video_stream import VideoStream
from tests.loader.dataset.test_dataset import tree
from tests.loader.stream_clips import (
    BUCKETS,
    SAMPLES,
    SHAPELESS,
    config,
    digest,
    keys,
    make_sample,
    small,
    write,
)
from tests.media import read_number
from tests.s3server import FaultyProxy, make_bucket, s3_server


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
        assert len({(micro.epoch, micro.step, micro.step_samples) for micro in step}) == 1
        assert sum(micro.weight for micro in step) == pytest.approx(1)
        assert sum(len(micro.keys) for micro in step if micro.weight) == step[0].step_samples
    without = streams[0].assignment.unassigned.iterate_reasons(dataset.index.column("key"))
    assert list(without) == [(SHAPELESS, "4 frames, the smallest bucket has 5")]


def test_frames_are_sampled_as_configured(dataset: Dataset) -> None:
    sampling = FrameSampling(mode="stride", stride=2)
    buckets = BUCKETS.model_copy(update={"frames": (3, 6), "sampling": sampling})
    found = list(VideoStream(dataset, config(buckets=buckets, epochs=1)))
    assert {micro.bucket.frames for micro in found} == {3, 6}
    for micro in found:
        for video_CTHW in micro.video_BCTHW.numpy():
            numbers = [read_number(picture) for picture in video_CTHW.transpose(1, 2, 3, 0)]
            assert numbers == list(range(numbers[0], numbers[0] + 2 * len(numbers), 2))


def test_with_a_barrier_in_every_slot_all_ranks_have_as_many(dataset: Dataset) -> None:
    settings = config(regime="slot", microbatches=2, lookahead=2, epochs=1)
    ranks = [list(VideoStream(dataset, settings, rank, 2)) for rank in range(2)]
    assert [(micro.step, micro.slot, micro.slots) for micro in ranks[0]] == [
        (micro.step, micro.slot, micro.slots) for micro in ranks[1]
    ]
    counted = sorted(key for rank in ranks for micro in rank if micro.weight for key in micro.keys)
    assert counted == [f"key{number:02}" for number in range(SAMPLES)]


@pytest.mark.parametrize("world_size", [1, 2])
def test_several_microbatches_make_a_step(dataset: Dataset, world_size: int) -> None:
    settings = config(microbatches=2, epochs=1)
    streams = [VideoStream(dataset, settings, rank, world_size) for rank in range(world_size)]
    found = [micro for stream in streams for micro in stream]
    counted = sorted(key for micro in found if micro.weight for key in micro.keys)
    assert counted == [f"key{number:02}" for number in range(SAMPLES)]
    for position in range(streams[0].steps_per_epoch):
        step = [micro for micro in found if micro.step == position]
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
            numbers = FrameSampling().frames(
                f"3/{micro.epoch}/{key}", by_key[key]["frames"], 25.0, bucket.frames
            )
            assert [read_number(picture) for picture in video_CTHW.transpose(1, 2, 3, 0)] == numbers.tolist()
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


@pytest.mark.parametrize(("processes", "start"), [(1, "fork"), (2, "fork")])
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
    stream = VideoStream(dataset, config(prefetch=9, max_bad=0, max_bad_share=0.0))
    seen: list[Microbatch] = []
    with pytest.raises(
        RunError, match=r"sample notaclip in .*shards/[\w-]+\.tar at byte \d+: the clip cannot be"
    ):
        seen.extend(stream)
    row = dataset.index.column("key").to_pylist().index("notaclip")
    plan = plan_epoch(stream.assignment, seed=3, epoch=0, layout=StepLayout(1))
    [broken] = [position for position, step in enumerate(plan) if row in step.microbatches[0].rows]
    assert [micro.step for micro in seen] == list(range(broken))


@pytest.fixture
def damaged(samples: list[Sample], tmp_path: Path) -> Dataset:
    """A dataset two of whose clips cannot be used."""
    no_clip = make_sample("key05", b"not a video\n" * 400, 7, (80, 64))
    swapped = [no_clip if sample.row["key"] == "key05" else sample for sample in samples]
    dataset = open_dataset(write(tmp_path, swapped))
    row = dataset.row(dataset.row_numbers["key11"])
    [clip] = [part for part in row["members"] if part["suffix"] == "mp4"]
    shard = tmp_path / row["shard"]
    content = bytearray(shard.read_bytes())
    content[clip["offset"] + clip["size"] // 2] ^= 1
    shard.write_bytes(content)
    return open_dataset(tmp_path)


def test_another_sample_of_its_bucket_stands_in_for_a_bad_one(dataset: Dataset, damaged: Dataset) -> None:
    good, found = (list(VideoStream(one, config(epochs=1))) for one in (dataset, damaged))
    bad = {sample.key: sample for micro in found for sample in micro.bad}
    assert sorted(bad) == ["key05", "key11"]
    assert "cannot be decoded" in bad["key05"].reason
    row = damaged.row(damaged.row_numbers["key11"])
    assert bad["key11"].offset == row["offset"]
    assert bad["key11"].shard == damaged.storage.uri(row["shard"])
    assert "damaged" in bad["key11"].reason
    for micro, wanted in zip(found, good, strict=True):
        assert micro.video_BCTHW.shape == wanted.video_BCTHW.shape
        assert (micro.weight, micro.step_samples) == (wanted.weight, wanted.step_samples)
        for key, other in zip(micro.keys, wanted.keys, strict=True):
            assert key == other if other not in bad else key not in bad
    counted = [key for micro in found for key in micro.keys]
    assert set(counted) == {f"key{number:02}" for number in range(SAMPLES)} - set(bad)


def test_the_same_sample_stands_in_whoever_reads(damaged: Dataset) -> None:
    plain = [digest(micro) for micro in VideoStream(damaged, config())]
    loader = DataLoader(VideoStream(damaged, config(workers=1)), batch_size=None, num_workers=2)
    assert [digest(micro) for micro in loader] == plain
    stream = VideoStream(damaged, config())
    iterator = iter(stream)
    for _ in range(3):
        next(iterator)
    iterator.close()
    resumed = VideoStream(damaged, config())
    resumed.load_state_dict(stream.state_dict())
    assert [digest(micro) for micro in resumed] == plain[3:]


@pytest.mark.parametrize(("allowed", "share"), [(0, 0.0), (1, 0.0), (0, 0.1)])
def test_too_many_bad_samples_stop_the_run(damaged: Dataset, allowed: int, share: float) -> None:
    stream = VideoStream(damaged, config(epochs=None, max_bad=allowed, max_bad_share=share))
    with pytest.raises(RunError, match=rf"more than stream.max_bad={allowed}.*sample key.*reelweave verify"):
        list(stream)


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
        list(VideoStream(dataset, config(epochs=1, max_bad=0, max_bad_share=0.0)))
    assert "key" in str(caught.value)


def test_closing_the_iterator_ends_its_threads(dataset: Dataset) -> None:
    iterator = iter(VideoStream(dataset, config(epochs=None)))
    next(iterator)
    assert any(thread.name.startswith("decode") for thread in threading.enumerate())
    iterator.close()
    assert not any(thread.name.startswith("decode") for thread in threading.enumerate())


def test_an_iterator_does_not_go_on_where_another_one_stood(dataset: Dataset) -> None:
    """Two that take turns would both give the same samples, and the second one would move the stream back."""
    stream = small(dataset)
    first, second = iter(stream), iter(stream)
    next(first)
    next(second)
    stream.advance(batch := next(second))  # of its own batch: it goes on
    next(second)
    with pytest.raises(UsageError, match="another iterator reads it"):
        next(first)
    stream.load_state_dict(stream.state_after(batch))
    with pytest.raises(UsageError, match="go on with a new one"):
        next(second)


def test_what_is_read_ahead_is_bounded(samples: list[Sample], tmp_path: Path) -> None:
    class CountingDataset(Dataset):
        read = 0

        def read_range(self, shard: str, offset: int, size: int) -> bytes:
            self.read += size
            return super().read_range(shard, offset, size)

    padding = struct.pack(">I4s", 400_000, b"free") + bytes(399_992)  # a box that every reader of MP4 skips
    heavy = [
        make_sample(sample.row["key"], sample.clip + padding, sample.row["frames"], (80, 64))
        for sample in samples
    ]
    dataset = CountingDataset(open_storage(write(tmp_path, heavy)))
    iterator = iter(VideoStream(dataset, config(prefetch=1, workers=1, read_ahead_mib=1)))
    handed_out = 0
    for _ in range(8):
        handed_out += len(next(iterator).keys) * 400_000
        # A microbatch begun below the bound, and those that are decoded or handed over; 4 samples is the largest.
        assert handed_out <= dataset.read * 1.05 <= 1.1 * (handed_out + 2**20 + 4 * 4 * 400_000)
    iterator.close()


def test_what_a_cache_holds_is_not_read_again(samples: list[Sample], tmp_path: Path) -> None:
    class CountingDataset(Dataset):
        reads = 0

        def read_range(self, shard: int, offset: int, size: int) -> bytes:
            self.reads += 1
            return super().read_range(shard, offset, size)

    dataset = CountingDataset(open_storage(write(tmp_path / "set", samples)))
    plain = [digest(micro) for micro in VideoStream(dataset, config(epochs=1))]
    dataset.reads = 0
    cached = config(epochs=1, cache={"folder": tmp_path / "cache", "max_gib": 1})
    assert [digest(micro) for micro in VideoStream(dataset, cached)] == plain
    assert dataset.reads == SAMPLES
    assert [digest(micro) for micro in VideoStream(dataset, cached)] == plain
    assert dataset.reads == SAMPLES


def test_batches_count_retries_and_what_the_cache_held(folder: Path, tmp_path: Path) -> None:
    with s3_server() as endpoint, FaultyProxy(endpoint) as proxy:
        make_bucket(endpoint, "lake")
        remote = StorageConfig(endpoint_url=proxy.url, backoff_base_s=0.001)
        storage = open_storage("s3://lake/set", remote)
        for path, data in tree(folder).items():
            storage.write(path, data)
        proxy.answer(503, "SlowDown", match=r"GET .*\.tar", times=3)
        stream = config(epochs=1, cache={"folder": tmp_path / "cache", "max_gib": 1})
        dataset = open_dataset("s3://lake/set", remote)
        first, second = (
            [sum(counts) for counts in zip(*(one.reads for one in VideoStream(dataset, stream)), strict=True)]
            for _ in range(2)
        )
    assert first == [*ReadCounts(retries=3, cache_hits=0, cache_misses=SAMPLES)]
    assert second == [*ReadCounts(retries=0, cache_hits=SAMPLES, cache_misses=0)]


def test_the_lines_for_prometheus_count_what_came(dataset: Dataset) -> None:
    page = (Path(__file__).parents[3] / "docs/metrics.md").read_text()
    [lines] = re.findall(r"```python\n(.+?)```", page, re.S)
    found: dict[str, object] = {"stream": VideoStream(dataset, config(epochs=1))}
    exec(lines.replace("9470 + stream.rank", "0"), found)
    came = keys(list(VideoStream(dataset, config(epochs=1))))
    assert REGISTRY.get_sample_value("loader_samples_total") == sum(map(len, came))
    assert REGISTRY.get_sample_value("loader_wait_seconds_count") == len(came) + 1
    assert REGISTRY.get_sample_value("loader_reads_total", {"kind": "cache_hits"}) == 0


def test_what_came_damaged_is_not_kept_in_the_cache(samples: list[Sample], tmp_path: Path) -> None:
    class DamagingDataset(Dataset):
        damage = True

        def read_range(self, shard: int, offset: int, size: int) -> bytes:
            found = super().read_range(shard, offset, size)
            # The clip is the end of a sample: its last third is lost, the tar headers are whole.
            return found[: size // 3] + bytes(size - size // 3) if self.damage and offset == 0 else found

    dataset = DamagingDataset(open_storage(write(tmp_path / "set", samples)))
    cached = config(epochs=1, cache={"folder": tmp_path / "cache", "max_gib": 1})
    assert sum(len(micro.bad) for micro in VideoStream(dataset, cached)) > 0
    dataset.damage = False
    assert sum(len(micro.bad) for micro in VideoStream(dataset, cached)) == 0


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
