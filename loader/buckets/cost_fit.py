"""Cost models fitted to measured step times, with what speaks for and against each fit."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loader.base.arrays import Flags, Floats, Places
from loader.buckets.cost import Cost, LinearQuadraticCost, PowerCost, seconds
from loader.buckets.measured_shapes import read_measured
from loader.errors import UsageError

_EXPONENTS = np.round(np.arange(1.6, 2.4 + 1e-9, 0.01), 2)  # AdaptiveLoad's interval
_COLUMNS = ("batch", "length", "step_s")
_FOLDS = 20
_RESAMPLES = 200
_LEAST_LENGTHS = 5
_LEAST_SPAN = 4.0
_LARGEST_MEAN_ERROR = 0.10
_LARGEST_WORST_ERROR = 0.30
_LEAST_GROWTH = 1.2
_LARGEST_LOSS = 0.05
_RANKS, _MICROBATCHES, _STEPS = 128, 4, 16  # of the steps that say what errors cost


@dataclass(frozen=True, eq=False)
class Timings:
    """Measured steps.

    Attributes:
        batch: int64 [n], B of each.
        length: int64 [n], S of each.
        step_s: float64 [n], seconds without the wait for other ranks.
        rank: int64 [n], which rank measured each; None where that is not known.
    """

    batch: Places
    length: Places
    step_s: Floats
    rank: Places | None = None

    def where(self, chosen: Flags | NDArray[np.intp]) -> "Timings":
        """Some of them."""
        rank = None if self.rank is None else self.rank[chosen]
        return Timings(self.batch[chosen], self.length[chosen], self.step_s[chosen], rank)


@dataclass(frozen=True)
class CostFit:
    """A fitted cost model and how far to trust it.

    Attributes:
        cost: the model.
        r2: share of the variance of the step times that it explains.
        mean_error: mean of |predicted / measured - 1| of shapes it was not fitted to. Of times of one shape the
            median counts.
        worst_error: the largest of these.
        worst_cell: (B, S) where that is.
        interval: half the width of the 95 % interval of a predicted step time, relative, at the longest S.
        lost: share of the time that 128 ranks with 4 equally dear microbatches each wait, because these really take
            measured / predicted times as long. A shape is drawn with its share of the time.
        misfits: why the model does not describe the timings, in words.
    """

    cost: Cost
    r2: float
    mean_error: float
    worst_error: float
    worst_cell: tuple[int, int]
    interval: float
    lost: float
    misfits: tuple[str, ...]

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why the fit should not be used, in words; empty when it may."""
        if self.misfits or self.lost <= _LARGEST_LOSS:
            return self.misfits
        return (
            f"{_RANKS} ranks would lose {self.lost:.1%} of their time to its errors (at most {_LARGEST_LOSS:.0%}):"
            " measure every shape several times, their median counts",
        )

    def trusted(self) -> Cost:
        """The model.

        Raises:
            UsageError: it should not be used; every doubt is named.
        """
        if self.doubts:
            raise UsageError(f"the {self.cost.kind} cost cannot be trusted: {'; '.join(self.doubts)}")
        return self.cost


def read_timings(text: str, name: str) -> Timings:
    """Timings from CSV with the columns batch, length and step_s; further columns are passed over.

    Args:
        text: of the file.
        name: of the file, for messages.

    Raises:
        UsageError: a column is missing, a value is no positive number, or there are no or too many rows.
    """
    batch, length, step_s = read_measured(text, name, _COLUMNS).T
    return Timings(batch.astype(np.int64), length.astype(np.int64), step_s)


def fit_linear_quadratic(timings: Timings) -> CostFit:
    """Fits a + b*B*S + c*B*S^2 in least relative squares, none of the three below 0."""
    return _judged(timings, linear_quadratic)


def linear_quadratic(timings: Timings) -> LinearQuadraticCost:
    """The cost itself, unjudged; see `fit_linear_quadratic`."""
    tokens = (timings.batch * timings.length).astype(np.float64)
    columns = np.stack([np.ones_like(tokens), tokens, tokens * timings.length], axis=1)
    # Relative errors: what is wanted is the same percentage at 1k and at 60k tokens.
    fixed, token, square = not_negative(columns / timings.step_s[:, None], np.ones_like(tokens))
    return LinearQuadraticCost(fixed_s=fixed, token_s=token, square_s=square)


def fit_power(timings: Timings) -> CostFit:
    """Fits a + b*B*S^p: the p in [1.6, 2.4] of the largest R^2 (AdaptiveLoad, section 3.2), a and b not below 0."""
    return _judged(timings, _power)


def _power(timings: Timings) -> Cost:
    best: tuple[float, Cost] | None = None
    for exponent in _EXPONENTS.tolist():
        work = timings.batch * timings.length.astype(np.float64) ** exponent
        fixed, scale = not_negative(np.stack([np.ones_like(work), work], axis=1), timings.step_s)
        cost = PowerCost(fixed_s=fixed, scale_s=scale, exponent=exponent)
        r2 = _r2(cost, timings)
        if best is None or r2 > best[0]:
            best = r2, cost
    assert best is not None
    return best[1]


def not_negative(columns: Floats, values: Floats) -> list[float]:
    """Least squares with no coefficient below 0, of a few columns: every set of them is tried."""
    count = columns.shape[1]
    scale = np.abs(columns).max(axis=0)
    best, least = np.zeros(count), float(values @ values)
    for size in range(1, count + 1):
        for used in itertools.combinations(range(count), size):
            part = columns[:, used] / scale[list(used)]
            found, *_ = np.linalg.lstsq(part, values, rcond=None)
            left = float(np.square(part @ found - values).sum())
            if (found >= 0).all() and left < least:
                best, least = np.zeros(count), left
                best[list(used)] = found / scale[list(used)]
    return best.tolist()


def _judged(timings: Timings, fit: Callable[[Timings], Cost]) -> CostFit:
    lengths = np.unique(timings.length)
    doubts = _too_little(lengths)
    cost = fit(timings)
    if doubts:
        return CostFit(cost, _r2(cost, timings), np.inf, np.inf, (0, 0), np.inf, 1.0, tuple(doubts))
    predicted_s = _held_out(timings, fit, lengths)
    measured, first = _per_shape(timings)
    predicted_s = predicted_s[first]
    errors = np.abs(predicted_s / measured.step_s - 1)
    worst = int(errors.argmax())
    mean_error, worst_error = float(errors.mean()), float(errors[worst])
    cell = int(measured.batch[worst]), int(measured.length[worst])
    if mean_error > _LARGEST_MEAN_ERROR:
        doubts.append(f"shapes it has not seen are off by {mean_error:.0%} on average")
    if worst_error > _LARGEST_WORST_ERROR:
        doubts.append(f"B={cell[0]}, S={cell[1]} is off by {worst_error:.0%}")
    fitted_s = seconds(cost, timings.batch, timings.length)
    if fitted_s.max() < _LEAST_GROWTH * fitted_s.min():
        doubts.append(
            f"times hardly grow with B and S (by {fitted_s.max() / fitted_s.min() - 1:.0%} over all shapes): were they"
            " taken before the device was done?"
        )
    return CostFit(
        cost=cost,
        r2=_r2(cost, timings),
        mean_error=mean_error,
        worst_error=worst_error,
        worst_cell=cell,
        interval=_interval(timings, fit),
        lost=_lost(measured.step_s, predicted_s),
        misfits=tuple(doubts),
    )


def _too_little(lengths: Places) -> list[str]:
    doubts = []
    if len(lengths) < _LEAST_LENGTHS:
        doubts.append(f"{len(lengths)} sequence lengths were measured, and {_LEAST_LENGTHS} are needed")
    elif lengths[-1] < _LEAST_SPAN * lengths[0]:
        doubts.append(
            f"S was measured from {lengths[0]} to {lengths[-1]} only; the longest should be {_LEAST_SPAN:g} times"
            " the shortest"
        )
    return doubts


def _held_out(timings: Timings, fit: Callable[[Timings], Cost], lengths: Places) -> Floats:
    """Seconds of each timing's shape by a fit that saw none of its length."""
    predicted_s = np.zeros(len(timings.step_s))
    for fold in np.array_split(lengths, min(_FOLDS, len(lengths))):
        out = np.isin(timings.length, fold)
        predicted_s[out] = seconds(fit(timings.where(~out)), timings.batch[out], timings.length[out])
    return predicted_s


def _per_shape(timings: Timings) -> tuple[Timings, Places]:
    """Return one timing for each shape, the median of its own, and the place of one of these; int64 [shapes]."""
    shapes = np.stack([timings.batch, timings.length])
    _, first, shape_n = np.unique(shapes, axis=1, return_index=True, return_inverse=True)
    shape_n = shape_n.reshape(-1)
    order = np.lexsort((timings.step_s, shape_n))
    counts = np.bincount(shape_n)
    begin = np.cumsum(counts) - counts
    low, high = order[begin + (counts - 1) // 2], order[begin + counts // 2]
    median_s = (timings.step_s[low] + timings.step_s[high]) / 2
    return Timings(timings.batch[first], timings.length[first], median_s), first


def _lost(measured_s: Floats, predicted_s: Floats) -> float:
    """Return the share of time lost to errors of the predictions; see `CostFit`."""
    generator = np.random.Generator(np.random.Philox(0))
    drawn = generator.choice(
        len(measured_s), (_STEPS, _RANKS, _MICROBATCHES), p=measured_s / measured_s.sum()
    )
    loads_SR = (measured_s / predicted_s)[drawn].mean(axis=2)
    return float(1 - loads_SR.mean(axis=1).sum() / loads_SR.max(axis=1).sum())


def _r2(cost: Cost, timings: Timings) -> float:
    left = np.square(seconds(cost, timings.batch, timings.length) - timings.step_s).sum()
    spread = np.square(timings.step_s - timings.step_s.mean()).sum()
    return float(1 - left / spread) if spread > 0 else 0.0


def _interval(timings: Timings, fit: Callable[[Timings], Cost]) -> float:
    """By refitting to resampled timings (bootstrap); the same on every run."""
    generator = np.random.Generator(np.random.Philox(0))
    longest = int(timings.length.max())
    count = len(timings.step_s)
    predicted = [
        float(seconds(fit(timings.where(generator.integers(0, count, count))), 1, longest))
        for _ in range(_RESAMPLES)
    ]
    low, middle, high = np.percentile(predicted, [2.5, 50, 97.5])
    return float((high - low) / 2 / middle)
