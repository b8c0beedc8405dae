"""Straggler detection: GPUs common to cascades that run longer than the cost model explains.

A straggler is slow in every cascade, its neighbours only in cascades that they share. Detection therefore picks
the GPU that explains most excess time, then ignores all measurements that include it. GPUs with nearly the same
cascades are indistinguishable and reported together.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from reelweave.loader.base.arrays import Floats, IndexArray
from reelweave.train.cascade.online.measurements import Measurement

_ERRORS = 4.0
_PER_DEVIATION = 1.4826  # median absolute deviations in a standard deviation of a normal distribution
_MEDIAN_ERROR = 1.2533  # standard error of a median, relative to that of a mean


def slow_gpus(
    over_n: Floats, ran: Mapping[int, IndexArray], factor: float, evidence: int
) -> dict[int, float]:
    """Return the logarithmic slowdown of each straggler.

    Args:
        over_n: logarithms of measured over corrected times.
        ran: indices of each GPU's measurements; see `taken_part`.
        factor: slowdown from which on a GPU is a straggler.
        evidence: minimum number of measurements.
    """
    slow, open_n = dict[int, float](), np.ones(len(over_n), bool)
    while True:
        suspects = {
            gpu: candidate
            for gpu, indices in ran.items()
            if (candidate := _suspect(over_n, indices[open_n[indices]], factor, evidence)) is not None
        }
        if not suspects:
            return slow
        first = max(suspects.values(), key=lambda suspect: suspect.explained)
        for gpu, suspect in suspects.items():
            shared = len(np.intersect1d(suspect.indices, first.indices, assume_unique=True))
            alike = 2 * shared > max(len(suspect.indices), len(first.indices))
            if suspect is first or (alike and first.explained - suspect.explained <= _ERRORS * first.spread):
                slow[gpu] = suspect.level
        for gpu in slow:
            open_n[ran[gpu]] = False


def taken_part(measurements: Sequence[Measurement]) -> dict[int, IndexArray]:
    """Return the indices of the measurements of each GPU."""
    indices: dict[int, list[int]] = {}
    for index, measurement in enumerate(measurements):
        for gpu in measurement.gpus:
            indices.setdefault(gpu, []).append(index)
    return {gpu: np.array(indices[gpu]) for gpu in sorted(indices)}


class _Suspect(NamedTuple):
    """A possible straggler: its measurements, slowdown, explained deviation, and spread."""

    indices: IndexArray
    level: float
    explained: float
    spread: float


def _suspect(over_n: Floats, indices: IndexArray, factor: float, evidence: int) -> _Suspect | None:
    if len(indices) < evidence:
        return None
    level = float(np.median(over_n[indices]))
    off = np.abs(over_n[indices] - level)
    spread = _PER_DEVIATION * float(np.median(off))
    if level < max(np.log(factor), _ERRORS * _MEDIAN_ERROR * spread / np.sqrt(len(indices))):
        return None
    return _Suspect(indices, level, float((np.abs(over_n[indices]) - off).sum()), spread)
