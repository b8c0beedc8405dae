"""Distribution of the sequence length S, as Arachne draws it (its figure 2): a logarithmic axis, and the mean."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reelweave.loader.buckets.stats import BucketStats

_BINS_PER_DOUBLING = 2


@dataclass(frozen=True)
class LengthDistribution:
    """Distribution of S of all samples; empty lists and None without samples.

    Attributes:
        edges: edges of bins of equal width on a logarithmic axis; a bin holds its lower edge.
        counts: number of samples of each bin.
        mean: mean of S.
        p50: smallest S that half of the samples do not exceed.
        p95: smallest S that 95 % of the samples do not exceed.
        least: shortest S.
        most: longest S.
        span: longest S over the shortest.
    """

    edges: list[float]
    counts: list[int]
    mean: float | None = None
    p50: int | None = None
    p95: int | None = None
    least: int | None = None
    most: int | None = None
    span: float | None = None


def length_distribution(buckets: Sequence[BucketStats]) -> LengthDistribution:
    """Return the distribution of S, which all samples of a bucket share."""
    if not buckets:
        return LengthDistribution([], [])
    length_K = np.array([bucket.length for bucket in buckets])
    samples_K = np.array([bucket.samples for bucket in buckets])
    # Samples by length, for percentiles.
    by_length = np.argsort(length_K, kind="stable")
    reach_K = np.cumsum(samples_K[by_length])
    # Bins of equal width on a logarithmic axis, from below the shortest to above the longest.
    shortest, longest = int(length_K.min()), int(length_K.max())
    first = int(np.floor(_BINS_PER_DOUBLING * np.log2(shortest)))
    last = int(np.floor(_BINS_PER_DOUBLING * np.log2(longest))) + 1
    edges = np.exp2(np.arange(first, last + 1) / _BINS_PER_DOUBLING)
    place_K = np.clip(np.searchsorted(edges, length_K, side="right") - 1, 0, len(edges) - 2)
    counts = np.bincount(place_K, weights=samples_K, minlength=len(edges) - 1)

    def percentile(share: int) -> int:
        return int(length_K[by_length][np.searchsorted(reach_K, reach_K[-1] * share / 100)])

    return LengthDistribution(
        edges=edges.tolist(),
        counts=counts.astype(np.int64).tolist(),
        mean=float(length_K @ samples_K / samples_K.sum()),
        p50=percentile(50),
        p95=percentile(95),
        least=shortest,
        most=longest,
        span=longest / shortest,
    )
