"""Bucket statistics of a report, computed from the plan index alone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from reelweave.loader.base.columns import parts
from reelweave.loader.buckets.assignment import (
    Assignment,
    BatchSize,
    Bound,
    Bucket,
    BucketConfig,
    Budgets,
    assign,
    batch_bounds,
)
from reelweave.loader.buckets.cost import seconds
from reelweave.loader.buckets.tokens import sequence_length
from reelweave.loader.dataset.plan_index import PlanIndex

_DURATION_EDGES_S = (0, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 45, 60, 90, 120, 300, 600, 1800, 3600)
_SHORT_SIDE_EDGES_PX = (0, 144, 240, 360, 480, 540, 720, 1080, 1440, 2160, 4320)
_TOKEN_EDGES = (0, *(base * 10**power for power in range(2, 7) for base in (1, 2, 5)))


@dataclass(frozen=True)
class BucketStats:
    """Statistics of one bucket that holds samples.

    Attributes:
        frames, height, width: shape of the bucket.
        samples: number of samples.
        length: S, tokens per sample with text counted at its maximum.
        batch: B, samples per microbatch.
        bound: constraint that decides B: memory, compute, max_batch, or one.
        microbatches: number of microbatches per epoch, before halving to complete steps.
        tokens: samples x S.
        token_share: share of the tokens of all buckets.
        cost_share: share of the samples' cost in that of all buckets.
        microbatch_cost: cost of a full microbatch over the maximum of all buckets; its spread between buckets makes
            ranks wait.
        over_limit: cost of a microbatch over M_comp or the target step time, at least 1; None without a limit.
        long_captions: number of samples with captions above ``max_text_tokens``.
        bounds: most samples per microbatch that each constraint allows by itself.
        padding_share: share of the tokens that pad captions to ``max_text_tokens``.
    """

    frames: int
    height: int
    width: int
    samples: int
    length: int
    batch: int
    bound: str
    microbatches: int
    tokens: int
    token_share: float
    cost_share: float
    microbatch_cost: float
    over_limit: float | None
    long_captions: int
    bounds: Mapping[Bound, int]
    padding_share: float


@dataclass(frozen=True)
class Histogram:
    """Counts per bin: bin i holds values from edges[i] up to, but not including, edges[i + 1]."""

    edges: list[float]
    counts: list[int]


@dataclass(frozen=True)
class DatasetStats:
    """Statistics of a dataset under a bucket configuration.

    Attributes:
        samples: number of samples of the index.
        assigned: number of samples in a bucket.
        hours: duration of all samples.
        tokens: tokens of the assigned samples as trained, samples x S.
        buckets: buckets that hold samples, by rising S.
        duration_s: histogram of the durations of all samples, in seconds.
        short_side_px: histogram of the smaller of height and width of all samples, in pixels.
        clip_tokens: histogram of S of all samples at their own shape, before cutting and resizing.
        unassigned: {key, reason} of each sample without a bucket.
        unassigned_reasons: number of samples by reason.
    """

    samples: int
    assigned: int
    hours: float
    tokens: int
    buckets: list[BucketStats]
    duration_s: Histogram
    short_side_px: Histogram
    clip_tokens: Histogram
    unassigned: list[dict[str, str]]
    unassigned_reasons: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics as plain dicts and lists, ready for JSON."""
        return asdict(self)


def dataset_stats(
    index: PlanIndex,
    keys: pa.ChunkedArray,
    config: BucketConfig,
    duration_s: pa.ChunkedArray | None = None,
) -> DatasetStats:
    """Compute statistics of an index under a bucket configuration.

    Args:
        index: plan index of the samples.
        keys: keys of the samples, to name those without a bucket.
        config: shapes and budgets.
        duration_s: durations of the samples in seconds, with the time for which a last frame is held; None: frames over
            the frame rate.
    """
    assignment = assign(index, config)
    buckets = _bucket_stats(assignment, index.text_tokens, config)

    # Values of samples are computed for parts of the index: those of all would take much memory.
    def lasting_s(part: slice) -> NDArray[np.float64]:
        if duration_s is not None:
            return np.asarray(duration_s[part].to_numpy(), np.float64)
        return index.frames[part] / index.fps[part].astype(np.float64)

    def clip_tokens(part: slice) -> NDArray[np.int64]:
        text_N = np.minimum(index.text_tokens[part], config.max_text_tokens)
        return sequence_length(
            text_N, index.frames[part], index.height[part], index.width[part], config.compression
        )

    # Histograms cover all samples, buckets only those that have one.
    return DatasetStats(
        samples=len(index),
        assigned=len(index) - len(assignment.unassigned),
        hours=sum(float(lasting_s(part).sum()) for part in parts(len(index))) / 3600,
        tokens=sum(bucket.tokens for bucket in buckets),
        buckets=buckets,
        duration_s=_histogram(lasting_s, len(index), _DURATION_EDGES_S),
        short_side_px=_histogram(
            lambda part: np.minimum(index.height[part], index.width[part]), len(index), _SHORT_SIDE_EDGES_PX
        ),
        clip_tokens=_histogram(clip_tokens, len(index), _TOKEN_EDGES),
        unassigned=[
            {"key": key, "reason": reason} for key, reason in assignment.unassigned.iterate_reasons(keys)
        ],
        unassigned_reasons=assignment.unassigned.counts(),
    )


def _bucket_stats(
    assignment: Assignment, text_N: NDArray[np.int32], config: BucketConfig
) -> list[BucketStats]:
    samples_K, long_K = np.zeros((2, len(assignment.buckets)), np.int64)
    padding_K = np.zeros(len(assignment.buckets))
    for part in parts(len(text_N)):
        bucket_N = assignment.bucket_of[part]
        for total_K, counted_N in (
            (samples_K, bucket_N >= 0),
            (long_K, text_N[part] > config.max_text_tokens),
        ):
            total_K += np.bincount(bucket_N[counted_N & (bucket_N >= 0)], minlength=len(total_K))
        inside_N = bucket_N >= 0
        missing_N = np.maximum(config.max_text_tokens - text_N[part][inside_N], 0)
        padding_K += np.bincount(bucket_N[inside_N], weights=missing_N, minlength=len(padding_K))
    return bucket_stats(
        assignment.buckets, assignment.lengths, assignment.batch_sizes, samples_K, padding_K, long_K, config
    )


def bucket_stats(
    buckets: Sequence[Bucket],
    lengths: Sequence[int],
    batch_sizes: Sequence[BatchSize],
    samples_K: NDArray[np.int64],
    padding_K: NDArray[np.float64],
    long_K: NDArray[np.int64],
    budgets: Budgets,
) -> list[BucketStats]:
    """Return the statistics of the buckets that hold samples, by rising S.

    Args:
        buckets: K shapes.
        lengths: S of each bucket.
        batch_sizes: B of each bucket.
        samples_K: number of samples.
        padding_K: tokens of padding of all samples.
        long_K: number of samples whose caption is truncated.
        budgets: limits of a microbatch.
    """
    length_K = np.array(lengths)
    batch_K = np.array([size.batch for size in batch_sizes])
    sample_cost_K = budgets.counted_cost.sample_s(length_K)
    batch_cost_K = seconds(budgets.counted_cost, batch_K, length_K)
    limit = budgets.cost_limit
    # Shares are of all samples with a bucket; costs of microbatches beside the dearest.
    used = sorted(np.flatnonzero(samples_K).tolist(), key=lambda index: (length_K[index], index))
    tokens = int(samples_K @ length_K)
    cost = float(samples_K @ sample_cost_K)
    largest = float(batch_cost_K[used].max(initial=0))
    return [
        BucketStats(
            **asdict(buckets[index]),
            samples=int(samples_K[index]),
            length=int(length_K[index]),
            batch=int(batch_K[index]),
            bound=batch_sizes[index].bound,
            microbatches=-(-int(samples_K[index]) // int(batch_K[index])),
            tokens=int(samples_K[index] * length_K[index]),
            token_share=int(samples_K[index] * length_K[index]) / tokens,
            cost_share=float(samples_K[index] * sample_cost_K[index]) / cost,
            microbatch_cost=float(batch_cost_K[index]) / largest,
            over_limit=None if limit is None else max(1.0, float(batch_cost_K[index]) / limit),
            long_captions=int(long_K[index]),
            bounds=batch_bounds(int(length_K[index]), budgets),
            padding_share=float(padding_K[index] / (samples_K[index] * length_K[index])),
        )
        for index in used
    ]


def _histogram(values: Callable[[slice], NDArray[Any]], count: int, ladder: tuple[float, ...]) -> Histogram:
    """Count values on the part of the ladder that they reach; values above it widen the last bin."""
    if not count:
        return Histogram([], [])
    counts, top = np.zeros(len(ladder), np.int64), ladder[0]
    for part in parts(count):
        values_N = values(part)
        counts += np.histogram(values_N, [*ladder, np.inf])[0]
        top = max(top, float(values_N.max()))
    edges = [*ladder, float(np.nextafter(top, np.inf))]
    filled = np.flatnonzero(counts)
    first, last = int(filled[0]), int(filled[-1])
    return Histogram([float(edge) for edge in edges[first : last + 2]], counts[first : last + 1].tolist())
