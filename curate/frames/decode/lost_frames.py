"""Frames that a damaged stream should show, and that its decoder leaves out, often without an error."""

from __future__ import annotations

from itertools import pairwise

from av.packet import Packet
from av.video.frame import PictureType, VideoFrame
from av.video.stream import VideoStream

from reelweave.curate.frames.clocks.clock import SQUEEZED_S
from reelweave.curate.frames.clocks.coding_times import is_timed
from reelweave.curate.frames.decode.missing_pictures import STAMPED
from reelweave.curate.frames.decode_entry import holds_idr

_EXACT = ("mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm")
"""Containers whose stamps tell lost frames behind a first packet that counts as key.

Others may store times of coding, or no more than guesses, so there only an error of that packet tells it.
"""

_GUESSED_INDEX = ("mpeg", "mpegts")
"""Containers without an index, of which FFmpeg makes one up while it reads; it calls all packets key frames."""

_WITHHOLDS = "h264"
"""Codec of which no frame is shown before a refresh is complete: that may begin with a packet that counts as key."""

_LEADING = ("h264", "hevc")
"""Codecs whose raw streams have no stamps, and may begin with pictures that decoders leave out."""

_OPEN_GROUP = "it begins with an open group of pictures"
_REFRESH = "it begins within an intra refresh"
_DAMAGED_KEY = "its first key frame is damaged"
_BETWEEN = "it begins between key frames"

_GUESSES = frozenset(
    ("mpeg4", "msmpeg4v1", "msmpeg4v2", "msmpeg4v3", "h263", "h263p", "h263i", "flv1", "wmv1", "wmv2")
)
"""Codecs whose decoders show frames that refer to a frame before the film, over grey, and say nothing."""

_FAR_S = 2.0
"""Seconds above which a stamp before that of a frame shown is one of another clock."""

_LONGER = 1.5
"""Durations of a frame behind which, after an error, the next frame shows that others are lost."""


class LostFrames:
    """Watch of one decode of a stream in display order.

    Args:
        stream: video stream that is decoded.
        is_begin: true if the decode begins with the film; leading pictures of a key frame within it are not lost.

    Attributes:
        is_understated: true if those of the last loss came later than the header of H.264 says, and were left out.
        withholds: true for a codec whose first frame, though it may be no key frame, refers to none that is lost.
    """

    def __init__(self, stream: VideoStream, *, is_begin: bool = True) -> None:
        codec = stream.codec_context.codec.canonical_name
        self._guesses = codec in _GUESSES
        self._hides_key = False  # a packet that an edit list hides, and that decoders read
        self.withholds = codec == _WITHHOLDS
        self._context, self._codec = stream.codec_context, codec
        self._by_error = stream.container.format.name not in _EXACT or self.withholds
        self._is_timed = is_timed(stream.container)
        is_stamped = stream.container.format.name in STAMPED or not self._is_timed
        self._counts_leading = is_begin and is_stamped
        self._first_pts: list[int | None] = []  # of packets so far, until a frame is shown
        self._unkeyed = 0  # of these, before the first key frame
        self._refers = False  # of a raw stream: whether its first picture may refer to others before it
        self._begins = True
        self._begins_with_key = False  # that is, its first packet holds one, however damaged
        self.is_understated = False
        self._lost_begin = False
        self._failed = False
        self._end_pts: int | None = None  # by the frame before
        self._since_key: set[int] = set()  # stamps of packets behind the last key frame, not yet shown
        self._before_key: set[int] = set()  # stamps of packets before it that are not yet shown
        self._shown_pts: int | None = None
        self._coded_pts: int | None = None  # of the last packet
        self._late: set[int] = set()  # stamps of packets that come behind a frame to be shown after theirs
        self._tick_s = float(stream.time_base or 1)
        self._near, self._far = SQUEEZED_S / self._tick_s, _FAR_S / self._tick_s

    def expect(self, packet: Packet[VideoStream]) -> None:
        """Note a packet before it is decoded."""
        if not packet.size or packet.is_discard:
            self._hides_key |= packet.is_discard and packet.is_keyframe
            return
        if self._begins:
            is_key = _is_key(packet) if not self._first_pts else packet.is_keyframe
            self._begins_with_key |= is_key and not self._first_pts
            if not self._is_timed and not self._first_pts and self._codec in _LEADING:
                header = bytes(self._context.extradata or b"")
                self._refers = not holds_idr(bytes(packet), header, self._codec)
            self._unkeyed += not is_key and self._unkeyed == len(self._first_pts)
            self._first_pts.append(packet.dts if packet.pts is None and self._is_timed else packet.pts)
        if self.withholds and packet.pts is not None:
            self._note_late(packet.pts, packet.is_keyframe)

    def _note_late(self, pts: int, is_key: bool) -> None:
        """Note a packet of H.264 whose frame is before one that was shown, both behind one key frame."""
        if is_key:  # which begins another clock, where recordings are joined
            self._before_key, self._since_key = self._since_key, set()
            self._late.clear()
            self._shown_pts = None
        self._since_key.add(pts)
        # Stamps that a muxer squeezed tell no order.
        before_pts, self._coded_pts = self._coded_pts, pts
        is_squeezed = before_pts is not None and abs(pts - before_pts) <= self._near
        if (
            not is_squeezed
            and self._shown_pts is not None
            and self._near < self._shown_pts - pts <= self._far
        ):
            self._late.add(pts)

    def fail(self) -> None:
        """Note that the packet cannot be decoded."""
        self._failed = True
        self._lost_begin |= len(self._first_pts) == 1

    def before_first(self, frame: VideoFrame) -> tuple[list[int] | list[None], str]:
        """Return the stamps of frames that are lost before the first one, and why.

        Of a stream without stamps it is a None for each packet that gives no frame, or before the first key frame.
        """
        first_pts, self._first_pts = self._first_pts, []
        begins, self._begins = self._begins, False
        stamps = [pts for pts in first_pts if pts is not None]
        is_trusted = self._lost_begin or not (self._begins_with_key and self._by_error)
        is_counted = self._counts_leading and stamps[:1] == first_pts[:1] and not self._are_squeezed(stamps)
        if begins and frame.pts is None and not stamps and self._refers and not frame.interlaced_frame:
            # A decoder holds back as many frames as coding moves them.
            unshown = len(first_pts) - 1 - self._context.reorder_depth
            return [None] * max(unshown, self._unkeyed), self._lost_by(frame, None)
        if not begins or not first_pts or not (is_trusted or is_counted):
            return [], ""
        if frame.pts is None:
            return [None] * self._unkeyed if not stamps else [], _BETWEEN
        if not stamps:
            return [], ""
        # Leading pictures are shown before their key frame, and not where that begins the film (open groups).
        since = min(stamps)
        if self._begins_with_key:
            since = int(stamps[0] - self._far) if is_counted else stamps[0]
        lost = sorted({pts for pts in stamps if since <= pts < frame.pts})
        return lost, self._lost_by(frame, stamps[0])

    def _lost_by(self, first: VideoFrame, begin_pts: int | None) -> str:
        """Return in words why nothing before the first frame is shown, given the stamp of the first packet."""
        if not self._begins_with_key:
            return _BETWEEN
        if first.pts == begin_pts and (first.pts is not None or (first.key_frame and not self._lost_begin)):
            return _OPEN_GROUP
        is_refresh = self.withholds and not self._lost_begin and not first.key_frame
        return _REFRESH if is_refresh else _DAMAGED_KEY

    def _are_squeezed(self, stamps: list[int]) -> bool:
        """Return whether stamps lie as near to each other as a muxer makes them up, and tell no order."""
        near = sorted(set(stamps))
        return any((later - earlier) * self._tick_s < SQUEEZED_S for earlier, later in pairwise(near))

    def lacks_reference(self, first: VideoFrame) -> bool:
        """Return whether a film's first frame refers to one that is lost, not hidden, and is shown nevertheless."""
        return self._guesses and not self._hides_key and first.pict_type != PictureType.I

    def before(self, frame: VideoFrame) -> bool:
        """Return whether frames are lost between the frame before and this one."""
        if frame.pts is None:
            return False
        is_lost = self._failed and self._end_pts is not None and frame.pts > self._end_pts
        is_late = frame.pts in self._late
        self._late.discard(frame.pts)
        # One that is still to come may be shown in its turn: a stamp before it was too late.
        self.is_understated = not is_late and any(pts < frame.pts for pts in self._late)
        if self.is_understated:
            self._late.clear()
            is_lost = True
        # A clock that steps back at a key frame repeats stamps of frames that are shown behind its packet.
        if frame.pts in self._before_key:
            self._before_key.discard(frame.pts)
        elif frame.pts in self._since_key:
            self._since_key.discard(frame.pts)
            self._shown_pts = frame.pts
        self._failed = False
        self._end_pts = frame.pts + int(_LONGER * frame.duration) if frame.duration else None
        return is_lost

    def at_end(self) -> bool:
        """Return whether frames are lost at the end."""
        self.is_understated = bool(self._late)
        return self.is_understated


def _is_key(packet: Packet[VideoStream]) -> bool:
    """Return whether a first packet holds a key frame, by its content or by the container's index."""
    is_guess = packet.stream.container.format.name in _GUESSED_INDEX
    entry = None if is_guess else next(iter(packet.stream.index_entries), None)
    is_indexed = entry is not None and entry.is_keyframe and entry.timestamp in (packet.pts, packet.dts)
    return packet.is_keyframe or is_indexed  # of damaged H.264 FFmpeg does not see it
