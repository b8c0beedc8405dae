"""Common parts of all cost fits: held-out rows, errors, and lines."""

import numpy as np

from reelweave.loader.base.arrays import Flags, Floats, IndexArray
from reelweave.loader.buckets.cost_fit import not_negative
from reelweave.loader.errors import UsageError
from reelweave.train.cascade.costs.cost_model import HeldOutError

LEAST_SHAPES = 5
_EVERY, _FIRST = 4, 2  # smallest and largest shapes stay in the fit


def held_out(keys_nK: IndexArray, what: str) -> Flags:
    """Select every fourth shape, with all of its rows, bool [n].

    Args:
        keys_nK: keys that identify shapes, in sorting order.
        what: name of the measured module, for messages.

    Raises:
        UsageError: there are too few shapes.
    """
    distinct, place_n = np.unique(keys_nK, axis=0, return_inverse=True)
    if len(distinct) < LEAST_SHAPES:
        raise UsageError(
            f"{what} has {len(distinct)} shapes, and {LEAST_SHAPES} are needed: one in four is held out to judge the"
            " fit; give stream.buckets more frames or sizes"
        )
    return np.asarray(place_n.reshape(-1) % _EVERY == _FIRST)


def error_of(predicted_n: Floats, measured_n: Floats) -> HeldOutError:
    """Return the error on held-out rows."""
    errors_n = np.abs(predicted_n / measured_n - 1)
    return HeldOutError(mean=float(errors_n.mean()), max=float(errors_n.max()), rows=len(errors_n))


def relative_fit(columns_nC: Floats, values_n: Floats) -> list[float]:
    """Return nonnegative coefficients of least squared relative errors."""
    return not_negative(columns_nC / values_n[:, None], np.ones_like(values_n))


def line_above(sizes_n: Floats, peaks_n: Floats) -> tuple[float, float]:
    """Return intercept and slope of a line above all peaks."""
    columns_n2 = np.stack([np.ones_like(sizes_n), sizes_n], axis=1)
    # A peak of 0 bytes has no relative error.
    start, slope = relative_fit(columns_n2, np.maximum(peaks_n, 1.0))
    return start + max(0.0, float((peaks_n - start - slope * sizes_n).max())), slope
