"""Smart cuts while a source is scanned: its packets wait beside its frames."""

from __future__ import annotations

from fractions import Fraction

from av.video.stream import VideoStream

from reelweave.curate.cut.config import CutConfig
from reelweave.curate.cut.smart.builder import SmartClip
from reelweave.curate.cut.smart.packets import SmartPackets
from reelweave.curate.cut.smart.plan import Plan
from reelweave.curate.frames.frame_times import FrameTimes
from reelweave.curate.frames.picture import Geometry
from reelweave.curate.shots.spans import Span

_MOST_BYTES = 1 << 28
"""Size of the packets that wait, above which nothing more is cut ahead."""


class SmartAhead:
    """Source of the smart cuts of one film, before all its packets are known.

    Args:
        stream: Video stream of the film, opened.
        packets: Notes on its packets, which keep their bytes.
        size: Size of its clips.
        config: Settings of clips.
    """

    def __init__(self, stream: VideoStream, packets: SmartPackets, size: Geometry, config: CutConfig) -> None:
        self._stream = stream
        self._packets, self._size, self._config = packets, size, config

    def begin(self, first: int, rate: Fraction, max_bytes: float) -> SmartClip | None:
        """Return a clip that begins with a frame, or None where nothing of it can be copied whatever comes.

        Args:
            first: The frame, which is decoded.
            rate: Frames per second.
            max_bytes: Maximum size of its file.
        """
        if self._packets.begin_fault(first, self._size) is not None:
            return None
        return SmartClip(
            self._stream, self._packets, self._packets.data, first, self._size, rate, self._config, max_bytes
        )

    def drop_packets(self, frame: int, clip: object) -> bool:
        """Drop packets that nobody needs behind a frame; return whether those that wait are few enough.

        Args:
            frame: Frame that was taken last.
            clip: Clip in work, or something else without one.
        """
        needed = clip.needed if isinstance(clip, SmartClip) else None
        self._packets.drop_before(self._packets.needed_behind(frame) if needed is None else needed)
        return self._packets.kept_bytes <= _MOST_BYTES

    def agrees(self, plan: Plan | None, span: Span, line: FrameTimes) -> bool:
        """Return whether a clip was cut as it is now that the whole source is known.

        Args:
            plan: Plan of the clip, or None for one that was encoded as by ``cut.mode=encode``.
            span: The clip.
            line: Timeline of the source.
        """
        return agrees(self._packets, plan, span, line, self._size)

    def close(self) -> None:
        """Drop the packets that wait, and keep no more of them."""
        self._packets.drop_all()


def agrees(packets: SmartPackets, plan: Plan | None, span: Span, line: FrameTimes, size: Geometry) -> bool:
    """Return whether a clip was cut as it is now that the whole source is known; see `SmartAhead.agrees`."""
    final = packets.plan(span, line, size)
    return not final.segments if plan is None else plan == final
