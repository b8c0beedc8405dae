"""The stream against a real dataset: exact coverage, order, resume, and failures that name what is wrong."""

import hashlib
import json
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from loader.buckets import Bucket, BucketConfig
from loader.cost import LinearQuadraticCost
from loader.dataset import Dataset, DatasetWriter, Sample, open_dataset
from loader.errors import RunError, UsageError
from loader.plan import plan_epoch, start_frame
from loader.policy import Division
from loader.storage import open_storage
from loader.stream import Microbatch, StreamConfig, VideoStream
from loader.tokens import Compression
from tests.media import read_number, write_video

BUCKETS = BucketConfig(
    frames=(5, 9),
    sizes=((64, 80), (80, 64)),
    compression=Compression(frames=4, height=16, width=16, causal=True),
    max_text_tokens=12,
    memory_tokens=3 * (12 + 3 * 20),  # B is 3 at 9 frames, 4 at 5 frames
)
SHAPES = [(7, (80, 64)), (12, (80, 64)), (9, (160, 128)), (14, (64, 80)), (6, (128, 160))]
"""(frames, (width, height)), over and over."""
SAMPLES = 17
SHAPELESS = "tiny"


def make_sample(key: str, clip: bytes, frames: int, size: tuple[int, int]) -> Sample:
    row = {
        "key": key,
        "frames": frames,
        "fps": 25.0,
        "height": size[1],
        "width": size[0],
        "duration_s": frames / 25,
        "text_tokens": 4,
        "caption": f"the caption of {key}",
        "caption_source": "none",
        "source": f"raw/{key}.mp4",
        "source_sha256": "ab" * 32,
        "start_s": 0.0,
        "end_s": frames / 25,
        "scores": {},
        "sha256": hashlib.sha256(clip).hexdigest(),
    }
    return Sample(row, clip)


def write(folder: Path, samples: list[Sample]) -> Path:
    with DatasetWriter(open_storage(folder), max_shard_bytes=40_000) as writer:
        for sample in samples:
            writer.add(sample)
    return folder


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    folder = tmp_path_factory.mktemp("clips")
    clips = {
        shape: write_video(folder / f"{number}.mp4", (shape[0],), size=shape[1]).read_bytes()
        for number, shape in enumerate(SHAPES)
    }
    shapes = [SHAPES[number % len(SHAPES)] for number in range(SAMPLES)]
    made = [make_sample(f"key{number:02}", clips[shape], *shape) for number, shape in enumerate(shapes)]
    return [*made, make_sample(SHAPELESS, clips[SHAPES[0]], 4, (80, 64))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, samples: list[Sample]) -> Path:
    return write(tmp_path_factory.mktemp("dataset"), samples)


@pytest.fixture(scope="module")
def dataset(folder: Path) -> Dataset:
    return open_dataset(folder)


def config(**changes: object) -> StreamConfig:
    return StreamConfig(**{"buckets": BUCKETS, "seed": 3, "workers": 2, "epochs": 2, **changes})


def keys(microbatches: list[Microbatch]) -> list[tuple[str, ...]]:
    return [microbatch.keys for microbatch in microbatches]


def digest(microbatch: Microbatch) -> str:
    pixels = hashlib.sha256(microbatch.video_BCTHW.numpy().tobytes()).hexdigest()
    return f"{microbatch.epoch}/{microbatch.position} {microbatch.keys} {microbatch.weight} {pixels}"


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
    assert streams[0].assignment.unassigned == [(SHAPELESS, "4 frames, the smallest bucket has 5")]


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


def test_a_stream_left_within_a_step_begins_the_step_again(dataset: Dataset) -> None:
    settings = config(microbatches=3, epochs=1)
    stream = VideoStream(dataset, settings)
    iterator = iter(stream)
    first = [next(iterator) for _ in range(4)]
    iterator.close()
    assert [micro.ends_step for micro in first] == [False, False, True, False]
    assert stream.state_dict() == stream.state_after(first[2]) == stream.state_after(first[3])
    again = VideoStream(dataset, settings)
    again.load_state_dict(stream.state_dict())
    assert digest(next(iter(again))) == digest(first[3])


def test_the_state_of_another_cost_is_refused(dataset: Dataset) -> None:
    state = VideoStream(dataset, config()).state_dict()
    costly = BUCKETS.model_copy(update={"cost": LinearQuadraticCost(token_s=1, square_s=0)})
    with pytest.raises(UsageError, match="config was"):
        VideoStream(dataset, config(buckets=costly)).load_state_dict(state)


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


def test_the_state_counts_what_was_yielded_not_what_was_prefetched(dataset: Dataset) -> None:
    stream = VideoStream(dataset, config(prefetch=5))
    assert stream.state_dict()["position"] == 0
    for number, micro in enumerate(stream):
        state = stream.state_dict()
        assert state == stream.state_after(micro)
        assert divmod(number + 1, stream.steps_per_epoch) == (state["epoch"], state["position"])


@pytest.mark.parametrize("taken", [1, 4])
def test_a_new_process_goes_on_where_the_state_was_saved(dataset: Dataset, folder: Path, taken: int) -> None:
    stream = VideoStream(dataset, config(), rank=1, world_size=2)
    whole = [digest(micro) for micro in stream]
    stream = VideoStream(dataset, config(), rank=1, world_size=2)
    iterator = iter(stream)
    for _ in range(taken):
        next(iterator)
    state = json.dumps(stream.state_dict())
    iterator.close()
    program = f"""
import json, sys
from loader.dataset import open_dataset
from loader.stream import StreamConfig, VideoStream
from tests.loader.test_stream import digest
stream = VideoStream(
    open_dataset({str(folder)!r}), StreamConfig.model_validate_json({config().model_dump_json()!r}), 1, 2
)
stream.load_state_dict(json.loads(sys.argv[1]))
print(json.dumps([digest(micro) for micro in stream]))
"""
    run = subprocess.run(
        [sys.executable, "-c", program, state], capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == whole[taken:]
    assert taken < len(whole)


def test_iterating_again_goes_on(dataset: Dataset) -> None:
    stream = VideoStream(dataset, config())
    first = next(iter(stream))
    assert keys([first, *stream]) == keys(list(VideoStream(dataset, config())))
    assert list(stream) == []


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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 4}, "seed was 3"),
        ({"buckets": BUCKETS.model_copy(update={"max_batch": 2})}, "config was"),
    ],
)
def test_a_state_of_another_configuration_is_refused(
    dataset: Dataset, change: dict[str, object], words: str
) -> None:
    state = VideoStream(dataset, config()).state_dict()
    with pytest.raises(UsageError, match=words):
        VideoStream(dataset, config(**change)).load_state_dict(state)


def test_a_state_fits_any_number_of_threads_and_epochs(dataset: Dataset) -> None:
    state = VideoStream(dataset, config()).state_dict()
    VideoStream(dataset, config(workers=7, prefetch=9, epochs=None)).load_state_dict(state)


def test_a_state_of_another_dataset_is_refused(
    dataset: Dataset, samples: list[Sample], tmp_path: Path
) -> None:
    state = VideoStream(dataset, config()).state_dict()
    other = open_dataset(write(tmp_path, samples[:-2]))
    with pytest.raises(UsageError, match="dataset was"):
        VideoStream(other, config()).load_state_dict(state)


def run_steps(
    dataset: Dataset, settings: StreamConfig, world_size: int, state: dict | None, steps: int
) -> tuple[list[list[Microbatch]], dict]:
    """Some steps of all ranks, from a state that went through JSON, and the state they agree on."""
    streams = [VideoStream(dataset, settings, rank, world_size) for rank in range(world_size)]
    iterators = []
    for stream in streams:
        if state is not None:
            stream.load_state_dict(json.loads(json.dumps(state)))
        iterators.append(iter(stream))
    found = []
    for _ in range(steps):
        step = []
        for iterator in iterators:
            for micro in iterator:
                step.append(micro)
                if micro.ends_step:
                    break
        found.append(step)
    states = [stream.state_dict() for stream in streams]
    for iterator in iterators:
        iterator.close()
    assert all(one == states[0] for one in states)
    return found, states[0]


def test_as_many_microbatches_on_other_ranks_train_the_same_steps(dataset: Dataset) -> None:
    whole, _ = run_steps(dataset, config(microbatches=4), 1, None, 4)
    first, state = run_steps(dataset, config(microbatches=2, policy="dual_constraint"), 2, None, 2)
    rest, _ = run_steps(dataset, config(microbatches=1), 4, state, 2)
    for one, other in zip(whole, [*first, *rest], strict=True):
        digests = [sorted(map(digest, step)) for step in (one, other)]
        assert digests[0] == digests[1]


def test_at_another_world_size_every_sample_of_the_epoch_still_counts_once(dataset: Dataset) -> None:
    state, counted = None, []
    for world_size, microbatches, steps in ((2, 1, 2), (3, 1, 1), (1, 2, 1), (1, 1, 10**6)):
        settings = config(microbatches=microbatches, epochs=1)
        if steps > 100:
            stream = VideoStream(dataset, settings)
            stream.load_state_dict(state)
            found = [list(stream)]
        else:
            found, state = run_steps(dataset, settings, world_size, state, steps)
            assert len(json.dumps(state)) < 4096
        counted += [key for step in found for micro in step if micro.weight for key in micro.keys]
    assert sorted(counted) == [f"key{number:02}" for number in range(SAMPLES)]


def test_after_a_change_within_an_epoch_the_next_one_is_whole(dataset: Dataset) -> None:
    _, state = run_steps(dataset, config(), 2, None, 1)
    stream = VideoStream(dataset, config())
    stream.load_state_dict(state)
    second = [micro for micro in stream if micro.epoch == 1]
    assert [digest(micro) for micro in second] == [
        digest(micro) for micro in VideoStream(dataset, config()) if micro.epoch == 1
    ]
    assert stream.state_dict()["done"] == []


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({}, "version: Field required"),
        ({"position": -1}, "position"),
        ({"position": "3"}, "position"),
        ({"version": 99}, "version was 99"),
        ({"surprise": 1}, "surprise"),
        ({"position": 10**6}, "position is 1000000"),
        ({"per_step": 0}, "per_step"),
        ({"done": [[2]]}, "done"),
        ({"done": [[2, 10**6]]}, "the epoch has 0 steps"),
    ],
)
def test_what_is_no_state_is_refused(dataset: Dataset, state: dict[str, object], words: str) -> None:
    stream = VideoStream(dataset, config())
    with pytest.raises(UsageError, match=words):
        stream.load_state_dict({**stream.state_dict(), **state} if state else {})


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
