"""Cost models fitted to measured step times, with diagnostics of each fit."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reelweave.loader.base.arrays import Flags, Floats, IndexArray
from reelweave.loader.buckets.cost import Cost, LinearQuadraticCost, PowerCost, seconds
from reelweave.loader.buckets.measured_shapes import read_measured
from reelweave.loader.errors import UsageError

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
_RANKS, _MICROBATCHES, _STEPS = 128, 4, 16  # simulated cluster for the loss by prediction errors


@dataclass(frozen=True, eq=False)
class Timings:
    """Measured step times of microbatches.

    Attributes:
        batch: int64 [n], B of each microbatch.
        length: int64 [n], S of each microbatch.
        step_s: float64 [n], seconds without waiting for other ranks.
        rank: int64 [n], rank of each measurement; None if unknown.
    """

    batch: IndexArray
    length: IndexArray
    step_s: Floats
    rank: IndexArray | None = None

    def where(self, chosen: Flags | NDArray[np.intp]) -> "Timings":
        """Return the selected timings."""
        rank = None if self.rank is None else self.rank[chosen]
        return Timings(self.batch[chosen], self.length[chosen], self.step_s[chosen], rank)


@dataclass(frozen=True)
class CostFit:
    """Fitted cost model and diagnostics of the fit.

    Attributes:
        cost: fitted cost model.
        r2: coefficient of determination of the step times.
        mean_error: mean of |predicted / measured - 1| over held-out shapes, with the median time of each shape.
        worst_error: maximum of |predicted / measured - 1| over held-out shapes.
        worst_cell: (B, S) of the worst error.
        interval: half the width of the 95 % confidence interval of a predicted step time, relative, at the longest S.
        lost: share of time that 128 ranks with 4 microbatches of equal predicted cost each wait, because of
            the prediction errors. Shapes are drawn in proportion to their measured time.
        misfits: reasons against the model, in words.
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
        """Reasons against using the fit, in words; empty if it can be trusted."""
        if self.misfits or self.lost <= _LARGEST_LOSS:
            return self.misfits
        return (
            f"{_RANKS} ranks would lose {self.lost:.1%} of their time to its errors (at most {_LARGEST_LOSS:.0%}):"
            " measure every shape several times, their median counts",
        )

    def trusted_cost(self) -> Cost:
        """Return the fitted cost if it can be trusted.

        Raises:
            UsageError: the fit cannot be trusted; names every doubt.
        """
        if self.doubts:
            raise UsageError(f"the {self.cost.kind} cost cannot be trusted: {'; '.join(self.doubts)}")
        return self.cost


def read_timings(text: str, name: str) -> Timings:
    """Read timings from CSV with the columns batch, length and step_s; further columns are ignored.

    Args:
        text: content of the file.
        name: file name for messages.

    Raises:
        UsageError: a column is missing, a value is not a positive number, or there are no or too many rows.
    """
    batch, length, step_s = read_measured(text, name, _COLUMNS).T
    return Timings(batch.astype(np.int64), length.astype(np.int64), step_s)


def fit_linear_quadratic(timings: Timings) -> CostFit:
    """Fit a + b*B*S + c*B*S^2 by relative least squares, with non-negative coefficients, and judge the fit."""
    return _judge_fit(timings, linear_quadratic)


def linear_quadratic(timings: Timings) -> LinearQuadraticCost:
    """Fit the cost of `fit_linear_quadratic` without judging it."""
    tokens = (timings.batch * timings.length).astype(np.float64)
    columns = np.stack([np.ones_like(tokens), tokens, tokens * timings.length], axis=1)
    # Relative errors weigh 1k and 60k tokens by the same percentage.
    fixed, token, square = not_negative(columns / timings.step_s[:, None], np.ones_like(tokens))
    return LinearQuadraticCost(fixed_s=fixed, token_s=token, square_s=square)


def fit_power(timings: Timings) -> CostFit:
    """Fit a + b*B*S^p with the p in [1.6, 2.4] of maximum R^2 (AdaptiveLoad, section 3.2), and a, b >= 0."""
    return _judge_fit(timings, power)


def power(timings: Timings) -> Cost:
    """Fit the cost of `fit_power` without judging it."""
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
    """Solve non-negative least squares of a few columns by trying every subset."""
    count = columns.shape[1]
    scale = np.abs(columns).max(axis=0)
    best, min_error = np.zeros(count), float(values @ values)
    for size in range(1, count + 1):
        for used in itertools.combinations(range(count), size):
            part = columns[:, used] / scale[list(used)]
            solution, *_ = np.linalg.lstsq(part, values, rcond=None)
            error = float(np.square(part @ solution - values).sum())
            if (solution >= 0).all() and error < min_error:
                best, min_error = np.zeros(count), error
                best[list(used)] = solution / scale[list(used)]
    return best.tolist()


def _judge_fit(timings: Timings, fit: Callable[[Timings], Cost]) -> CostFit:
    lengths = np.unique(timings.length)
    doubts = _too_little(lengths)
    cost = fit(timings)
    if doubts:
        return CostFit(cost, _r2(cost, timings), np.inf, np.inf, (0, 0), np.inf, 1.0, tuple(doubts))
    # Judge by lengths that the fit has not seen, with the median of each shape.
    predicted_s = held_out_s(timings, fit)
    measured, first = per_shape(timings)
    predicted_s = predicted_s[first]
    errors = np.abs(predicted_s / measured.step_s - 1)
    worst = int(errors.argmax())
    mean_error, worst_error = float(errors.mean()), float(errors[worst])
    cell = int(measured.batch[worst]), int(measured.length[worst])
    if mean_error > _LARGEST_MEAN_ERROR:
        doubts.append(f"shapes it has not seen are off by {mean_error:.0%} on average")
    if worst_error > _LARGEST_WORST_ERROR:
        doubts.append(f"B={cell[0]}, S={cell[1]} is off by {worst_error:.0%}")
    # Times that do not depend on the shape are those of something else.
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
        lost=_lost_share(measured.step_s, predicted_s),
        misfits=tuple(doubts),
    )


def _too_little(lengths: IndexArray) -> list[str]:
    doubts = []
    if len(lengths) < _LEAST_LENGTHS:
        doubts.append(f"{len(lengths)} sequence lengths were measured, and {_LEAST_LENGTHS} are needed")
    elif lengths[-1] < _LEAST_SPAN * lengths[0]:
        doubts.append(
            f"S was measured from {lengths[0]} to {lengths[-1]} only; the longest should be {_LEAST_SPAN:g} times"
            " the shortest"
        )
    return doubts


def held_out_s(timings: Timings, fit: Callable[[Timings], Cost]) -> Floats:
    """Return predicted seconds of each timing by a fit without the timings of its length (cross-validation).

    Args:
        timings: timings of two lengths at least.
        fit: `linear_quadratic` or `power`.
    """
    predicted_s, lengths = np.zeros(len(timings.step_s)), np.unique(timings.length)
    for fold in np.array_split(lengths, min(_FOLDS, len(lengths))):
        out = np.isin(timings.length, fold)
        predicted_s[out] = seconds(fit(timings.where(~out)), timings.batch[out], timings.length[out])
    return predicted_s


def per_shape(timings: Timings) -> tuple[Timings, IndexArray]:
    """Return the median timing of each shape, and the place of one of its timings; int64 [shapes]."""
    shapes = np.stack([timings.batch, timings.length])
    _, first, shape_n = np.unique(shapes, axis=1, return_index=True, return_inverse=True)
    shape_n = shape_n.reshape(-1)
    order = np.lexsort((timings.step_s, shape_n))
    counts = np.bincount(shape_n)
    begin = np.cumsum(counts) - counts
    low, high = order[begin + (counts - 1) // 2], order[begin + counts // 2]
    median_s = (timings.step_s[low] + timings.step_s[high]) / 2
    return Timings(timings.batch[first], timings.length[first], median_s), first


def _lost_share(measured_s: Floats, predicted_s: Floats) -> float:
    """Return the share of time lost to prediction errors, see `CostFit`."""
    generator = np.random.Generator(np.random.Philox(0))
    drawn = generator.choice(
        len(measured_s), (_STEPS, _RANKS, _MICROBATCHES), p=measured_s / measured_s.sum()
    )
    loads_SR = (measured_s / predicted_s)[drawn].mean(axis=2)
    return float(1 - loads_SR.mean(axis=1).sum() / loads_SR.max(axis=1).sum())


def _r2(cost: Cost, timings: Timings) -> float:
    residual = np.square(seconds(cost, timings.batch, timings.length) - timings.step_s).sum()
    spread = np.square(timings.step_s - timings.step_s.mean()).sum()
    return float(1 - residual / spread) if spread > 0 else 0.0


def _interval(timings: Timings, fit: Callable[[Timings], Cost]) -> float:
    """Return the relative half width of the confidence interval, by a deterministic bootstrap."""
    generator = np.random.Generator(np.random.Philox(0))
    longest = int(timings.length.max())
    count = len(timings.step_s)
    predicted = [
        float(seconds(fit(timings.where(generator.integers(0, count, count))), 1, longest))
        for _ in range(_RESAMPLES)
    ]
    low, middle, high = np.percentile(predicted, [2.5, 50, 97.5])
    return float((high - low) / 2 / middle)
