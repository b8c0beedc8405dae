"""Frames that a player shows of a clip, in display order, told from its packets where they tell.

Frame j of a clip is the frame that FFmpeg's own program writes as number j (``-fps_mode passthrough``). Packets are not
frames: an edit list discards those before a stream copy's beginning, alternate references are never shown, and a clip
that begins within an open group of pictures, or at a refresh, loses what cannot be decoded.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reelweave.loader.base.arrays import Floats
from reelweave.loader.dataset.samples.frames.h264_sets import FieldSlices
from reelweave.loader.dataset.samples.frames.lasting_turn import LastingTurn
from reelweave.loader.dataset.samples.frames.packets import read_packets
from reelweave.loader.dataset.samples.frames.set_changes import SetChanges
from reelweave.loader.dataset.samples.frames.video_stream import decode_stream, open_clip

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

_TOLD = frozenset({"h264", "hevc", "vp8", "vp9", "av1", "mjpeg", "prores"})
"""Codecs of which a packet is a frame, but for what `PacketFrames` looks at. MPEG-4 has packets of no or two frames."""

_VP8_SHOWN = 0x10
_H264_SLICES, _H264_IDR = (1, 2, 5), 5
_GAP_TOLERANCE = 0.25
"""Share of the usual gap by which gaps of a constant rate differ at most; ticks of 1 ms (Matroska) make less."""


class ToldFrames(NamedTuple):
    """Shown frames of a clip whose packets tell them.

    Attributes:
        pts: int64 [frames], rising: time stamps in ticks of the stream.
        is_key: bool [frames]: decoding can begin here.
        hidden: Number of packets whose frames are not shown, and of frames that several packets hold.
        turned: True if a message of the codec turns frames, which may lie before the key frame of one.
    """

    pts: NDArray[np.int64]
    is_key: NDArray[np.bool_]
    hidden: int
    turned: bool = False


class PacketFrames:
    """Reading of all packets of a stream, in coding order."""

    def __init__(self, container: "InputContainer", stream: "VideoStream") -> None:
        context = stream.codec_context
        self._codec = context.codec.canonical_name
        self._extradata = bytes(context.extradata or b"")
        # AVI has no time stamps of display; those that FFmpeg makes up are in coding order.
        self._tells = self._codec in _TOLD and container.format.name != "avi"
        self._fields = FieldSlices(self._extradata) if self._codec == "h264" else None
        self._sets = SetChanges(self._codec, self._extradata)
        self._first: int | None = None
        self._shown: list[tuple[int, bool]] = []
        self._hidden, self._turn = 0, LastingTurn(stream)

    def add(self, packet: "Packet[Any]") -> None:
        """Take the next packet; those without content count for nothing."""
        self._turn(packet)
        if not packet.size or not self._tells:
            return
        pts = packet.pts
        # Two packets may hold one picture.
        if pts is None or (self._fields is not None and self._fields.are_in(bytes(packet))):
            self._tells = False
        elif self._first is None:
            self._first = pts
            self._tells = packet.is_keyframe and self._starts_afresh(packet)
        elif pts < self._first:  # a leading picture, which may refer to what was cut away
            self._tells = False
        is_entry = self._sets.is_entry(bytes(packet)) and packet.is_keyframe
        if pts is not None and self._tells:
            if packet.is_discard or not self._is_shown(packet):
                self._hidden += 1
            else:
                self._shown.append((pts, is_entry))
                self._hidden += packet.pos is None  # a joined one has no place in the file

    @property
    def turned(self) -> bool:
        """True if a message of the codec turns frames."""
        return self._turn.seen

    def finish(self) -> ToldFrames | None:
        """Return the shown frames, once all packets are added; None if only decoding tells them."""
        pts = np.array([pts for pts, _ in self._shown], np.int64)
        order = np.argsort(pts, kind="stable")
        pts = pts[order]
        if not self._tells or not len(pts) or not (np.diff(pts) > 0).all():
            return None
        is_key = np.array([key for _, key in self._shown])[order]
        return ToldFrames(pts, is_key, self._hidden, self.turned)

    def _starts_afresh(self, packet: "Packet[Any]") -> bool:
        """Return whether all frames from a key frame on can be decoded: in H.264 not from a mere recovery point."""
        return self._codec != "h264" or _first_slice(bytes(packet), self._extradata) == _H264_IDR

    def _is_shown(self, packet: "Packet[Any]") -> bool:
        if self._codec == "vp8":  # RFC 6386, 9.1
            return bool(bytes(packet)[0] & _VP8_SHOWN)
        return self._codec != "vp9" or _is_shown_vp9(bytes(packet))


def read_told(container: "InputContainer", stream: "VideoStream") -> ToldFrames | None:
    """Read all packets of a stream and return its shown frames; None if only decoding tells them.

    Raises:
        av.FFmpegError: the container is damaged.
    """
    packets = PacketFrames(container, stream)
    for packet in read_packets(container, stream):
        packets.add(packet)
    return packets.finish()


def count_shown(clip: bytes | memoryview) -> int:
    """Return the number of frames that a player shows of a clip.

    Raises:
        av.FFmpegError: the clip cannot be decoded.
        IndexError: it has no video.
    """
    with open_clip(clip) as (container, stream):
        told_frames = read_told(container, stream)
    return sum(1 for _ in decoded_frames(clip)) if told_frames is None else len(told_frames.pts)


def read_times(clip: bytes | memoryview) -> Floats | None:
    """Return when each shown frame of a clip begins, float64 [frames], seconds after the first, rising.

    None if its frames have no time stamps, as in AVI.

    Raises:
        av.FFmpegError: the clip cannot be decoded.
        IndexError: it has no video.
    """
    with open_clip(clip) as (container, stream):
        told_frames, tick_s = read_told(container, stream), float(stream.time_base or 0)
    if told_frames is not None:
        return np.asarray((told_frames.pts - told_frames.pts[0]) * tick_s)
    stamps = [frame.pts for frame in decoded_frames(clip)]
    return times_of(stamps, tick_s)


def times_of(stamps: list[int | None], tick_s: float) -> Floats | None:
    """Return the times of decoded frames, seconds after the first; None unless all have rising time stamps.

    Two frames may share a stamp, as FFmpeg writes B-frames behind a hold: the first of them is shown for no time.
    """
    if not stamps or None in stamps:
        return None
    pts = np.array(stamps, np.int64)
    rising = (np.diff(pts) >= 0).all() and (len(pts) == 1 or pts[-1] > pts[0])
    return np.asarray((pts - pts[0]) * tick_s) if rising else None


def decoded_frames(clip: bytes | memoryview) -> Iterator["VideoFrame"]:
    """Decode a clip from its beginning and yield the frames that a player shows.

    Raises:
        av.FFmpegError: the clip cannot be decoded.
        IndexError: it has no video.
    """
    with open_clip(clip) as (container, stream):
        yield from decode_stream(container, stream)


def has_variable_rate(times_s: Floats) -> bool:
    """Return whether frames last unequally long: some gap differs from the median gap by more than a quarter.

    Args:
        times_s: float64 [frames]: begin of each frame.
    """
    gaps_s = np.diff(times_s)
    if len(gaps_s) < 2:
        return False
    usual_s = float(np.median(gaps_s))
    return bool((np.abs(gaps_s - usual_s) > _GAP_TOLERANCE * usual_s).any())


def _first_slice(packet: bytes, extradata: bytes) -> int:
    """Return the type of the first slice in an H.264 packet (ITU-T H.264, table 7-1); 0 if there is none."""
    at = 0
    if extradata[:1] == b"\x01" and len(extradata) > 4:  # units with their lengths: ISO/IEC 14496-15, 5.3.3.1
        width = (extradata[4] & 3) + 1
        while at + width < len(packet):
            kind = packet[at + width] & 31
            if kind in _H264_SLICES:
                return kind
            at += width + int.from_bytes(packet[at : at + width], "big")
        return 0
    while (at := packet.find(b"\0\0\1", at)) >= 0 and at + 3 < len(
        packet
    ):  # units behind start codes: annex B
        kind = packet[at + 3] & 31
        if kind in _H264_SLICES:
            return kind
        at += 3
    return 0


def _is_shown_vp9(packet: bytes) -> bool:
    """Return whether a packet shows a frame (VP9 bitstream, 7.2 and annex B); a superframe always does."""
    if packet[-1] & 0xE0 == 0xC0:
        return True
    profile = (packet[0] >> 5 & 1) | (packet[0] >> 4 & 1) << 1
    at = 5 if profile == 3 else 4  # behind frame_marker, profile and, in profile 3, a reserved bit
    bits = int.from_bytes(packet[:2], "big")
    existing, shown = bits >> (15 - at) & 1, bits >> (15 - at - 2) & 1
    return bool(existing or shown)
