"""Frames that a damaged stream should show, and that its decoder leaves out, often without an error."""

from __future__ import annotations

from collections import deque

from av.packet import Packet
from av.video.frame import PictureType, VideoFrame
from av.video.stream import VideoStream

_A_FRAME_EACH = "av1"
"""Codec each of whose packets shows one frame, in order, so that a stamp without its frame is a lost frame."""

_BEGIN_WITH_KEY = ("mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm", "avi", "mxf")
"""Containers whose first packet says truly whether decoding can begin there; recordings of streams begin anywhere."""

_BY_ERROR = ("avi", "mxf")
"""Of which a first frame is lost only where its packet cannot be decoded: stamps may be those of coding."""

_KEY_BY_ERROR = ("h264",)
"""Of which the same holds where the first packet counts as key: no frame is shown before a refresh is complete."""

_GUESSES = frozenset(
    ("mpeg4", "msmpeg4v1", "msmpeg4v2", "msmpeg4v3", "h263", "h263p", "h263i", "flv1", "wmv1", "wmv2")
)
"""Codecs whose decoders show frames that refer to a frame before the film, over grey, and say nothing."""

_LONGER = 1.5
"""Durations of a frame behind which, after an error, the next frame shows that others are lost."""


class LostFrames:
    """Watch of one decode of a stream in display order.

    Args:
        stream: video stream that is decoded.

    Attributes:
        begins_with_key: true if the first packet holds a key frame, however damaged.
    """

    def __init__(self, stream: VideoStream) -> None:
        codec = stream.codec_context.codec.canonical_name
        self._counts, self._guesses = codec == _A_FRAME_EACH, codec in _GUESSES
        self._due: deque[int] = deque()
        container = stream.container.format.name
        self._begins = container in _BEGIN_WITH_KEY
        self._by_error, self._key_by_error = container in _BY_ERROR, codec in _KEY_BY_ERROR
        self._first_pts: list[int] = []  # of packets so far, until a frame is shown
        self.begins_with_key = False
        self._lost_begin = False
        self._failed = False
        self._end_pts: int | None = None  # by the frame before

    def expect(self, packet: Packet[VideoStream]) -> None:
        """Note a packet before it is decoded."""
        if packet.pts is None or not packet.size or packet.is_discard:
            return
        if self._begins:
            if not self._first_pts:
                self.begins_with_key = _is_key(packet)
            self._first_pts.append(packet.pts)
        if self._counts:
            self._due.append(packet.pts)

    def fail(self) -> None:
        """Note that the packet cannot be decoded."""
        self._failed = True
        self._lost_begin |= len(self._first_pts) == 1

    def before_first(self, frame: VideoFrame) -> list[int]:
        """Return the stamps of frames that are lost before the first one, with the key frame that they refer to."""
        stamps, self._first_pts = self._first_pts, []
        by_error = self._by_error or (self._key_by_error and self.begins_with_key)
        is_trusted = self._begins and (self._lost_begin or not by_error)
        self._begins = False
        if frame.pts is None or not stamps or not is_trusted:
            return []
        # Leading pictures, which are shown before their key frame, are none of its frames.
        first_pts = stamps[0] if self.begins_with_key else min(stamps)
        return sorted({pts for pts in stamps if first_pts <= pts < frame.pts})

    def lacks_reference(self, first: VideoFrame) -> bool:
        """Return whether a film's first frame refers to one before it, and is shown nevertheless."""
        return self._guesses and first.pict_type != PictureType.I

    def before(self, frame: VideoFrame) -> bool:
        """Return whether frames are lost between the frame before and this one."""
        if frame.pts is None:
            return False
        is_lost = self._failed and self._end_pts is not None and frame.pts > self._end_pts
        while self._due and self._due[0] <= frame.pts:
            is_lost |= self._due.popleft() < frame.pts
        self._failed = False
        self._end_pts = frame.pts + int(_LONGER * frame.duration) if frame.duration else None
        return is_lost

    def at_end(self) -> bool:
        """Return whether frames are lost at the end."""
        return bool(self._due)


def _is_key(packet: Packet[VideoStream]) -> bool:
    """Return whether a first packet holds a key frame, by its content or by the container's index."""
    entry = next(iter(packet.stream.index_entries), None)
    is_indexed = entry is not None and entry.is_keyframe and entry.timestamp in (packet.pts, packet.dts)
    return packet.is_keyframe or is_indexed  # of damaged H.264 FFmpeg does not see it
