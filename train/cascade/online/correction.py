"""What measured cascades say of the cost model, and of the GPUs they ran on.

The logarithm of measured over predicted seconds is taken for the sum of one number of the module and its degree, and
one of the slowest GPU of the group. Both are medians, so that single odd times change nothing, and found in turns:
factors from times without what slow GPUs add, then slow GPUs from times without the factors (median polish: Tukey,
"Exploratory Data Analysis", 1977, chapter 10). All of it is a pure function of the measurements.

Where a slow GPU is in every group of a degree, the factor of the degree takes it up.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from loader.base.arrays import Floats, Places
from train.cascade.online.measured import Window
from train.cascade.online.slow_gpus import slow_gpus, taken_part
from train.cascade.problem import Module, Problem
from train.config.cascade import CorrectionConfig

_TURNS = 10
_FAST = 0.25  # quantile of GPUs that are not slow, as long as none is named: half may run beside a slow one


@dataclass(frozen=True)
class Correction:
    """What is to be believed.

    Attributes:
        factors: of a module and degree, by which the cost model's times are multiplied.
        slow: GPUs that take so many times as long as the others.
    """

    factors: Mapping[tuple[Module, int], float] = field(default_factory=dict)
    slow: Mapping[int, float] = field(default_factory=dict)

    def factors_of(self, degrees_K: Places) -> Floats:
        """Of each module and degree, float64 [M, K].

        1 where none was measured lately: so a degree that may be better than those in use is tried, and its time is
        known from then on. A factor for the whole module would never try it.
        """
        return np.array(
            [[self.factors.get((module, degree), 1.0) for degree in degrees_K.tolist()] for module in Module]
        )

    def told(self) -> list[str]:
        """Sentences for the log."""
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


def correction(window: Window, config: CorrectionConfig) -> Correction:
    """What the measurements of a window say; the same on every rank that has the same ones."""
    every = [one for iteration in window.iterations for one in iteration]
    if not every:
        return Correction()
    log_n = np.log([one.measured_s / one.predicted_s for one in every])
    kinds = sorted({(one.module, len(one.gpus)) for one in every})
    kind_n = np.array([kinds.index((one.module, len(one.gpus))) for one in every])
    ran, slow = taken_part(every), dict[int, float]()
    for turn in range(_TURNS):
        plain_n = log_n - [max(slow.get(gpu, 0.0) for gpu in one.gpus) for one in every]
        share = 0.5 if turn else _FAST
        level_k = np.array([np.quantile(plain_n[kind_n == kind], share) for kind in range(len(kinds))])
        found = slow_gpus(log_n - level_k[kind_n], ran, config.slow, config.evidence)
        if turn and found == slow:
            break
        slow = found
    factors = {kind: _factor(plain_n[kind_n == number], config) for number, kind in enumerate(kinds)}
    return Correction(factors, {gpu: float(np.exp(level)) for gpu, level in slow.items()})


def corrected(problem: Problem, factors_MK: Floats) -> Problem:
    """The same problem with other times.

    Args:
        problem: of the cost model.
        factors_MK: by which its times are multiplied, float64 [M, K]; see `Correction.factors_of`.
    """
    return Problem(
        problem.gpus,
        problem.degrees_K,
        problem.seconds_SMK * factors_MK,
        problem.memory_SMK,
        problem.memory,
    )


def _factor(plain: Floats, config: CorrectionConfig) -> float:
    """The median of logarithms as a factor, shrunk toward 1."""
    trust = len(plain) / (len(plain) + config.prior)
    return float(np.clip(np.exp(trust * np.median(plain)), 1 / config.most, config.most))
