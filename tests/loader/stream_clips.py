"""A small dataset of numbered clips for the tests of the stream."""

import hashlib
from pathlib import Path

from reelweave.loader.batch import Microbatch
from reelweave.loader.buckets.assignment import BucketConfig
from reelweave.loader.buckets.tokens import Compression
from reelweave.loader.dataset import Dataset, DatasetWriter, Sample
from reelweave.loader.read.stream_config import StreamConfig
from reelweave.loader.storage import open_storage
from reelweave.loader.stream.video_stream import VideoStream
from reelweave.loader.text import count_tokens

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
EVERY_KEY = [f"key{number:02}" for number in range(SAMPLES)]


def make_sample(
    key: str, clip: bytes, frames: int, size: tuple[int, int], caption: str | None = None
) -> Sample:
    caption = f"the caption of {key}" if caption is None else caption
    row = {
        "key": key,
        "frames": frames,
        "fps": 25.0,
        "height": size[1],
        "width": size[0],
        "duration_s": frames / 25,
        "text_tokens": count_tokens(caption),
        "caption": caption,
        "caption_source": "none",
        "source": f"raw/{key}.mp4",
        "source_sha256": hashlib.sha256(key.encode()).hexdigest(),
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


def config(**changes: object) -> StreamConfig:
    """By default with weights that sum to 1 in each step."""
    defaults = {"buckets": BUCKETS, "seed": 3, "workers": 2, "epochs": 2, "denominator": "step"}
    return StreamConfig(**{**defaults, **changes})


def small(dataset: Dataset, rank: int = 0, world_size: int = 1, **changes: object) -> VideoStream:
    """A stream of many microbatches of one sample, without pixels."""
    one_by_one = {"decode": False, "workers": 1, "buckets": BUCKETS.model_copy(update={"max_batch": 1})}
    return VideoStream(dataset, config(**one_by_one | changes), rank, world_size)


def keys(microbatches: list[Microbatch]) -> list[tuple[str, ...]]:
    return [microbatch.keys for microbatch in microbatches]


def digest(microbatch: Microbatch) -> str:
    pixels = hashlib.sha256(microbatch.video_BCTHW.numpy().tobytes()).hexdigest()
    return f"{microbatch.epoch}/{microbatch.step} {microbatch.keys} {microbatch.weight} {pixels}"
