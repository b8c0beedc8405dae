"""Which GPUs are slow: what of the measured times their groups have in common, and the cost model does not explain.

A GPU is slow at everything, one beside it only where both run one cascade. So the GPU that explains most is named
first, and all that ran with it says nothing more of the others. GPUs that ran nearly the same cascades cannot be told
apart, and are named together.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from loader.base.arrays import Floats, Places
from train.cascade.online.measured import Measurement

_ERRORS = 4.0
_PER_DEVIATION = 1.4826  # median absolute deviations in a standard deviation of a normal distribution
_MEDIAN_ERROR = 1.2533  # standard error of a median, relative to that of a mean


def slow_gpus(over_n: Floats, ran: Mapping[int, Places], factor: float, evidence: int) -> dict[int, float]:
    """Logarithms of how many times as long as others the slow ones take.

    Args:
        over_n: logarithms of measured over corrected times.
        ran: numbers of the measurements of each GPU; see `taken_part`.
        factor: from which on a GPU is slow.
        evidence: measurements that it takes.
    """
    slow, open_n = dict[int, float](), np.ones(len(over_n), bool)
    while True:
        suspects = {
            gpu: found
            for gpu, own in ran.items()
            if (found := _suspect(over_n, own[open_n[own]], factor, evidence)) is not None
        }
        if not suspects:
            return slow
        first = max(suspects.values(), key=lambda one: one.explained)
        for gpu, one in suspects.items():
            shared = len(np.intersect1d(one.own, first.own, assume_unique=True))
            alike = 2 * shared > max(len(one.own), len(first.own))
            if one is first or (alike and first.explained - one.explained <= _ERRORS * first.spread):
                slow[gpu] = one.level
        for gpu in slow:
            open_n[ran[gpu]] = False


def taken_part(every: Sequence[Measurement]) -> dict[int, Places]:
    """Of each GPU, the numbers of the measurements that it took part in."""
    found: dict[int, list[int]] = {}
    for number, one in enumerate(every):
        for gpu in one.gpus:
            found.setdefault(gpu, []).append(number)
    return {gpu: np.array(found[gpu]) for gpu in sorted(found)}


class _Suspect(NamedTuple):
    """A GPU that looks slow: its measurements, how slow, how much of their deviations that explains, their spread."""

    own: Places
    level: float
    explained: float
    spread: float


def _suspect(over_n: Floats, own: Places, factor: float, evidence: int) -> _Suspect | None:
    if len(own) < evidence:
        return None
    level = float(np.median(over_n[own]))
    off = np.abs(over_n[own] - level)
    spread = _PER_DEVIATION * float(np.median(off))
    if level < max(np.log(factor), _ERRORS * _MEDIAN_ERROR * spread / np.sqrt(len(own))):
        return None
    return _Suspect(own, level, float((np.abs(over_n[own]) - off).sum()), spread)
