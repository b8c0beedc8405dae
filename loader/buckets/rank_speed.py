"""Straggler detection: ranks that are slow or fast for every shape.

A straggler takes, say, 1.3 times as long as the others for every shape. Its times do not belong in the cost
of shapes. No plan can balance a step around an unknown straggler, so its number is reported.
"""

import numpy as np

from reelweave.loader.base.arrays import Floats, IndexArray
from reelweave.loader.buckets.cost_fit import Timings

_ALIKE = 0.02  # relative tolerance within which lengths count as one shape
_LEAST_TIMINGS = 20
_ROUNDS = 10
_ERRORS = 4.0
_PER_DEVIATION = 1.4826  # median absolute deviations in a standard deviation of a normal distribution
_MEDIAN_ERROR = 1.2533  # standard error of a median, relative to that of a mean


def odd_ranks(timings: Timings, factor: float) -> dict[int, float]:
    """Return the ratio of a rank's times to the median rank's for the same shapes, for ranks that clearly differ.

    No cost model is involved: ranks are compared on shapes that several of them ran (equal B, S within 2 %). The
    logarithm of a time is modelled as the sum of a shape effect and a rank effect. Median polish (Tukey, "Exploratory
    Data Analysis", 1977, chapter 10), which resists outliers, fits both. With equally many slow and fast ranks, the
    fast ones are the reference.

    Args:
        timings: timings with ranks; without ranks the result is empty.
        factor: ratio above 1; ranks between its inverse and it are normal.
    """
    if timings.rank is None:
        return {}
    length_n = np.round(np.log(timings.length) / _ALIKE).astype(np.int64)
    shape_n = _number_values(timings.batch * (length_n.max(initial=0) + 1) + length_n)[1]
    shape_c = np.unique(np.stack([shape_n, timings.rank]), axis=1)[0]
    shared_n = np.bincount(shape_c)[shape_n] > 1
    if not shared_n.any():
        return {}
    log_n = np.log(timings.step_s[shared_n])
    ranks_R, rank_n = _number_values(timings.rank[shared_n])
    shape_n = _number_values(shape_n[shared_n])[1]
    # Each rank counts once per shape, however often it ran it.
    cells_c, cell_n = _number_values(shape_n * len(ranks_R) + rank_n)
    shape_c, rank_c = np.divmod(cells_c, len(ranks_R))
    log_c = _medians(log_n, cell_n)
    found_R = np.zeros(len(ranks_R))
    for _ in range(_ROUNDS):
        level_S = _medians(log_c - found_R[rank_c], shape_c)
        found_R = _medians(log_n - level_S[shape_n], rank_n)
        found_R -= np.sort(found_R)[(len(found_R) - 1) // 2]
    left_n, count_R = np.abs(log_n - level_S[shape_n] - found_R[rank_n]), np.bincount(rank_n)
    error_R = _MEDIAN_ERROR * _PER_DEVIATION * _medians(left_n, rank_n) / np.sqrt(count_R)
    size_R = np.abs(found_R)
    odd_R = (size_R >= np.log(factor)) & (size_R > _ERRORS * error_R) & (count_R >= _LEAST_TIMINGS)
    return dict(zip(ranks_R[odd_R].tolist(), np.exp(found_R[odd_R]).tolist(), strict=True))


def _number_values(value_n: IndexArray) -> tuple[IndexArray, IndexArray]:
    """Return the distinct values, and the place of each value among them."""
    values, number_n = np.unique(value_n, return_inverse=True)
    return values, number_n.reshape(-1)


def _medians(value_n: Floats, group_n: IndexArray) -> Floats:
    """Return the median of each group 0 to the largest; all groups have members."""
    order_n = np.lexsort((value_n, group_n))
    sorted_n, count_g = value_n[order_n], np.bincount(group_n)
    first_g = np.cumsum(count_g) - count_g
    low_g, high_g = first_g + (count_g - 1) // 2, first_g + count_g // 2
    return np.asarray((sorted_n[low_g] + sorted_n[high_g]) / 2)
