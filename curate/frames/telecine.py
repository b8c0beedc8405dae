"""Detection of 3:2 pulldown: films of 24 frames per second stored as 60 fields by repeating fields.

Of five frames one repeats the first field of the frame before, and another one, two or three frames away, its second
field. Once fields are matched, the frame that repeats its first field shows the same picture as the one before.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from av.video.frame import VideoFrame
from numpy.typing import NDArray

from reelweave.curate.frames.frame_times import FrameTimes
from reelweave.curate.frames.interlace import FieldOrder

_FORMATS = frozenset({"yuv420p", "yuv422p", "yuv444p"})
_CYCLE = 5
_RATES = (Fraction(30000, 1001), Fraction(30))
_RATE_TOLERANCE = 0.001  # relative
_ROWS, _COLUMNS = 36, 120  # rows of each field and columns that are compared, about
_SMALLEST = 32  # rows and columns
_AROUND = 5  # frames on each side that say what is usual
_MOVES = 4.0  # times the noise above which a picture moves
_NOISE = 0.5  # levels
_REPEATS = 0.5  # share of the usual difference below which a field is repeated
_SWITCH = 4.0  # nats that a change of the cadence costs
_LEAST_CYCLES, _LEAST_SHARE = 8, 0.8  # of the cycles that move; cuts and noise hide some
_LONGEST = (
    18  # moving cycles in a row without the cadence, three seconds: more is a part that is not telecined
)
_AT_ONCE = 20  # frames that are measured together; the trial is a multiple
_TRIAL, _TRIAL_SHARE = 900, 0.5  # frames after which a film of a smaller share is not looked at any more

# Frames by which pictures lag behind their frames, about: no cadence then meets the middle of a slot.
_LATE = 0.5
_INSTANT_S = 1e-6  # duration of a frame that shows the picture before it again

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Pulldown:
    """Pulldown of a whole source.

    Attributes:
        order: Field that is shown first.
        repeats: Frames that show the picture before them again once fields are matched.
    """

    order: FieldOrder
    repeats: tuple[int, ...]


class FieldDifferences:
    """Differences of the fields of each frame from those of the one before.

    Args:
        rate: Frame rate in the container, or None; other rates than those of NTSC have no pulldown.
        trial: True to give up a film whose first frames show no pulldown; False for a part of one.
    """

    def __init__(self, rate: Fraction | None, *, trial: bool = True) -> None:
        self._trial = trial
        self._measures = rate is not None and any(
            abs(rate - candidate) <= _RATE_TOLERANCE * candidate for candidate in _RATES
        )
        self._kind: tuple[int, int, str] | None = None
        self._before: NDArray[np.int16] | None = None
        self._waiting: list[NDArray[np.uint8]] = []
        self._differences = (array("d"), array("d"))  # of the upper and the lower field

    @property
    def values(self) -> Floats:
        """Differences of the upper and the lower field of each frame, [frames, 2]; empty where none can be found."""
        if not self._measures:
            return np.zeros((0, 2))
        self._measure()
        return np.stack([np.array(field) for field in self._differences], axis=1)

    def extend(self, values: Floats) -> None:
        """Take the `values` of the next frames of a source of which no frame is pushed."""
        num_frames = len(self._differences[0])
        for some in (values[: max(0, _TRIAL - num_frames)], values[max(0, _TRIAL - num_frames) :]):
            for differences, column in zip(self._differences, some.T, strict=True):
                differences.extend(column.tolist())
            if num_frames < _TRIAL == len(self._differences[0]):
                self._try()
            num_frames = len(self._differences[0])

    def push(self, frame: VideoFrame) -> None:
        """Take the next frame in display order."""
        if not self._measures:
            return
        kind = (frame.width, frame.height, frame.format.name)
        if frame.format.name not in _FORMATS or self._kind not in (None, kind) or min(kind[:2]) < _SMALLEST:
            self._measures = False
            self._waiting.clear()
            return
        self._kind = kind
        plane = frame.planes[0]
        # Rows of both fields that lie side by side.
        down, across = 2 * max(1, round(frame.height / (2 * _ROWS))), max(1, round(frame.width / _COLUMNS))
        shape = (2, frame.height // down, -(-frame.width // across))
        strides = (plane.line_size, down * plane.line_size, across)
        self._waiting.append(np.ndarray(shape, np.uint8, memoryview(plane), 0, strides).copy())
        if len(self._waiting) == _AT_ONCE:
            self._measure()
            if self._trial and len(self._differences[0]) == _TRIAL:
                self._try()

    def _try(self) -> None:
        shares = [share for _, _, share in self._find_repeats()]
        self._measures = any(share is None or share >= _TRIAL_SHARE for share in shares)

    def _measure(self) -> None:
        """Measure the frames that wait."""
        if not self._waiting:
            return
        fields = np.stack(self._waiting).astype(np.int16)
        before = fields[0] if self._before is None else self._before
        change = (fields - np.concatenate([before[None], fields[:-1]])).astype(np.float32)
        moved = np.sqrt(np.einsum("nfij,nfij->nf", change, change) / change[0, 0].size)
        for differences, field_differences in zip(self._differences, moved.astype(np.float64).T, strict=True):
            differences.extend(field_differences.tolist())
        self._before = fields[-1]
        self._waiting.clear()

    def pulldown(self) -> Pulldown | None:
        """Return the pulldown of the source, or None where its frames do not show one throughout."""
        if self._measures:
            self._measure()
            for order, repeats, share in self._find_repeats():
                if share is not None and share >= _LEAST_SHARE:
                    return Pulldown(order, tuple(repeats))
        return None

    def _find_repeats(self) -> Iterator[tuple[FieldOrder, list[int], float | None]]:
        """Yield the likeliest repeats for each order of fields, and the share of moving cycles that show them.

        The share is None where too few cycles move.
        """
        upper, lower = (np.array(field) for field in self._differences)
        if len(upper) >= _CYCLE * _LEAST_CYCLES:
            yield "tff", *_repeats(upper, lower)
            yield "bff", *_repeats(lower, upper)


def _repeats(first: Floats, second: Floats) -> tuple[list[int], float | None]:
    """Return the frames that repeat the first field, and the share of moving ones that are clear; None: too few move.

    Two frames after a clear one the second field is repeated.
    """
    known_first, known_second = _usual(first), _usual(second)
    logs = np.stack([_log(first, known_first), _log(np.roll(second, -2), np.roll(known_second, -2))])
    logs[:, -2:] = logs[:, :1] = 0.0
    repeats = _cadence(-logs.sum(axis=0))
    noise = [max(_NOISE, float(np.percentile(field, 10))) for field in (first, second)]
    moves = (known_first > _MOVES * noise[0]) & (known_second > _MOVES * noise[1])
    moving = [frame for frame in repeats if moves[frame] and 0 < frame < len(first) - 2]
    if len(moving) < _LEAST_CYCLES:
        return repeats, None
    clear = (logs[:, moving] < np.log(_REPEATS)).all(axis=0)
    clear_indices = np.flatnonzero(np.concatenate([[True], clear, [True]]))
    return repeats, float(clear.mean()) if np.diff(clear_indices).max() <= _LONGEST + 1 else 0.0


def _usual(differences: Floats) -> Floats:
    """Return the median difference around each frame."""
    padded = np.pad(differences[1:], (_AROUND + 1, _AROUND), mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * _AROUND + 1)
    usual: Floats = np.median(windows, axis=1)
    return usual


def _log(differences: Floats, usual: Floats) -> Floats:
    """Return the logarithm of each difference against the usual one, cut off where it says no more."""
    logs: Floats = np.clip(np.log((differences + 0.05) / (usual + 0.05)), -2.0, 1.0)
    return logs


def _cadence(evidence: Floats) -> list[int]:
    """Return the frames, one of five but for changes of the cadence, with the most evidence (Viterbi, 1967)."""
    best = [0.0] * _CYCLE
    came: list[list[int]] = []
    # Plain numbers: an operation of numpy on five takes longer than all of them.
    for frame, more in enumerate(evidence.tolist()):
        max_evidence = max(best)
        switched, min_evidence = best.index(max_evidence), max_evidence - _SWITCH
        came.append(
            [
                phase if phase_evidence >= min_evidence else switched
                for phase, phase_evidence in enumerate(best)
            ]
        )
        best = [max(phase_evidence, min_evidence) for phase_evidence in best]
        best[frame % _CYCLE] += more
    phase, repeats = best.index(max(best)), []
    for frame in range(len(came) - 1, -1, -1):
        if frame % _CYCLE == phase:
            repeats.append(frame)
        phase = came[frame][phase]
    return repeats[::-1]


def invert_pulldown(line: FrameTimes, pulldown: Pulldown) -> FrameTimes:
    """Return the timeline of a film's own frames: repeats last an instant, and the others share their time evenly.

    Frames keep their numbers. Clips have four fifths of the rate.
    """
    # Repeats end the cycles: between two of them lie the film's own frames.
    raw_s = line.times_s
    repeats = [frame for frame in pulldown.repeats if frame < line.frames]
    lasting_s = float(np.median(np.diff(raw_s)))
    begins_s = [0.0, *(float(raw_s[frame]) + _LATE * lasting_s for frame in repeats), float(raw_s[-1])]
    times_s = raw_s.copy()
    firsts = [0, *(frame + 1 for frame in repeats)]
    # Frames of a cycle share its time evenly, and its repeat lasts an instant before the next begins.
    for index, (first, last) in enumerate(zip(firsts, [*repeats, line.frames], strict=True)):
        if last > first:
            step_s = (begins_s[index + 1] - begins_s[index]) / (last - first)
            times_s[first:last] = begins_s[index] + np.arange(last - first) * step_s
        # A first frame that repeats one before the film meets the middle of no slot.
        if 0 < last < line.frames:
            times_s[last] = begins_s[index + 1] - _INSTANT_S
    rate = line.rate * Fraction(_CYCLE - 1, _CYCLE)
    return replace(
        line,
        times_s=times_s,
        rate=rate,
        constant=False,
        deinterlace=True,
        pulldown=pulldown.order,
        unmarked=None,
    )
