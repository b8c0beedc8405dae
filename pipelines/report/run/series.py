"""Values over steps, in bins that widen as a run grows."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

MOST_BINS = 400
"""Maximum number of bins; a longer run has wider ones."""

_TREND_SHARE = 20  # a trend is the mean of a twentieth of the bins


@dataclass(frozen=True)
class BinnedCurve:
    """One value in each bin; None where a bin has none.

    Attributes:
        mean: mean of the bin.
        low: lowest value.
        high: highest value.
    """

    mean: list[float | None]
    low: list[float | None]
    high: list[float | None]


@dataclass(frozen=True)
class Series:
    """Curves over the same bins.

    Attributes:
        width: steps in a bin: a power of two, 1 where each step is shown.
        step: last recorded step of each bin.
        curves: curves by name.
    """

    width: int
    step: list[int]
    curves: dict[str, BinnedCurve] = field(default_factory=dict)

    def points(self, name: str) -> list[tuple[int, float]]:
        """Return (step, mean) of a curve where it has values; nothing for an unknown one."""
        curve = self.curves.get(name)
        means = curve.mean if curve else []
        return [(step, mean) for step, mean in zip(self.step, means, strict=False) if mean is not None]

    def trend(self, name: str) -> list[tuple[int, float]]:
        """Return the trailing mean of a curve over a twentieth of its bins."""
        points = self.points(name)
        window = max(1, len(points) // _TREND_SHARE)
        means = np.array([mean for _, mean in points])
        sums = np.concatenate([[0.0], np.cumsum(means)])
        ends = np.arange(1, len(means) + 1)
        begins = np.maximum(0, ends - window)
        smooth = (sums[ends] - sums[begins]) / np.maximum(1, ends - begins)
        return [(step, float(value)) for (step, _), value in zip(points, smooth, strict=True)]


class Bins:
    """Means and extremes of columns by bins of steps, in memory that does not grow with the run.

    Bins hold as many steps as the smallest power of two that needs no more than `MOST_BINS` of them. The result
    does not depend on how the rows were divided over calls.

    Args:
        names: names of the columns.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._width = 1
        self._step_B = np.zeros(0, np.int64)
        # Sum of weighted values, sum of weights, lowest, highest.
        self._sums_4CB = np.zeros((4, len(names), 0))

    def add(
        self,
        step_N: NDArray[np.int64],
        values_CN: NDArray[np.float64],
        weights_CN: NDArray[np.float64] | float = 1.0,
    ) -> None:
        """Add rows of rising steps, all behind those before; NaN is no value.

        Args:
            step_N: steps, from 0: a baseline, which has a bin of its own.
            values_CN: a row for each column.
            weights_CN: weights in the mean.
        """
        if not len(step_N):
            return
        known_CN = np.isfinite(values_CN)
        weights = np.where(known_CN, weights_CN, 0.0)
        new_4CN = np.stack(
            [
                np.where(known_CN, values_CN, 0.0) * weights,
                weights,
                np.where(known_CN, values_CN, np.inf),
                np.where(known_CN, values_CN, -np.inf),
            ]
        )
        self._step_B = np.concatenate([self._step_B, step_N])
        self._sums_4CB = np.concatenate([self._sums_4CB, new_4CN], axis=2)
        while self._merge() > MOST_BINS:
            self._width *= 2

    def series(self) -> Series:
        """Return all that was added."""
        total_CB, weight_CB, low_CB, high_CB = self._sums_4CB
        mean_CB = total_CB / np.where(weight_CB > 0, weight_CB, np.nan)
        return Series(
            self._width,
            self._step_B.tolist(),
            {
                name: BinnedCurve(_plain(mean_CB[c]), _plain(low_CB[c]), _plain(high_CB[c]))
                for c, name in enumerate(self._names)
            },
        )

    def _merge(self) -> int:
        """Merge rows of one bin; return the number of bins."""
        bin_B = (self._step_B - 1) // self._width
        starts = np.flatnonzero(np.diff(bin_B, prepend=bin_B[:1] - 1))
        if len(starts) < len(bin_B):
            total, weight, low, high = self._sums_4CB
            self._sums_4CB = np.stack(
                [
                    np.add.reduceat(total, starts, axis=1),
                    np.add.reduceat(weight, starts, axis=1),
                    np.minimum.reduceat(low, starts, axis=1),
                    np.maximum.reduceat(high, starts, axis=1),
                ]
            )
            self._step_B = self._step_B[np.append(starts[1:], len(bin_B)) - 1]
        return len(self._step_B)


class NamedBins:
    """Bins of values whose names are only known as they come, such as losses of buckets.

    Args:
        max_names: maximum number of names; others are counted in `left_out`.
    """

    def __init__(self, max_names: int) -> None:
        self._most = max_names
        self._bins: dict[str, Bins] = {}
        self._rows: dict[str, list[tuple[int, float, float]]] = {}
        self._last: dict[str, int] = {}
        self.left_out: set[str] = set()

    def add(self, name: str, step: int, value: float, weight: float) -> None:
        """Add one value of a step behind those of before; repeated steps are ignored."""
        if name not in self._bins:
            if len(self._bins) == self._most:
                self.left_out.add(name[:200])
                self.left_out = set(sorted(self.left_out)[: self._most])
                return
            self._bins[name], self._rows[name], self._last[name] = Bins(["loss"]), [], -1
        if step <= self._last[name]:
            return
        self._last[name] = step
        self._rows[name].append((step, value, weight))
        if len(self._rows[name]) >= MOST_BINS:
            self._flush(name)

    def series(self) -> dict[str, Series]:
        """Return a series with the one curve "loss" for each name."""
        for name in self._bins:
            self._flush(name)
        return {name: bins.series() for name, bins in self._bins.items()}

    def _flush(self, name: str) -> None:
        rows, self._rows[name] = self._rows[name], []
        if rows:
            step, value, weight = zip(*rows, strict=True)
            self._bins[name].add(
                np.array(step, np.int64), np.array([value], float), np.array([weight], float)
            )


def _plain(values_B: NDArray[np.float64]) -> list[float | None]:
    return [value if np.isfinite(value) else None for value in values_B.tolist()]
