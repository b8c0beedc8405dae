"""Closed loop: refit the cost model to step times measured in training.

AdaptiveLoad (section 3.2) names such a loop and gives no rule. Here, at each set point the cost is fitted to the
timings since the last one, without outliers. The new cost replaces the old one only if it explains the timings clearly
better, so noise alone changes nothing. Plans never change between set points. Ranks that are slow for every shape are
reported and their times rescaled; otherwise their number of samples would distort the fitted cost of shapes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from pydantic import Field

from reelweave.loader.base.arrays import Floats
from reelweave.loader.buckets.cost import Cost, LinearQuadraticCost, MeasuredCost, PowerCost, seconds
from reelweave.loader.buckets.cost_fit import Timings, fit_linear_quadratic, linear_quadratic
from reelweave.loader.buckets.measured_factors import factors_by_length
from reelweave.loader.buckets.rank_speed import odd_ranks
from reelweave.loader.settings import Settings

_TRIMS = 3
_NAMED = 8  # slow ranks listed in the log
_PER_DEVIATION = 1.4826  # median absolute deviations in a standard deviation of a normal distribution


class RecalibrateConfig(Settings):
    """Set points at which measured step times may replace the cost model."""

    every_steps: int = Field(200, ge=1, description="optimizer steps between set points")
    min_timings: int = Field(100, ge=10, description="measured microbatches needed to change the cost")
    keep_error: float = Field(
        0.02,
        ge=0,
        description="median relative error up to which the current cost is kept without a new fit, and mean"
        " error of its sequence lengths up to which none is corrected by itself",
    )
    improvement: float = Field(
        0.7,
        gt=0,
        lt=1,
        description="a new cost must have a median error below this share of the old one's",
    )
    outliers: float = Field(
        3.0, gt=1, description="standard deviations beyond which a timing is left out of the fit"
    )
    odd_rank: float = Field(
        1.15,
        gt=1,
        description="ratio of a rank's times to the median rank's for the same shapes. Ranks above it, or below its"
        " inverse, are reported, and their timings rescaled",
    )


@dataclass(frozen=True)
class Recalibration:
    """Outcome of recalibration at a set point.

    Attributes:
        cost: cost model for the following steps.
        changed: True if `cost` is new.
        reason: explanation for the log.
        error: median of |predicted / measured - 1| with ``cost``.
        odd_ranks: ratio of a rank's time to the median rank's for the same shapes, for ranks that deviate.
    """

    cost: Cost
    changed: bool
    reason: str
    error: float
    odd_ranks: Mapping[int, float] = field(default_factory=dict)


def recalibrate(current: Cost, timings: Timings, config: RecalibrateConfig) -> Recalibration:
    """Keep or replace a cost; a pure function, so every rank with the same timings decides the same.

    Args:
        current: cost that the measured steps were planned with.
        timings: microbatches measured since the last set point, on all ranks.
        config: thresholds for replacing the cost.
    """
    count = len(timings.step_s)
    if count < config.min_timings:
        return Recalibration(
            current,
            False,
            f"{count} of {config.min_timings} microbatches measured since the last set point: more steps from one to"
            " the next measure enough",
            float("nan"),
        )
    odd = odd_ranks(timings, config.odd_rank)
    decided = _decide(current, _at_one_speed(timings, odd), config)
    return replace(decided, reason="; ".join([decided.reason, *_in_words(odd)]), odd_ranks=odd)


def _decide(current: Cost, timings: Timings, config: RecalibrateConfig) -> Recalibration:
    """Decide as `recalibrate` does, for timings of equally fast ranks."""
    before = _median_error(current, timings)
    if before <= config.keep_error:
        return Recalibration(current, False, f"the cost is {before:.1%} off", before)
    usual = _usual(timings, config.outliers)
    fit = fit_linear_quadratic(usual)
    # A fit that cannot be trusted never replaces a cost; factors by length may, as each is measured by itself.
    smooth, after = (None, before) if fit.misfits else (fit.cost, _median_error(fit.cost, timings))
    if after > config.improvement * before:
        smooth = None
    base = smooth or _base(current)
    remaining, measured = (factors_by_length(cost, timings) for cost in (smooth or current, base))
    if remaining and measured and remaining.error > config.keep_error:
        corrected = MeasuredCost(base=base, lengths=measured.lengths, factors=measured.factors)
        by_length = _median_error(corrected, timings)
        reason = (
            f"the cost was {before:.1%} off, the new one, with factors for {len(measured.lengths)} sequence lengths"
            f" that were {remaining.error:.1%} off, is {by_length:.1%}"
        )
        return Recalibration(corrected, True, reason, by_length)
    if fit.misfits:
        return Recalibration(current, False, f"no better cost: {'; '.join(fit.misfits)}", before)
    if smooth is None:
        return Recalibration(
            current, False, f"the cost is {before:.1%} off, a new one would be {after:.1%}", before
        )
    left_out = len(timings.step_s) - len(usual.step_s)
    reason = (
        f"the cost was {before:.1%} off, the new one is {after:.1%}; {left_out} slow or odd times left out"
    )
    return Recalibration(smooth, True, reason, after)


def _base(cost: Cost) -> LinearQuadraticCost | PowerCost:
    return cost.base if isinstance(cost, MeasuredCost) else cost


def _in_words(odd: Mapping[int, float]) -> list[str]:
    """Describe the slowest ranks, at most `_NAMED` of them."""
    named = sorted(odd, key=lambda rank: -odd[rank])[:_NAMED]
    described = [f"rank {rank} takes {odd[rank]:.2f} times as long as others" for rank in named]
    return [*described, f"{len(odd) - _NAMED} more ranks are odd"] if len(odd) > _NAMED else described


def _at_one_speed(timings: Timings, factors: Mapping[int, float]) -> Timings:
    """Rescale the timings of slow or fast ranks to the speed of the median rank."""
    step_s = timings.step_s.copy()
    for rank, factor in factors.items():
        step_s[timings.rank == rank] /= factor
    return replace(timings, step_s=step_s)


def _usual(timings: Timings, outliers: float) -> Timings:
    """Drop timings far from the linear-quadratic fit, in up to `_TRIMS` rounds."""
    for _ in range(_TRIMS):
        ratio = np.log(timings.step_s / seconds(linear_quadratic(timings), timings.batch, timings.length))
        off = np.abs(ratio - np.median(ratio))
        usual = off <= outliers * _PER_DEVIATION * max(float(np.median(off)), 1e-6)
        if usual.all():
            break
        timings = timings.where(usual)
    return timings


def _median_error(cost: Cost, timings: Timings) -> float:
    predicted: Floats = seconds(cost, timings.batch, timings.length)
    return float(np.median(np.abs(predicted / timings.step_s - 1)))
