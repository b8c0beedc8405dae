"""Distribution of the sequence length S, as Arachne draws it (its figure 2): a logarithmic axis, and the mean."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_BINS_PER_DOUBLING = 2
_PERCENTILES = (50, 95)


def length_distribution(buckets: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a histogram of S of all samples, with its mean and percentiles.

    Args:
        buckets: rows of the bucket statistics: ``length`` and ``samples`` of each.

    Returns:
        ``edges`` and ``counts`` of bins of equal width on a logarithmic axis, where a bin holds its lower edge;
        ``mean``, ``p50``, ``p95``, ``least``, ``most``, and ``span``, the longest over the shortest. Empty lists and
        None without samples.
    """
    if not buckets:
        nothing = dict.fromkeys(
            ("mean", *(f"p{percentile}" for percentile in _PERCENTILES), "least", "most", "span")
        )
        return {"edges": [], "counts": [], **nothing}
    length_K = np.array([bucket["length"] for bucket in buckets])
    samples_K = np.array([bucket["samples"] for bucket in buckets])
    by_length = np.argsort(length_K, kind="stable")
    reach_K = np.cumsum(samples_K[by_length])
    shortest, longest = int(length_K.min()), int(length_K.max())
    first = int(np.floor(_BINS_PER_DOUBLING * np.log2(shortest)))
    last = int(np.floor(_BINS_PER_DOUBLING * np.log2(longest))) + 1
    edges = np.exp2(np.arange(first, last + 1) / _BINS_PER_DOUBLING)
    place_K = np.clip(np.searchsorted(edges, length_K, side="right") - 1, 0, len(edges) - 2)
    counts = np.bincount(place_K, weights=samples_K, minlength=len(edges) - 1)
    percentiles = {
        f"p{share}": int(length_K[by_length][np.searchsorted(reach_K, reach_K[-1] * share / 100)])
        for share in _PERCENTILES
    }
    return {
        "edges": edges.tolist(),
        "counts": counts.astype(np.int64).tolist(),
        "mean": float(length_K @ samples_K / samples_K.sum()),
        **percentiles,
        "least": shortest,
        "most": longest,
        "span": longest / shortest,
    }
