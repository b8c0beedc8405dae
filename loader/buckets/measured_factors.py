"""Factors by length between a cost model and measured times."""

from operator import itemgetter
from typing import NamedTuple

import numpy as np

from reelweave.loader.buckets.cost import Cost
from reelweave.loader.buckets.cost_fit import Timings

_ALIKE = 0.02  # relative tolerance within which lengths count as one
_MIN_TIMINGS = 8
_MIN_LENGTHS = 2  # a single one is planned alike with any factor
_MAX_LENGTHS = 64  # those that take most time
_MAX_ERROR = 0.02  # largest relative standard error of a factor that counts
_ERRORS = 3.0
_PER_DEVIATION = 1.4826  # median absolute deviations in a standard deviation of a normal distribution
_MEDIAN_ERROR = 1.2533  # standard error of a median, relative to that of a mean


class LengthFactors(NamedTuple):
    """Measured over predicted seconds by sequence length.

    Attributes:
        lengths: S, in tokens, rising.
        factors: factor of each length; 1 where it is not clear.
        error: mean of |factor - 1| over the measured time.
    """

    lengths: tuple[int, ...]
    factors: tuple[float, ...]
    error: float


def factors_by_length(cost: Cost, timings: Timings) -> LengthFactors | None:
    """Return the factors of the lengths that were measured well; None if these are fewer than two.

    The factor of a length is the median of measured over predicted seconds, so stragglers hardly count. One that is
    within three standard errors of 1 is 1, so that noise changes nothing.

    Args:
        cost: prediction.
        timings: measured microbatches.
    """
    sample_s = timings.batch * cost.sample_s(timings.length)
    usable = (timings.step_s > cost.fixed_s) & (sample_s > 0)
    timings, sample_s = timings.where(usable), sample_s[usable]
    ratio_n = (timings.step_s - cost.fixed_s) / sample_s
    group_n = np.round(np.log(timings.length) / _ALIKE).astype(np.int64)
    measured: list[tuple[float, int, float]] = []
    for group in np.unique(group_n).tolist():
        of_group = group_n == group
        ratios = ratio_n[of_group]
        factor = float(np.median(ratios))
        spread = _PER_DEVIATION * float(np.median(np.abs(ratios - factor)))
        error = _MEDIAN_ERROR * spread / np.sqrt(len(ratios))
        if len(ratios) < _MIN_TIMINGS or error > _MAX_ERROR * factor:
            continue
        clear = abs(factor - 1) > _ERRORS * error
        length = int(np.median(timings.length[of_group]))
        measured.append((float(timings.step_s[of_group].sum()), length, factor if clear else 1.0))
    # The lengths that take most time, by length.
    measured = sorted(sorted(measured, reverse=True)[:_MAX_LENGTHS], key=itemgetter(1))
    if len(measured) < _MIN_LENGTHS:
        return None
    spent, lengths, factors = zip(*measured, strict=True)
    error = float(np.average(np.abs(np.array(factors) - 1), weights=spent))
    return LengthFactors(lengths, factors, error)
