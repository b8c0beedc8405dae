"""Choice of what is stored of each bucket and sample, from the index and measured seconds, and of its shards."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from reelweave.curate.config import ShardConfig
from reelweave.curate.run.shard import GroupNumbers, shard_order
from reelweave.loader.base.arrays import IndexArray
from reelweave.loader.buckets.assignment import Assignment
from reelweave.loader.dataset import Dataset
from reelweave.loader.dataset.latents import LatentBucket, Latents, LatentText
from reelweave.loader.dataset.tars.members import media_members
from reelweave.loader.errors import UsageError
from reelweave.pipelines.configuration.train_config import TrainRunConfig
from reelweave.pipelines.latents.work import MeasuredBucket
from reelweave.train.latents.choice import BucketFacts, choose
from reelweave.train.latents.plan import PlannedShard, StoredParts

_HEAD_BYTES = 4096  # of a sample: its metadata, its words, headers


def describe_latents(
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
    # Each bucket: stored or encoded on the fly, by sizes and seconds.
    starts_N, clip_N = _starts(source, config, assignment), _clip_sizes(source)
    buckets = []
    for place, one in enumerate(measured):
        here_N = assignment.bucket_of == place
        length = assignment.lengths[place]
        buckets.append(_bucket(one, length, _views(starts_N[here_N], config), clip_N[here_N], config))
    # Where stored clips have several starts, the seed decides which are taken.
    stored_N = np.array([one.latent is not None for one in buckets] + [False])[assignment.bucket_of]
    several = (stored_N & (starts_N > 1)).any()
    if asked["text"] is None and not stored_N.any():
        raise UsageError(f"nothing would be stored; of bucket {assignment.buckets[0]}: {buckets[0].why}")
    # Contexts of captions, if they are stored.
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


def plan_shards(
    source: Dataset, config: TrainRunConfig, assignment: Assignment, latents: Latents
) -> list[PlannedShard]:
    """Return the shards of the new version, each of one split and bin and sorted by key, up to a size limit.

    Samples without a bucket stay as rows, so that training plans do not change. A few numbers of each sample are held.

    Args:
        source: dataset of the clips.
        config: configuration of the run.
        assignment: bucket of each clip.
        latents: which buckets are stored.
    """
    numbers = GroupNumbers()
    parts = [numbers.of(table) for table in source.table_parts("index", ("split", "bin"))]
    groups_N = numbers.in_order()[np.concatenate([np.empty(0, np.int64), *parts])]
    stored = _stored_parts(source, config, assignment, latents)
    limit = ShardConfig(max_shard_mb=config.latents.max_shard_mb)
    order = shard_order(
        groups_N, [np.arange(len(groups_N))], stored.size, limit
    )  # the index is sorted by key
    rows_N = np.argsort(order.places)
    buckets = tuple(size_of(assignment, place) for place in range(len(assignment.buckets)))
    return [
        PlannedShard(number, rows_N[first:end], stored.at(rows_N[first:end]), buckets)
        for number, (first, end) in enumerate(itertools.pairwise(order.ends.tolist()))
    ]


def _stored_parts(
    source: Dataset, config: TrainRunConfig, assignment: Assignment, latents: Latents
) -> StoredParts:
    """Return what is stored of each sample, by row of the index."""
    own, itemsize = config.latents, np.dtype(config.latents.dtype).itemsize
    bucket_N = assignment.bucket_of.astype(np.int64)
    shapes = [latents.shape(*size_of(assignment, place)) for place in range(len(assignment.buckets))]
    latent_N = np.array([math.prod(shape or ()) * (shape is not None) for shape in shapes] + [0])[bucket_N]
    views_N = np.where(latent_N > 0, _views(_starts(source, config, assignment), config), 0)
    has_bucket_N = bucket_N >= 0
    clip_N = has_bucket_N & ((latent_N == 0) | own.clips)
    context_N = has_bucket_N & (latents.text is not None)
    width = latents.text.width if latents.text else 0
    size_N = _HEAD_BYTES + views_N * latent_N * itemsize + np.where(clip_N, _clip_sizes(source), 0)
    size_N += np.where(context_N, source.plan_index.text_tokens.astype(np.int64) * width * itemsize, 0)
    return StoredParts(bucket_N, views_N, context_N, clip_N, size_N)


def _clip_sizes(source: Dataset) -> IndexArray:
    """Return the bytes of each sample's video or image, int64 [N]; 0 where it has none."""
    parts = [media_members(table).size for table in source.table_parts("index", ("shard", "members"))]
    return np.concatenate([np.empty(0, np.int64), *parts])


def size_of(assignment: Assignment, place: int) -> tuple[int, int, int]:
    """Return frames, height and width of a bucket."""
    bucket = assignment.buckets[place]
    return bucket.frames, bucket.height, bucket.width


def _bucket(
    measured: MeasuredBucket, length: int, views_n: IndexArray, clip_n: IndexArray, config: TrainRunConfig
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


def _starts(source: Dataset, config: TrainRunConfig, assignment: Assignment) -> IndexArray:
    """Return the number of possible first frames of each sample in its bucket, int64 [N]."""
    index = source.plan_index
    count_N = np.array([bucket.frames for bucket in assignment.buckets] + [1])[assignment.bucket_of]
    return config.stream.buckets.sampling.starts(index.frames, index.fps, count_N)


def _views(starts_n: IndexArray, config: TrainRunConfig) -> IndexArray:
    return np.where(starts_n > 1, config.latents.views, 1)
