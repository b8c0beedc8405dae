"""Packets that hold pictures, counted against the pictures that a decoder gives; decoders leave some out in silence."""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from reelweave.curate.frames.clocks.clock import JUMP_S, SQUEEZED_S
from reelweave.curate.frames.frame_times import Damage, Undecoded
from reelweave.loader.dataset.samples.frames.nal_units import nal_units, prefix_bytes

STAMPED = ("mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm", "mpegts", "mpeg", "flv")
"""Containers whose packets state when their pictures are shown."""

_A_PICTURE_EACH = ("av1", "hevc")
"""Codecs each of whose packets shows a picture, so that a single one is missed."""

_LEAST = 4
"""Packets in a row without a picture that are missed of other codecs: fields take two, and some pictures are hidden."""

_TINY = 16
"""Bytes up to which a packet says that the picture before goes on (MPEG-4, VP8 and others)."""

_FAR_S = 2.0
"""Seconds by which the stamp of a key frame lies before others where another clock begins."""

_LONG_S = 0.5
"""Seconds above which packets at the end count, however few they are."""

_ROUNDING_S = 0.002
"""Seconds by which a stamp may lie before the end of the frame before it."""

_RECENT = 32
"""Packets near one of which in time a stamp is one that a muxer made up: behind it frames come in another order."""

_MOST_PENDING = 4096  # packets; coding moves pictures by 16
_VCL, _IRAP, _ENDS = range(32), range(16, 24), (36, 37)  # types of NAL units in HEVC: ITU-T H.265, table 7-1
_SKIPPED_LEADING = (8, 9)
"""Types of pictures that may refer to what is before a key frame, and are left out where films begin."""
_FIRST_SLICE, _DROPS_PRIOR = 0x80, 0x40  # the first bits of a slice's header


def without_picture(missing: int, packets: int) -> str:
    """Return words for packets of which some give no picture."""
    give = "gives" if missing == 1 else "give"
    return f"{missing} of {packets} packets {give} no picture: damaged, or joined with parameter sets of another part"


class MissingPictures:
    """Count of one decode of a stream in display order.

    Args:
        stream: Video stream that is decoded.

    Attributes:
        passed: Number of packets so far behind which a frame was shown, and that had not given a picture then.
    """

    def __init__(self, stream: VideoStream) -> None:
        context = stream.codec_context
        codec = context.codec.canonical_name
        self._is_hevc = codec == "hevc"
        self._least = 1 if codec in _A_PICTURE_EACH else _LEAST
        self._counts = codec == "av1" or stream.container.format.name in STAMPED
        self._prefix = prefix_bytes(context.extradata or b"", codec)
        self._tick_s = float(stream.time_base or 0)
        self._pending: list[tuple[int, int]] = []  # clock and stamp of packets whose picture is to come
        self._many = 0  # further ones, which come no more
        self.passed = 0
        self._passed: dict[tuple[int, int], int] = {}  # those that gave no picture so far, with their numbers
        self._late = array("q")  # numbers of those whose picture came later
        self._recent: deque[int] = deque(maxlen=_RECENT)  # stamps, of packets that show nothing too
        self._clock, self._last_pts, self._end_pts = 0, 0, 0
        self._shown: tuple[int, int] | None = None
        self._unknown = 0  # frames in a row with stamps of no packet
        self._has_ended = False  # HEVC: a sequence ended, and what follows begins anew

    def expect(self, packet: Packet[VideoStream]) -> None:
        """Note a packet before it is decoded, unless it shows nothing."""
        tiny = 0 if self._least == 1 else _TINY
        if not self._counts or packet.pts is None or packet.is_discard or packet.size <= tiny:
            return
        if packet.is_keyframe and packet.pts < self._last_pts - _FAR_S / (self._tick_s or 1):
            self._clock, self._last_pts, self._end_pts = self._clock + 1, packet.pts, packet.pts
        is_squeezed = any(abs(packet.pts - pts) * self._tick_s < SQUEEZED_S for pts in self._recent)
        self._recent.append(packet.pts)
        self._last_pts = max(self._last_pts, packet.pts)
        self._end_pts = max(self._end_pts, packet.pts + (packet.duration or 0))
        if (self._is_hevc and not self._shows_picture(packet)) or is_squeezed:
            return
        entry = self._clock, packet.pts
        at = bisect_left(self._pending, entry)
        if at == len(self._pending) or self._pending[at] != entry:
            insort(self._pending, entry)
        if len(self._pending) > _MOST_PENDING:
            self._many += _MOST_PENDING // 2
            del self._pending[: _MOST_PENDING // 2]

    def _shows_picture(self, packet: Packet[VideoStream]) -> bool:
        """Return whether a packet of HEVC begins a picture that every decoder shows."""
        shows = False
        for unit in nal_units(bytes(packet), self._prefix):
            kind = unit[0] >> 1 & 63
            self._has_ended |= kind in _ENDS
            if kind not in _VCL or len(unit) < 3 or shows:
                continue
            if kind in _IRAP:
                if unit[2] & _DROPS_PRIOR or self._has_ended:  # pictures not shown yet are dropped
                    self._pending.clear()
                self._has_ended = False
            shows = bool(unit[2] & _FIRST_SLICE) and kind not in _SKIPPED_LEADING
        return shows

    def count_before(self, frame: VideoFrame) -> int:
        """Take the next frame, and return how many packets before it gave no picture; 0 for as few as are usual."""
        if not self._counts:
            return 0
        entry = self._find(frame.pts)
        if entry is None:
            late = None if frame.pts is None else self._passed.pop((self._clock, frame.pts), None)
            if late is None:
                self._unknown += 1
            else:
                self._late.append(late)
            return 0
        at = bisect_left(self._pending, entry)
        missing = at + self._many - self._unknown
        for passed in self._pending[:at]:
            self._passed[passed] = self.passed
            self.passed += 1
        while len(self._passed) > _MOST_PENDING:
            del self._passed[next(iter(self._passed))]
        self.passed += self._many
        del self._pending[: at + 1]
        is_first, self._shown, self._many, self._unknown = self._shown is None, entry, 0, 0
        return 0 if is_first or missing < self._least else missing

    def told(self, damage: Sequence[Damage], silent: Mapping[int, tuple[int, int]]) -> tuple[Damage, ...]:
        """Return damage with its reasons, without what is none, since pictures came later than their stamps said.

        Args:
            damage: Damage of the whole decode.
            silent: Packets passed, the first and one past the last, of damage that nothing else tells, by place.
        """
        late, found = np.array(self._late), list[Damage]()
        for place, hurt in enumerate(damage):
            if place not in silent:
                found.append(hurt)
                continue
            first, last = silent[place]
            missing = last - first - int(np.count_nonzero((late >= first) & (late < last)))
            if missing >= self._least:
                words = without_picture(missing, missing + hurt.last - hurt.first)
                found.append(replace(hurt, reason=f"{words}; frames that depend on them are unsafe"))
        return tuple(found)

    def _find(self, pts: int | None) -> tuple[int, int] | None:
        """Return the first packet to come with a stamp."""
        if pts is None or not self._pending:
            return None
        for clock in range(self._pending[0][0], self._pending[-1][0] + 1):
            at = bisect_left(self._pending, (clock, pts))
            if at < len(self._pending) and self._pending[at] == (clock, pts):
                return clock, pts
        return None

    def at_end(self, end_pts: float) -> Undecoded | None:
        """Return the packets behind the last frame, or None for as few as are usual.

        Args:
            end_pts: Time at which the last frame ends, in ticks of the last clock.
        """
        if self._shown is None:
            return None
        since = end_pts - _ROUNDING_S / (self._tick_s or 1)
        behind = sorted(
            pts for clock, pts in {*self._passed, *self._pending} if clock == self._clock and pts >= since
        )
        # A stamp far behind the others is wrong, and tells no end.
        last, jump, count = end_pts, JUMP_S / (self._tick_s or 1), 0
        for pts in behind:
            if pts - last > jump:
                break
            last, count = pts, count + 1
        is_end = count and count == len(behind) and self._end_pts - last <= jump
        lasts_s = ((max(last, self._end_pts) if is_end else last) - end_pts) * self._tick_s
        count += self._many - self._unknown
        is_few = count < self._least and lasts_s <= _LONG_S
        return None if count <= 0 or lasts_s <= 0 or is_few else Undecoded(count, lasts_s)
