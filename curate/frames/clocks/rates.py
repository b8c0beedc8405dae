"""Frame rate of a source and of each of its clips, from the times at which frames are shown."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

STANDARD_RATES = tuple(
    Fraction(rate)
    for rate in ("24000/1001", "24", "25", "30000/1001", "30", "48", "50", "60000/1001", "60", "100", "120")
)
CONSTANT_TOLERANCE = 0.25  # frame durations; container ticks (1 ms in Matroska) move frames by less
_JITTER = 0.45  # the same, below which the middle of each slot still meets the frame of its number
_MOST_OFF_S = 0.02  # time by which a clip of a variable source may move a frame
_SNAP_TOLERANCE = 0.01  # relative distance within which a measured rate snaps to a standard rate
_HALF_TOLERANCE = 0.001  # the same for whole and half rates, as webcams have: 15, 7.5
# A low percentile of the gaps shows the camera's rate where a recorder dropped still frames.
_NOMINAL_GAP_PERCENTILE = 10
_NEAR = 0.25  # relative distance of gaps that are the same but for ticks and jitter
_SAME, _TICK_S = 0.15, 0.0011
"""The same where rates of 24 and 30 are told apart, and at least a tick of a millisecond."""

_MOST_LEFT_OUT = 0.05  # share of frames that may have no slot at the rate of most
_LEAST_GAPS = 4  # gaps that show a clip's own rate
_FEW_GAPS = 12  # gaps below which most frames tell no rate
_OFF, _MOST = (
    0.15,
    0.9,
)  # frame durations by which gaps may differ from whole ones, and the share of gaps that keep it
# Agreement of all frames with a grid, 0 to 1. Milliseconds cost 0.006 at 60 fps.
_LEAST_FIT, _BETTER_FIT = 0.99, 0.003
_SAME_RATE = Fraction(2, 1000)  # relative distance of rates that are not told apart, such as 23.976 and 24
_CLOSE = 0.1  # relative distance within which an odd rate is the source's, measured on too few frames

FLEETING_S = 0.0015
"""Seconds below which no display shows a frame: two ticks of the fastest one, or of Matroska."""

TIE_S = 0.0015
"""Seconds by which ticks of a millisecond may move the change of two frames across the middle of a slot."""

_LEAST_USUAL = 4  # times longer that other frames are shown, where some are too short to be seen
_LONGEST_RUN_S = 0.25  # a longer run of short frames is footage of a fast camera

Seconds = NDArray[np.float64]
Runs = Sequence[tuple[int, int]]


def choose_rate(
    times_s: Seconds, gaps_s: Seconds, stated: Fraction | None, runs: Runs, max_fps: float
) -> tuple[Fraction, bool]:
    """Return the rate of a source, and whether all its frames lie on the grid of that rate.

    Args:
        times_s: Start of each frame.
        gaps_s: Gaps between neighbouring undamaged frames.
        stated: Frame rate in the container, frames per second.
        runs: Runs ``[first, last)`` of undamaged frames.
        max_fps: Upper limit of the rate for variable frame rate.
    """
    if not len(gaps_s):
        return stated or Fraction(25), True
    measured = _measure_rate(gaps_s)
    # MP4 of millisecond stamps, copied from Matroska, states 24.0017 for 24: the average of its rounded durations.
    standard = snap_rate(stated) if stated is not None else None
    if standard not in (None, stated) and _lies_on_grid(times_s, standard, runs, TIE_S):
        return standard, True
    for rate in (stated, snap_rate(measured), measured):
        if rate and _lies_on_grid(times_s, rate, runs, CONSTANT_TOLERANCE / float(rate)):
            return rate, True
    return _fit_rate(times_s, _nominal(gaps_s[~fleeting(gaps_s)], max_fps), max_fps), False


def choose_clip_rate(times_s: Seconds, source: Fraction, max_fps: float) -> Fraction:
    """Return the rate of a clip of a variable-rate source, from its own frames.

    It is the rate of the grid on which all of them lie, or all but missing ones. Else it is the rate of most of them,
    or that of the fastest where more than a few would be left out.

    Args:
        times_s: Start of each frame of the clip.
        source: Rate of the source, for clips of too few frames.
        max_fps: Upper limit of the rate, frames per second.
    """
    times_s = times_s[~np.append(fleeting(np.diff(times_s)), False)]
    gaps_s = np.diff(times_s)
    if len(gaps_s) < _LEAST_GAPS:
        return source
    measured = _measure_rate(gaps_s)
    # A rate beside a usual one would differ from clip to clip with the jitter of their ends.
    usual = _usual(measured)
    rates = [source, usual] if usual is not None else [source, measured.limit_denominator(2), measured]
    for rate in filter(None, rates):  # half of less than half a frame per second is none
        off_s = min(CONSTANT_TOLERANCE / float(rate), _MOST_OFF_S)
        if _lies_on_grid(times_s, rate, ((0, len(times_s)),), off_s):
            return rate if rate <= max_fps else Fraction(max_fps).limit_denominator(1001)
    if usual is not None and usual <= max_fps and _is_jittered(times_s, usual):
        return usual
    nominal = _fit_rate(times_s, _nominal(gaps_s, max_fps), max_fps)
    if abs(nominal - source) <= _SNAP_TOLERANCE * source:
        nominal = source
    for rate in (nominal, source):
        if _drops_frames(gaps_s, rate):
            return rate
    few = len(gaps_s) < _FEW_GAPS
    if not few and (most := _rate_of_most(gaps_s, max_fps)) is not None:
        return source if abs(most - source) <= _SNAP_TOLERANCE * source else most
    odd = _usual(nominal) is None and abs(nominal - source) <= _CLOSE * source
    return source if odd or few else nominal


def lower_rate(footage: Fraction, fps: Fraction | None) -> Fraction:
    """Return the rate of a clip: that of its footage, or ``fps`` where that is lower by more than 0.2 %."""
    return footage if fps is None or footage <= fps * (1 + _SAME_RATE) else fps


def fleeting(held_s: Seconds) -> NDArray[np.bool_]:
    """Return a mask of the frames that nobody sees: those that a muxer squeezed together at a join.

    Args:
        held_s: Time for which each frame is shown.
    """
    short = held_s < FLEETING_S
    if not short.any() or short.all() or np.median(held_s[~short]) < _LEAST_USUAL * FLEETING_S:
        return np.zeros(len(held_s), bool)
    edges = np.flatnonzero(np.diff(short.astype(np.int8), prepend=0, append=0)).reshape(-1, 2)
    for first, last in edges.tolist():
        short[first:last] = held_s[first:last].sum() <= _LONGEST_RUN_S
    return short


def is_fleeting(held_s: float, usual_s: float) -> bool:
    """Return whether nobody sees a frame, as far as that is known of one alone.

    Args:
        held_s: Time for which it is shown.
        usual_s: Time for which other frames are.
    """
    return held_s < FLEETING_S and usual_s >= _LEAST_USUAL * FLEETING_S


def ties_s(held_s: Seconds, rate: Fraction) -> Seconds:
    """Return by how much the end of each frame may lie beside the middle of a slot and count as on it.

    None behind a frame that is held for other than whole slots: there a clock steps, as where recordings are joined,
    and what is behind it is shown in the nearer slots.

    Args:
        held_s: Time for which each frame is shown.
        rate: Frames per second of the slots.
    """
    slots = held_s * float(rate)
    return np.where(np.abs(slots - np.rint(slots)) <= 2 * TIE_S * float(rate), TIE_S, 0.0)


def snap_rate(rate: Fraction) -> Fraction:
    """Return the standard rate that a measured one stands for, or the measured one."""
    nearest = min(STANDARD_RATES, key=lambda standard: abs(standard - rate))
    return nearest if abs(nearest - rate) <= _SNAP_TOLERANCE * rate else rate


def _usual(rate: Fraction) -> Fraction | None:
    """Return the rate that cameras have and a measured one stands for, or None."""
    if (standard := snap_rate(rate)) in STANDARD_RATES:
        return standard
    half = rate.limit_denominator(2)
    return half if abs(half - rate) <= _HALF_TOLERANCE * rate else None


def _measure_rate(gaps_s: Seconds) -> Fraction:
    return Fraction(1 / float(np.mean(gaps_s))).limit_denominator(1001)


def _nominal(gaps_s: Seconds, max_fps: float) -> Fraction:
    """Return the rate of most frames, where some are held longer."""
    low_s = float(np.percentile(gaps_s, _NOMINAL_GAP_PERCENTILE))
    # Ticks of a millisecond show 24 frames per second as gaps of 41 and 42 ms.
    near_s = gaps_s[np.abs(gaps_s - low_s) <= _NEAR * low_s]
    usual = _usual(_measure_rate(near_s)) if len(near_s) else None
    if usual is not None and usual <= max_fps:
        return usual
    return snap_rate(Fraction(min(1 / low_s, max_fps)).limit_denominator(1001))


def _rate_of_most(gaps_s: Seconds, max_fps: float) -> Fraction | None:
    """Return the usual rate of most frames; None if there is none, or it leaves out more than a few others."""
    usual_s = float(np.median(gaps_s))
    near = np.abs(gaps_s - usual_s) <= max(_SAME * usual_s, _TICK_S)
    usual = _usual(_measure_rate(gaps_s[near]))
    if usual is None or usual > max_fps or near.mean() <= 0.5:
        return None
    left_out = np.maximum(0, 1 - gaps_s[~near] * float(usual)).sum()
    return usual if left_out <= _MOST_LEFT_OUT * len(gaps_s) else None


def _fit_rate(times_s: Seconds, rate: Fraction, max_fps: float) -> Fraction:
    """Return the usual rate near one on whose grid all frames lie but for missing ones, or the same.

    In ticks of a millisecond gaps do not tell 29.97 from 30, but ten seconds on the grids are a third of a frame apart.
    """

    def fit(candidate: Fraction) -> float:
        return float(np.abs(np.exp(2j * np.pi * float(candidate) * (times_s - times_s[0])).mean()))

    half = Fraction(round(2 * rate), 2)
    near = [
        candidate
        for candidate in (*STANDARD_RATES, half)
        if 0 < abs(candidate - rate) <= _SNAP_TOLERANCE * rate
    ]
    best = max((candidate for candidate in near if candidate <= max_fps), key=fit, default=rate)
    return best if fit(best) >= max(_LEAST_FIT, fit(rate) + _BETTER_FIT) else rate


def _is_jittered(times_s: Seconds, rate: Fraction) -> bool:
    """Return whether each slot of a rate shows one frame of its own, however unevenly they come, as browsers record."""
    return _lies_on_grid(times_s, rate, ((0, len(times_s)),), min(_JITTER / float(rate), _MOST_OFF_S))


def _drops_frames(gaps_s: Seconds, rate: Fraction) -> bool:
    """Return whether frames lie on the grid of a rate but for some that are missing."""
    slots = gaps_s * float(rate)
    skips = (np.abs(slots - np.rint(slots)) <= _OFF) & (slots > _OFF)
    return float(skips.mean()) >= _MOST


def _lies_on_grid(times_s: Seconds, rate: Fraction, runs: Runs, off_s: float) -> bool:
    for first, last in runs:
        ideal = np.arange(last - first) / float(rate)
        if np.max(np.abs(times_s[first:last] - times_s[first] - ideal)) > off_s:
            return False
    return True
