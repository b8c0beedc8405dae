"""Key frames of HEVC whose bytes a decoder does not read to their end: it reads them by wrong parameter sets.

FFmpeg shows whatever comes of them, mostly without an error. A right picture depends on the last bytes of its slices
and on nothing behind them; one decoded by wrong sets runs out of bytes, or ends before them. So a key frame is decoded
alone, once with other last bytes and once with further ones behind them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import av
from av.codec.context import CodecContext
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from reelweave.curate.frames.picture import checksum
from reelweave.loader.dataset.samples.frames.nal_units import nal_bounds, prefix_bytes

_APART_S = 2.0
"""Seconds of film between two key frames that are checked, while these are right."""

_MOST_SKIPPED, _MOST_SKIPPED_BYTES = 16, 1 << 21
"""Key frames that are left out between two that are checked, and the bytes of each."""

_SLICES, _KEYS, _SETS, _OWN = range(32), range(16, 22), range(32, 35), (33, 34)
"""Types of NAL units: ITU-T H.265, table 7-1."""

_MOST_SETS = 64
_CHANGED = 16  # last bytes of a slice that are changed
_BEHIND = bytes((0x5A, 0xC3, 0x96, 0x71)) * 16
_ZERO_WORD = b"\0\0\3"  # words that may stand behind a slice and mean nothing: 9.3.2.5


class KeyChecks:
    """Checks of the key frames of one stream: about one in two seconds, those around a wrong one, and all behind it.

    Packets that hold their own parameter sets are taken to be right. Sets in earlier packets hold for later ones.

    Args:
        stream: Video stream that is decoded.
    """

    def __init__(self, stream: VideoStream) -> None:
        codec = stream.codec_context
        self._options, self._is_hevc = codec.options, codec.codec.canonical_name == "hevc"
        self._header = codec.extradata or b""
        self._sets: dict[bytes, None] = {}  # units of earlier packets, the last one last
        self._apart = _APART_S / float(stream.time_base or 1)
        self._checked_pts: int | None = None
        self._skipped: list[tuple[int, bytes]] = []  # packets behind the one that was checked last
        self._wrong: set[int] = set()
        self._right: set[int] = set()
        self._is_wrong = False  # the key frame that was checked last
        # Key frames behind a right one.
        self._shown: deque[tuple[int | None, int]] = deque(maxlen=2 * _MOST_SKIPPED)

    def expect(self, packet: Packet[VideoStream]) -> None:
        """Check a packet before it is decoded, if its turn has come."""
        if not self._is_hevc or not packet.size:
            return
        if packet.has_sidedata("new_extradata"):
            self._header, self._sets = bytes(packet.get_sidedata("new_extradata")), {}
        data = bytes(packet)
        own = self._note_sets(data)
        if not packet.is_keyframe or packet.pts is None:
            return
        is_near = self._checked_pts is not None and 0 <= packet.pts - self._checked_pts < self._apart
        is_room = len(self._skipped) < _MOST_SKIPPED and len(data) <= _MOST_SKIPPED_BYTES
        if is_near and is_room and not self._is_wrong:
            self._skipped.append((packet.pts, data))
            return
        self._checked_pts = packet.pts
        verdict = False if own else self._is_read_wrongly(data)
        if verdict is not None:
            self._is_wrong = verdict
            (self._wrong if verdict else self._right).add(packet.pts)
        if verdict:
            self._wrong.update(pts for pts, skipped in self._skipped if self._is_read_wrongly(skipped))
        self._skipped.clear()

    def wrong_since(self, frame: VideoFrame, number: int) -> int | None:
        """Take the next frame, and return the first key frame that is wrong as it is, or None where it is not.

        Args:
            frame: The frame.
            number: Its number in display order.
        """
        if frame.pts in self._right:
            self._shown.clear()
        elif frame.key_frame or frame.pts in self._wrong:
            self._shown.append((frame.pts, number))
        if frame.pts not in self._wrong:
            return None
        return min(shown for pts, shown in self._shown if pts in self._wrong)

    def may_mend(self, frame: VideoFrame) -> bool:
        """Return whether pictures may be right again from a key frame on; behind a wrong one, a right one alone."""
        return frame.pts in self._right or not self._is_wrong

    def _note_sets(self, packet: bytes) -> bool:
        """Note the parameter sets in a packet, and return whether it holds those of its own pictures."""
        kinds = set[int]()
        for _, begin, end in nal_bounds(packet, prefix_bytes(self._header, "hevc")):
            if (kind := packet[begin] >> 1 & 63) in _SETS:
                kinds.add(kind)
                self._sets.pop(packet[begin:end], None)
                self._sets[packet[begin:end]] = None
        while len(self._sets) > _MOST_SETS:
            del self._sets[next(iter(self._sets))]
        return kinds.issuperset(_OWN)

    def _is_read_wrongly(self, packet: bytes) -> bool | None:
        """Return whether slices of a packet are not read to their ends, or beyond them; None where it is not told."""
        prefix = prefix_bytes(self._header, "hevc")
        kinds = {packet[begin] >> 1 & 63 for _, begin, _ in nal_bounds(packet, prefix)}
        is_room = prefix is None or len(packet) + len(_BEHIND) < 1 << 8 * prefix
        if not kinds.intersection(_KEYS) or not is_room:
            return None
        shown = self._checksum(_with_slices(packet, prefix, _without_zeros))
        if shown is None:
            return None
        if shown != self._checksum(_with_slices(packet, prefix, lambda unit: unit + _BEHIND)):
            return True
        return shown == self._checksum(_with_slices(packet, prefix, _spoil_end))

    def _checksum(self, packet: bytes) -> int | None:
        """Return a checksum of the picture of a packet that is decoded alone, None without one."""
        codec = CodecContext.create("hevc", "r")
        codec.extradata, codec.thread_count, codec.thread_type = self._header, 1, "NONE"
        # Of edges that are cut off, the last bytes may be.
        codec.options = {**self._options, "apply_cropping": "0"}
        prefix = prefix_bytes(self._header, "hevc")
        sets = b"".join(_prefixed(unit, prefix) for unit in self._sets)
        try:
            frames = [*codec.decode(Packet(sets + packet)), *codec.decode(None)]
        except av.FFmpegError:
            return None
        return checksum(frames[0]) if frames else None


def _with_slices(packet: bytes, prefix: int | None, change: Callable[[bytes], bytes]) -> bytes:
    """Return a packet with its slices changed."""
    units: list[bytes] = []
    for _, begin, end in nal_bounds(packet, prefix):
        unit = packet[begin:end]
        if unit[0] >> 1 & 63 in _SLICES:
            unit = change(_without_zeros(unit))
        units.append(_prefixed(unit, prefix))
    return b"".join(units)


def _prefixed(unit: bytes, prefix: int | None) -> bytes:
    return (b"\0\0\0\1" if prefix is None else len(unit).to_bytes(prefix, "big")) + unit


def _without_zeros(unit: bytes) -> bytes:
    """Return a slice without the zeros behind it."""
    unit = unit.rstrip(b"\0")
    while unit.endswith(_ZERO_WORD):
        unit = unit[: -len(_ZERO_WORD)].rstrip(b"\0")
    return unit


def _spoil_end(unit: bytes) -> bytes:
    """Return a slice with other bytes at its end."""
    at = max(len(unit) // 2, len(unit) - _CHANGED)
    return unit[:at] + bytes(byte ^ 0xA5 for byte in unit[at:])
