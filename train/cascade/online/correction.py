"""Correction of the cost model and detection of stragglers from measured cascades.

The logarithm of measured over predicted seconds is modelled as a sum. One term is for module and degree, one
for the slowest GPU of the group. Both are medians, robust to outliers, and fitted alternately (median polish:
Tukey, "Exploratory Data Analysis", 1977, chapter 10). The result is a pure function of the measurements.

If every group of a degree contains a straggler, the degree's factor absorbs it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from reelweave.loader.base.arrays import Floats, IndexArray
from reelweave.train.cascade.online.measurements import MeasurementWindow
from reelweave.train.cascade.online.stragglers import slow_gpus, taken_part
from reelweave.train.cascade.problem import Module, Problem
from reelweave.train.config.cascade import CorrectionConfig

_TURNS = 10
_FAST = 0.25  # quantile for the first round, in which half of the GPUs may run beside an undetected straggler


@dataclass(frozen=True)
class Correction:
    """Corrections to apply to plans.

    Attributes:
        factors: multiplier of the cost model's times for each module and degree.
        slow: slowdown of each straggler relative to other GPUs.
    """

    factors: Mapping[tuple[Module, int], float] = field(default_factory=dict)
    slow: Mapping[int, float] = field(default_factory=dict)

    def factors_of(self, degrees_K: IndexArray) -> Floats:
        """Return the factor of each module and degree, float64 [M, K].

        The factor is 1 without recent measurements, so that a promising degree is tried and then measured. A
        factor per module would never try it.
        """
        return np.array(
            [[self.factors.get((module, degree), 1.0) for degree in degrees_K.tolist()] for module in Module]
        )

    def summary(self) -> list[str]:
        """Return sentences for the log."""
        return [
            *(
                f"{module.name} on {degree} GPUs takes {factor:.2f} times as long as predicted"
                for (module, degree), factor in sorted(self.factors.items())
            ),
            *(
                f"GPU {gpu} takes {factor:.2f} times as long as others"
                for gpu, factor in sorted(self.slow.items())
            ),
        ]


def correction(window: MeasurementWindow, config: CorrectionConfig) -> Correction:
    """Compute the correction from a window; identical on every rank with the same measurements."""
    measurements = [measurement for iteration in window.iterations for measurement in iteration]
    if not measurements:
        return Correction()
    # Deviations from the plan, by module and degree.
    log_n = np.log([measurement.measured_s / measurement.predicted_s for measurement in measurements])
    kinds = sorted({(measurement.module, len(measurement.gpus)) for measurement in measurements})
    kind_n = np.array(
        [kinds.index((measurement.module, len(measurement.gpus))) for measurement in measurements]
    )
    ran, slow = taken_part(measurements), dict[int, float]()
    # Slow GPUs and slow kinds are told apart by turns: each is estimated without the other.
    for turn in range(_TURNS):
        plain_n = log_n - [
            max(slow.get(gpu, 0.0) for gpu in measurement.gpus) for measurement in measurements
        ]
        share = 0.5 if turn else _FAST
        level_k = np.array([np.quantile(plain_n[kind_n == kind], share) for kind in range(len(kinds))])
        new_slow = slow_gpus(log_n - level_k[kind_n], ran, config.slow, config.evidence)
        if turn and new_slow == slow:
            break
        slow = new_slow
    # What remains of each kind is its factor.
    factors = {kind: _factor(plain_n[kind_n == kind_index], config) for kind_index, kind in enumerate(kinds)}
    return Correction(factors, {gpu: float(np.exp(level)) for gpu, level in slow.items()})


def correct_problem(problem: Problem, factors_MK: Floats) -> Problem:
    """Return the problem with corrected times.

    Args:
        problem: planning problem by the cost model.
        factors_MK: multipliers of its times, float64 [M, K]; see `Correction.factors_of`.
    """
    return Problem(
        problem.gpus,
        problem.degrees_K,
        problem.seconds_SMK * factors_MK,
        problem.memory_SMK,
        problem.memory,
    )


def _factor(plain: Floats, config: CorrectionConfig) -> float:
    """Return the median of logarithms as a factor, shrunk toward 1."""
    trust = len(plain) / (len(plain) + config.prior)
    return float(np.clip(np.exp(trust * np.median(plain)), 1 / config.most, config.most))
