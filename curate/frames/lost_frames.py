"""Frames that a damaged stream should show, and that its decoder leaves out, often without an error."""

from __future__ import annotations

from collections import deque

from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from reelweave.curate.frames.source import SourceError

_A_FRAME_EACH = "av1"
"""Codec each of whose packets shows one frame, in order, so that a stamp without its frame is a lost frame."""

_BEGIN_WITH_KEY = ("mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm")
"""Containers whose first packet says truly whether decoding can begin there; recordings of streams begin anywhere."""

_RECOVERS = "h264"
"""Codec that shows no frame before a refresh is complete, though it may begin with a packet that counts as key."""

_LONGER = 1.5
"""Durations of a frame behind which, after an error, the next frame shows that others are lost."""


class LostFrames:
    """Watch of one decode of a stream in display order.

    Args:
        stream: video stream that is decoded.
    """

    def __init__(self, stream: VideoStream) -> None:
        codec = stream.codec_context.codec.canonical_name
        self._tick_s = float(stream.time_base or 0)
        self._counts = codec == _A_FRAME_EACH
        self._due: deque[int] = deque()
        self._begins = stream.container.format.name in _BEGIN_WITH_KEY and codec != _RECOVERS
        self._begin_pts: int | None = None
        self._failed = False
        self._end_pts: int | None = None  # by the frame before

    def expect(self, packet: Packet[VideoStream]) -> None:
        """Note a packet before it is decoded."""
        if packet.pts is None or not packet.size or packet.is_discard:
            return
        if self._begins:
            self._begin_pts = packet.pts if packet.is_keyframe else None
            self._begins = False
        if self._counts:
            self._due.append(packet.pts)

    def fail(self) -> None:
        """Note that the packet cannot be decoded."""
        self._failed = True

    def before(self, frame: VideoFrame) -> bool:
        """Return whether frames are lost between the frame before and this one.

        Raises:
            SourceError: the key frame at the beginning, and all that follows it up to this frame, are lost, so that
                times would count from a later frame.
        """
        if frame.pts is None:
            return False
        if self._begin_pts is not None and frame.pts > self._begin_pts:
            lost_s = (frame.pts - self._begin_pts) * self._tick_s
            raise SourceError(
                f"its first key frame is damaged, and nothing of its first {lost_s:.2f} s can be decoded; cut its"
                f" beginning off, as by `ffmpeg -ss {lost_s:.2f} -i FILE -c copy NEW_FILE`"
            )
        self._begin_pts = None
        is_lost = self._failed and self._end_pts is not None and frame.pts > self._end_pts
        while self._due and self._due[0] <= frame.pts:
            is_lost |= self._due.popleft() < frame.pts
        self._failed = False
        self._end_pts = frame.pts + int(_LONGER * frame.duration) if frame.duration else None
        return is_lost

    def at_end(self) -> bool:
        """Return whether frames are lost at the end."""
        return bool(self._due)
