"""The closed loop: step times measured in training correct the cost they were planned with.

AdaptiveLoad (section 3.2) names such a loop and gives no rule. Ours: at a set point the cost is fitted again to what
was measured since the last one, without the steps that something else slowed down, and the new cost is taken only
when it explains clearly more. Noise alone therefore changes nothing, and a plan never changes between set points.
Ranks that are slow at everything are named, and their times count as if they were not: else their number of samples,
which says nothing of shapes, would decide what shapes cost.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from pydantic import BaseModel, Field

from loader.base.arrays import Floats
from loader.buckets.cost import Cost, seconds
from loader.buckets.cost_fit import Timings, fit_linear_quadratic, linear_quadratic
from loader.buckets.rank_speed import odd_ranks

_TRIMS = 3
_NAMED = 8  # odd ranks, in the log
_PER_DEVIATION = 1.4826  # median absolute deviations in a standard deviation of a normal distribution


class RecalibrateConfig(BaseModel, frozen=True, extra="forbid"):
    """When a cost is replaced."""

    every_steps: int = Field(200, ge=1, description="optimizer steps from one set point to the next")
    min_timings: int = Field(100, ge=10, description="fewer measured microbatches change nothing")
    keep_error: float = Field(
        0.02, ge=0, description="a cost whose median error is at most this is kept, whatever else would fit"
    )
    improvement: float = Field(
        0.7,
        gt=0,
        lt=1,
        description="a new cost must bring the median error below this share of the old one's",
    )
    outliers: float = Field(
        3.0, gt=1, description="standard deviations beyond which a time is left out of the fit"
    )
    odd_rank: float = Field(
        1.15,
        gt=1,
        description="a rank that takes this many times as long as the median one for the same shapes, or the inverse,"
        " is named, and its times are scaled to that one's",
    )


@dataclass(frozen=True)
class Recalibration:
    """What came of a set point.

    Attributes:
        cost: to plan with from here on.
        changed: whether it is a new one.
        reason: in words, for the log.
        error: median of |predicted / measured - 1| with ``cost``.
        odd_ranks: how many times as long as the median rank others took for the same shapes, where they differ.
    """

    cost: Cost
    changed: bool
    reason: str
    error: float
    odd_ranks: Mapping[int, float] = field(default_factory=dict)


def recalibrated(current: Cost, timings: Timings, config: RecalibrateConfig) -> Recalibration:
    """Keeps or replaces a cost; a pure function, so that every rank with the same timings decides the same.

    Args:
        current: that the measured steps were planned with.
        timings: microbatches measured since the last set point, on all ranks.
        config: when to replace.
    """
    count = len(timings.step_s)
    if count < config.min_timings:
        return Recalibration(
            current, False, f"{count} of {config.min_timings} microbatches measured", float("nan")
        )
    found = odd_ranks(timings, config.odd_rank)
    decided = _decided(current, _at_one_speed(timings, found), config)
    return replace(decided, reason="; ".join([decided.reason, *_in_words(found)]), odd_ranks=found)


def _decided(current: Cost, timings: Timings, config: RecalibrateConfig) -> Recalibration:
    """See `recalibrated`; of ranks that are equally fast."""
    before = _median_error(current, timings)
    if before <= config.keep_error:
        return Recalibration(current, False, f"the cost is {before:.1%} off", before)
    usual = _usual(timings, config.outliers)
    fit = fit_linear_quadratic(usual)
    if fit.misfits:  # noise is no reason to keep a cost that is worse
        return Recalibration(current, False, f"no better cost: {'; '.join(fit.misfits)}", before)
    after = _median_error(fit.cost, timings)
    if after > config.improvement * before:
        return Recalibration(
            current, False, f"the cost is {before:.1%} off, a new one would be {after:.1%}", before
        )
    left_out = len(timings.step_s) - len(usual.step_s)
    reason = (
        f"the cost was {before:.1%} off, the new one is {after:.1%}; {left_out} slow or odd times left out"
    )
    return Recalibration(fit.cost, True, reason, after)


def _in_words(odd: Mapping[int, float]) -> list[str]:
    """The slowest ones by their numbers."""
    named = sorted(odd, key=lambda rank: -odd[rank])[:_NAMED]
    told = [f"rank {rank} takes {odd[rank]:.2f} times as long as others" for rank in named]
    return [*told, f"{len(odd) - _NAMED} more ranks are odd"] if len(odd) > _NAMED else told


def _at_one_speed(timings: Timings, factors: Mapping[int, float]) -> Timings:
    """As if all ranks were as fast as those that are not named."""
    step_s = timings.step_s.copy()
    for rank, factor in factors.items():
        step_s[timings.rank == rank] /= factor
    return replace(timings, step_s=step_s)


def _usual(timings: Timings, outliers: float) -> Timings:
    """Without the times that lie far from what the others say of their shape."""
    for _ in range(_TRIMS):
        ratio = np.log(timings.step_s / seconds(linear_quadratic(timings), timings.batch, timings.length))
        off = np.abs(ratio - np.median(ratio))
        kept = off <= outliers * _PER_DEVIATION * max(float(np.median(off)), 1e-6)
        if kept.all():
            break
        timings = timings.where(kept)
    return timings


def _median_error(cost: Cost, timings: Timings) -> float:
    predicted: Floats = seconds(cost, timings.batch, timings.length)
    return float(np.median(np.abs(predicted / timings.step_s - 1)))
