"""What measured cascades say of the cost model, and of the GPUs they ran on.

The logarithm of measured over predicted seconds is taken for the sum of one number of the module and its degree, and
one of the slowest GPU of the group. Both are medians, so that single odd times change nothing, and found in turns:
factors from times without what slow GPUs add, then slow GPUs from times without the factors (median polish: Tukey,
"Exploratory Data Analysis", 1977, chapter 10). All of it is a pure function of the measurements.

Where a slow GPU is in every group of a degree, the factor of the degree takes it up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from pydantic import BaseModel, Field

from loader.arrays import Floats, Places
from train.cascade.measured import Window
from train.cascade.problem import Module, Problem
from train.cascade.slow_gpus import slow_gpus, taken_part

_TURNS = 10
_FAST = 0.25  # quantile of GPUs that are not slow, as long as none is named: half may run beside a slow one


class CorrectionConfig(BaseModel, frozen=True, extra="forbid"):
    """How far measurements are believed."""

    iterations: int = Field(8, ge=1, description="latest iterations whose cascades count")
    prior: float = Field(
        2.0,
        ge=0,
        description="measurements that take the factor of a module half of the way from 1 to what they say, and that"
        " of a degree half of the way from its module's",
    )
    most: float = Field(3.0, gt=1, description="highest factor; its inverse is the lowest")
    slow: float = Field(1.15, gt=1, description="a GPU that takes this many times as long as others is slow")
    evidence: int = Field(8, ge=1, description="cascades that a GPU must have run to be called slow")


@dataclass(frozen=True)
class Correction:
    """What is to be believed.

    Attributes:
        modules: by which the cost model's times of a module are multiplied where a degree was never measured.
        degrees: the same of a module and degree.
        slow: GPUs that take so many times as long as the others.
    """

    modules: Mapping[Module, float] = field(default_factory=dict)
    degrees: Mapping[tuple[Module, int], float] = field(default_factory=dict)
    slow: Mapping[int, float] = field(default_factory=dict)

    def factors(self, degrees_K: Places) -> Floats:
        """Of each module and degree, float64 [M, K]; 1 where nothing is known."""
        return np.array(
            [
                [
                    self.degrees.get((module, degree), self.modules.get(module, 1.0))
                    for degree in degrees_K.tolist()
                ]
                for module in Module
            ]
        )

    def told(self) -> list[str]:
        """Sentences for the log."""
        return [
            *(
                f"{module.name} on {degree} GPUs takes {factor:.2f} times as long as predicted"
                for (module, degree), factor in sorted(self.degrees.items())
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
    return Correction(
        *_factors(kinds, kind_n, plain_n, config),
        {gpu: float(np.exp(level)) for gpu, level in slow.items()},
    )


def _factors(
    kinds: Sequence[tuple[Module, int]], kind_n: Places, plain_n: Floats, config: CorrectionConfig
) -> tuple[dict[Module, float], dict[tuple[Module, int], float]]:
    """Of modules, shrunk toward 1, and of their degrees, shrunk toward their modules'."""

    def shrunk(from_level: float, plain: Floats) -> float:
        trust = len(plain) / (len(plain) + config.prior)
        return from_level + (float(np.median(plain)) - from_level) * trust

    def factor(level: float) -> float:
        return float(np.clip(np.exp(level), 1 / config.most, config.most))

    module_n = np.array([module for module, _ in kinds])[kind_n]
    general = {module: shrunk(0.0, plain_n[module_n == module]) for module in Module if module in module_n}
    degrees = {
        (module, degree): factor(shrunk(general[module], plain_n[kind_n == kind]))
        for kind, (module, degree) in enumerate(kinds)
    }
    return {module: factor(level) for module, level in general.items()}, degrees


def corrected(problem: Problem, factors_MK: Floats) -> Problem:
    """The same problem with other times.

    Args:
        problem: of the cost model.
        factors_MK: by which its times are multiplied, float64 [M, K]; see `Correction.factors`.
    """
    return Problem(
        problem.gpus,
        problem.degrees_K,
        problem.seconds_SMK * factors_MK,
        problem.memory_SMK,
        problem.memory,
    )
