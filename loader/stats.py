"""Every number a bucket report shows, from the index alone."""

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from loader.buckets import Assignment, BucketConfig, assign
from loader.cost import seconds
from loader.tokens import sequence_length

_DURATION_EDGES_S = (0, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 45, 60, 90, 120, 300, 600, 1800, 3600)
_SHORT_SIDE_EDGES_PX = (0, 144, 240, 360, 480, 540, 720, 1080, 1440, 2160, 4320)
_TOKEN_EDGES = (0, *(base * 10**power for power in range(2, 7) for base in (1, 2, 5)))


@dataclass(frozen=True)
class BucketStats:
    """One bucket that holds samples.

    Attributes:
        frames, height, width: its shape.
        samples: in it.
        length: S, tokens of one sample as trained, text counted at its cap.
        batch: B, samples of a microbatch.
        bound: what decides B: memory, compute, max_batch, or one.
        microbatches: of an epoch, before any are halved to even out ranks.
        tokens: samples x S.
        token_share: of the tokens of all buckets.
        cost_share: the samples' cost over that of all buckets.
        microbatch_cost: of a full microbatch over the largest of any bucket here; spread between buckets is what
            ranks wait for.
        over_limit: how many times M_comp or the target step time a microbatch costs, at least 1; None without a bound.
        long_captions: samples whose caption is longer than ``max_text_tokens``.
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


@dataclass(frozen=True)
class Histogram:
    """Counts per bin: bin i holds values from edges[i] up to, not including, edges[i + 1]."""

    edges: list[float]
    counts: list[int]


@dataclass(frozen=True)
class DatasetStats:
    """A dataset as the buckets see it.

    Attributes:
        samples: in the index.
        assigned: of them, in a bucket.
        hours: of all samples.
        tokens: of the assigned samples as trained, samples x S.
        buckets: those that hold samples, shortest S first.
        duration_s: histogram over all samples.
        short_side_px: of all samples, the smaller of height and width.
        clip_tokens: of all samples, S at the clip's own shape: what cutting and shrinking start from.
        unassigned: {key, reason} of each sample in no bucket.
        unassigned_reasons: how many samples have each reason.
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
        """The same as plain dicts and lists, ready for JSON."""
        return asdict(self)


def dataset_stats(index: pa.Table, config: BucketConfig) -> DatasetStats:
    """Statistics of an index under a bucket configuration.

    Args:
        index: one row per sample; the columns key, frames, height, width, duration_s, text_tokens are read.
        config: shapes and budgets.
    """
    frames_N, height_N, width_N, duration_N, text_N = (
        index.column(name).to_numpy() for name in ("frames", "height", "width", "duration_s", "text_tokens")
    )
    assignment = assign(index, config)
    buckets = _bucket_stats(assignment, text_N, config)
    clip_tokens_N = sequence_length(
        np.minimum(text_N, config.max_text_tokens), frames_N, height_N, width_N, config.compression
    )
    return DatasetStats(
        samples=len(index),
        assigned=len(index) - len(assignment.unassigned),
        hours=float(duration_N.sum()) / 3600,
        tokens=sum(bucket.tokens for bucket in buckets),
        buckets=buckets,
        duration_s=_histogram(duration_N, _DURATION_EDGES_S),
        short_side_px=_histogram(np.minimum(height_N, width_N), _SHORT_SIDE_EDGES_PX),
        clip_tokens=_histogram(clip_tokens_N, _TOKEN_EDGES),
        unassigned=[{"key": key, "reason": reason} for key, reason in assignment.unassigned],
        unassigned_reasons=dict(Counter(reason for _, reason in assignment.unassigned).most_common()),
    )


def _bucket_stats(
    assignment: Assignment, text_N: NDArray[np.int64], config: BucketConfig
) -> list[BucketStats]:
    assigned_N = assignment.bucket_of >= 0
    places = len(assignment.buckets)
    samples_K = np.bincount(assignment.bucket_of[assigned_N], minlength=places)
    long_K = np.bincount(
        assignment.bucket_of[assigned_N & (text_N > config.max_text_tokens)], minlength=places
    )
    length_K = np.array(assignment.lengths)
    batch_K = np.array([size.batch for size in assignment.batch_sizes])
    sample_cost_K = config.counted_cost.sample_s(length_K)
    batch_cost_K = seconds(config.counted_cost, batch_K, length_K)
    limit = config.cost_limit
    used = sorted(np.flatnonzero(samples_K).tolist(), key=lambda place: (length_K[place], place))
    tokens = int(samples_K @ length_K)
    cost = float(samples_K @ sample_cost_K)
    largest = float(batch_cost_K[used].max(initial=0))
    return [
        BucketStats(
            **asdict(assignment.buckets[place]),
            samples=int(samples_K[place]),
            length=int(length_K[place]),
            batch=int(batch_K[place]),
            bound=assignment.batch_sizes[place].bound,
            microbatches=-(-int(samples_K[place]) // int(batch_K[place])),
            tokens=int(samples_K[place] * length_K[place]),
            token_share=int(samples_K[place] * length_K[place]) / tokens,
            cost_share=float(samples_K[place] * sample_cost_K[place]) / cost,
            microbatch_cost=float(batch_cost_K[place]) / largest,
            over_limit=None if limit is None else max(1.0, float(batch_cost_K[place]) / limit),
            long_captions=int(long_K[place]),
        )
        for place in used
    ]


def _histogram(values_N: NDArray[Any], ladder: tuple[float, ...]) -> Histogram:
    """Counts on the part of the ladder that the values reach; a value above it widens the last bin."""
    if not len(values_N):
        return Histogram([], [])
    top = float(values_N.max())
    edges = [*ladder, np.nextafter(top, np.inf)] if top >= ladder[-1] else [float(edge) for edge in ladder]
    counts, _ = np.histogram(values_N, edges)
    filled = np.flatnonzero(counts)
    first, last = int(filled[0]), int(filled[-1])
    return Histogram([float(edge) for edge in edges[first : last + 2]], counts[first : last + 1].tolist())
