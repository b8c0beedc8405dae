"""Choice of what is stored of each bucket and sample, from the index and measured seconds."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from loader.base.arrays import Places
from loader.buckets.assignment import Assignment
from loader.dataset import Dataset
from loader.dataset.latents import LatentBucket, Latents, LatentText
from loader.dataset.tables.parquet import to_rows
from loader.errors import UsageError
from pipelines.configuration.train_config import TrainRunConfig
from pipelines.latents.work import MeasuredBucket
from train.latents.choice import BucketFacts, choose
from train.latents.plan import PlannedSample

_HEAD_BYTES = 4096  # of a sample: its metadata, its words, headers


def described(
    source: Dataset,
    config: TrainRunConfig,
    assignment: Assignment,
    asked: dict[str, Any],
    measured: Sequence[MeasuredBucket],
) -> Latents:
    """Return the manifest's section: which buckets are stored, and why; the empty context has no path yet.

    Args:
        source: dataset of the clips.
        config: configuration of the run.
        assignment: bucket of each clip.
        asked: settings that fix the values of latents and contexts.
        measured: Shape and seconds of the latents of each bucket.

    Raises:
        UsageError: nothing would be stored.
    """
    starts_N, clip_N = _starts(source, config, assignment), source.media.size
    buckets = []
    for place, one in enumerate(measured):
        here_N = assignment.bucket_of == place
        length = assignment.lengths[place]
        buckets.append(_bucket(one, length, _views(starts_N[here_N], config), clip_N[here_N], config))
    stored_N = np.array([one.latent is not None for one in buckets] + [False])[assignment.bucket_of]
    several = (stored_N & (starts_N > 1)).any()
    if asked["text"] is None and not stored_N.any():
        raise UsageError(f"nothing would be stored; of bucket {assignment.buckets[0]}: {buckets[0].why}")
    text = None
    if (widths := measured[0].text) is not None:
        text = LatentText(
            encoder=asked["text"], empty="", width=widths.width, pooled_width=widths.pooled_width
        )
    return Latents(
        source=source.storage.root,
        source_index=asked["source_index"],
        tokenizer=asked["tokenizer"],
        text=text,
        shapes=asked["shapes"],
        seed=asked["seed"] if several else None,
        dtype=config.latents.dtype,
        device=measured[0].device,
        buckets=tuple(buckets),
    )


def samples_of(
    source: Dataset, config: TrainRunConfig, assignment: Assignment, latents: Latents
) -> list[PlannedSample]:
    """Return the planned samples; those without a bucket stay as rows, so that plans do not change."""
    own, itemsize = config.latents, np.dtype(config.latents.dtype).itemsize
    views_N, clip_N = _views(_starts(source, config, assignment), config), source.media.size
    samples = []
    for number, row in enumerate(to_rows(source.index)):
        place = int(assignment.bucket_of[number])
        bucket = None if place < 0 else size_of(assignment, place)
        shape = None if bucket is None else latents.shape(*bucket)
        views = 0 if shape is None else int(views_N[number])
        clip = bucket is not None and (shape is None or own.clips)
        text = None if bucket is None else latents.text
        size = _HEAD_BYTES + views * math.prod(shape or ()) * itemsize
        size += int(clip_N[number]) if clip else 0
        size += row["text_tokens"] * text.width * itemsize if text else 0
        samples.append(PlannedSample(row, bucket, views, text is not None, clip, size))
    return samples


def size_of(assignment: Assignment, place: int) -> tuple[int, int, int]:
    """Return frames, height and width of a bucket."""
    bucket = assignment.buckets[place]
    return bucket.frames, bucket.height, bucket.width


def _bucket(
    measured: MeasuredBucket, length: int, views_n: Places, clip_n: Places, config: TrainRunConfig
) -> LatentBucket:
    """Return the decision on one bucket, from the views and bytes of its samples."""
    frames, height, width = measured.bucket
    samples, cost = len(views_n), config.stream.buckets.cost
    views = float(views_n.mean()) if samples else 1.0
    found = BucketFacts(
        name=f"{frames}x{height}x{width}",
        encode_s=measured.encode_s,
        latent_bytes=views * math.prod(measured.latent) * np.dtype(config.latents.dtype).itemsize,
        clip_bytes=float(clip_n.mean()) if samples else 0.0,
        views=views,
    )
    stored, why = choose(found, config.latents)
    share = None if cost is None or not found.encode_s else found.encode_s / float(cost.sample_s(length))
    return LatentBucket(
        frames=frames,
        height=height,
        width=width,
        samples=samples,
        latent=measured.latent if stored else None,
        encode_s=found.encode_s,
        step_share=share,
        latent_bytes=round(found.latent_bytes),
        clip_bytes=round(found.clip_bytes),
        why=why,
    )


def _starts(source: Dataset, config: TrainRunConfig, assignment: Assignment) -> Places:
    """Return the number of possible first frames of each sample in its bucket, int64 [N]."""
    index = source.plan_index
    count_N = np.array([bucket.frames for bucket in assignment.buckets] + [1])[assignment.bucket_of]
    return config.stream.buckets.sampling.starts(index.frames, index.fps, count_N)


def _views(starts_n: Places, config: TrainRunConfig) -> Places:
    return np.where(starts_n > 1, config.latents.views, 1)
