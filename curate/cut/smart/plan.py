"""Division of a clip into frames whose packets are copied and frames that are encoded: a pure function of facts.

A run of copied frames begins at an entry (an IDR picture, and in HEVC a CRA picture, whose leading pictures are left
out), and grows while the packets decoded so far show exactly the frames so far. So it is closed in both orders: nothing
in it refers outside, and nothing outside lies between its packets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from reelweave.loader.dataset.samples.copied_frames import CopiedFrames

MOST_REORDERED = 17
"""Frames that wait for the end of a closed run: one more than any decoder reorders."""
LEAST_COPIED = 8
"""Frames of the shortest run that is copied."""
MOST_WAITING = LEAST_COPIED + MOST_REORDERED
"""Frames of which it is not decided yet, at most."""
MOST_BEFORE = 16
"""Frames before the first run of a clip where encoding them costs more than encoding the clip does, as HEVC of 8 bits.

They wait, beside those above, until it is known whether anything is copied.
"""

VARIABLE = "variable rate"
DAMAGED = "damaged packets"
CHANGED = "changed parameter sets"
LITTLE = "too little to copy"
OPEN = "open groups"
NO_IDR = "no IDR picture"
LATE = f"more than {MOST_BEFORE} frames before its first group"
_ORDER = (CHANGED, DAMAGED, VARIABLE, LITTLE, OPEN, NO_IDR)


@dataclass(frozen=True)
class FrameFacts:
    """Facts of a shown frame and of its packet.

    Attributes:
        position: Number of its packet in decoding order; -1 where none is known.
        entry: True where a run may begin with its packet.
        key: True where its container calls it a key frame.
        whole: True where its packet is undamaged, visible and of a kind that can be copied.
        generation: Number of changes of parameter sets up to its packet.
        shown: Frames of the clip that it fills; all but 1 cannot be copied.
        leading: Packets directly behind that of an entry whose pictures are shown before it.
    """

    position: int
    entry: bool
    key: bool
    whole: bool
    generation: int
    shown: int = 1
    leading: int = 0


@dataclass(frozen=True)
class Segment:
    """Frames ``[first, last)`` of a clip, counted from its begin, all copied or all encoded.

    Attributes:
        copied: True for copied frames.
        first: First frame, in shown order.
        last: One past the last frame.
        position: Number of the first packet of copied frames in decoding order, else -1.
        skipped: Packets directly behind the first one that are left out.
    """

    copied: bool
    first: int
    last: int
    position: int = -1
    skipped: int = 0

    @property
    def runs(self) -> tuple[range, ...]:
        """Numbers of the copied packets, rising."""
        if not self.copied:
            return ()
        begin, rest = self.position, self.position + 1 + self.skipped
        end = rest + self.last - self.first - 1
        return (range(begin, begin + 1), range(rest, end)) if self.skipped else (range(begin, end),)


@dataclass(frozen=True)
class Plan:
    """Segments of a clip, adjacent and in order.

    Attributes:
        segments: The segments; none where the source itself allows no copies.
        reason: Reason why nothing is copied, or "".
    """

    segments: tuple[Segment, ...]
    reason: str = ""

    @property
    def copied(self) -> int:
        """Number of copied frames of the source."""
        return sum(segment.last - segment.first for segment in self.segments if segment.copied)

    def runs(self) -> list[range]:
        """Return the numbers of the copied packets."""
        return [run for segment in self.segments for run in segment.runs]

    def moved(self, packets: int) -> Plan:
        """Return the plan where packets are counted from so many earlier."""
        segments = (
            replace(segment, position=segment.position + packets) if segment.copied else segment
            for segment in self.segments
        )
        return replace(self, segments=tuple(segments))

    def describe(self, frames: int) -> str:
        """Return in words how the clip of so many frames is cut."""
        return f"smart: {self.copied} of {frames} frames copied" if self.copied else f"encoded: {self.reason}"

    def copied_frames(self, shown: Sequence[int]) -> CopiedFrames:
        """Return which frames of the clip are copies.

        Args:
            shown: Number of frames of the clip for each frame of the source.
        """
        runs = [segment for segment in self.segments if segment.copied]
        if not runs:
            return CopiedFrames.of_whole(sum(shown), copied=False)
        return CopiedFrames(self.copied, sum(shown[: runs[0].first]), sum(shown[runs[-1].last :]))

    @property
    def mode(self) -> Literal["encode", "copy", "smart"]:
        """Treatment of the clip: all encoded, all copied, or both."""
        if not self.copied:
            return "encode"
        return "smart" if any(not segment.copied for segment in self.segments) else "copy"


class Seams:
    """Plan of a clip in the making, frame by frame in shown order.

    Args:
        most_before: Frames before the first run above which nothing is copied, or None without a limit.

    Attributes:
        decided: Number of frames whose segment is known.
        segments: Segments so far, of the frames that are decided.
        refused: True once too many frames lie before the first run.
    """

    def __init__(self, most_before: int | None = None) -> None:
        self.decided, self.refused = 0, False
        self.segments: list[Segment] = []
        self._most_before = most_before
        self._frames = 0
        self._generation: int | None = None
        self._begin: int | None = None  # of the run in work
        self._position = self._skipped = self._highest = self._closed = 0
        self._faults: set[str] = set()

    def push(self, facts: FrameFacts) -> None:
        """Take the facts of the next frame, in shown order."""
        if self._generation is None:
            self._generation = facts.generation
        frame, self._frames = self._frames, self._frames + 1
        if self.refused:
            self.decided = self._frames
            return
        if self._begin is not None and not self._continues(facts, frame):
            self._end_run(frame)
        if self._begin is None:
            if self.refused or not self._may_begin(facts):
                self._pass(frame + 1)
                return
            self._begin, self._position, self._skipped = frame, facts.position, facts.leading
            self._highest, self._closed = 0, frame
        self._highest = max(self._highest, facts.position - self._position - self._skipped)
        if self._highest == frame - self._begin:
            self._closed = frame + 1
            if self._is_long_enough():
                self._decide(False, self._begin)
                self._decide(True, self._closed)

    def finish(self) -> Plan:
        """Return the plan, once the last frame was pushed."""
        if self._begin is not None:
            self._end_run(self._frames)
        if any(segment.copied for segment in self.segments):
            return Plan(tuple(self.segments))
        fault = next(fault for fault in _ORDER if fault in self._faults)
        if self._most_before is not None:
            return Plan((), LATE if self.refused else fault)
        return Plan(tuple(self.segments), fault)

    @property
    def needed(self) -> int | None:
        """Number of the first packet that undecided frames may need, in decoding order; None for later ones."""
        if self._begin is None or self.decided <= self._begin:
            return None if self._begin is None else self._position
        return self._position + self._skipped + self.decided - self._begin

    def _may_begin(self, facts: FrameFacts) -> bool:
        if not facts.entry:
            self._faults.add(OPEN if facts.key else NO_IDR)
            return False
        return self._is_usable(facts)

    def _continues(self, facts: FrameFacts, frame: int) -> bool:
        if frame - self._closed >= MOST_REORDERED or facts.position <= self._position + self._skipped:
            return False
        if facts.entry and not facts.leading and self._closed != frame:  # a packet between shows nothing
            return False
        return self._is_usable(facts)

    def _is_usable(self, facts: FrameFacts) -> bool:
        fault = None
        if not facts.whole or facts.position < 0:
            fault = DAMAGED
        elif facts.generation != self._generation:
            fault = CHANGED
        elif facts.shown != 1:
            fault = VARIABLE
        if fault is not None:
            self._faults.add(fault)
        return fault is None

    def _is_long_enough(self) -> bool:
        assert self._begin is not None
        return self._closed - self._begin >= LEAST_COPIED

    def _end_run(self, frame: int) -> None:
        if not self._is_long_enough():
            self._faults.add(LITTLE)
        self._begin = None
        self._pass(frame)

    def _pass(self, last: int) -> None:
        """Take frames that no run holds."""
        if self._most_before is None or self.segments:
            self._decide(False, last)
        elif self.refused or last > self._most_before:
            self.refused, self.decided = True, last

    def _decide(self, copied: bool, last: int) -> None:
        if last <= self.decided:
            return
        before = self.segments[-1] if self.segments else None
        if before is not None and before.copied == copied and (not copied or before.first == self._begin):
            self.segments[-1] = replace(before, last=last)
        else:
            packets = (self._position, self._skipped) if copied else ()
            self.segments.append(Segment(copied, self.decided, last, *packets))
        self.decided = last


def plan_of(values: Mapping[str, Any]) -> Plan:
    """Return the plan of its fields as JSON values."""
    return Plan(tuple(Segment(**segment) for segment in values["segments"]), values["reason"])


def plan(frames: Iterable[FrameFacts], most_before: int | None = None) -> Plan:
    """Return the plan of a clip of at least one frame.

    Args:
        frames: Facts of its frames in shown order.
        most_before: As of `Seams`.
    """
    seams = Seams(most_before)
    for facts in frames:
        seams.push(facts)
    return seams.finish()
