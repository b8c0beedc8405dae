"""Entry of a decoder in the middle of a source: key frames from which all later frames decode as in a whole pass."""

from __future__ import annotations

from dataclasses import dataclass

from av.container import InputContainer
from av.packet import Packet
from av.video.stream import VideoStream

from reelweave.curate.frames.source import SourceError
from reelweave.loader.dataset.samples.frames.nal_units import nal_units, prefix_bytes
from reelweave.loader.dataset.samples.frames.packets import read_packets

CONTAINERS = ("mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm")
"""Containers with an index of key frames and exact time stamps, by their names in FFmpeg."""

CODECS = frozenset({"h264", "hevc", "vp8", "vp9", "libvpx", "libvpx-vp9", "av1", "libdav1d", "libaom-av1"})
"""Codecs whose key frames end all references to earlier frames, by the names of their decoders in FFmpeg."""

_SLICE_IDR = 5  # nal_unit_type of ITU-T H.264, table 7-1
_IDR = (
    19,
    20,
)  # nal_unit_type of ITU-T H.265, table 7-1: IDR pictures with and without leading pictures that decode
_IRAP = range(16, 22)  # nal_unit_type of ITU-T H.265, table 7-1: BLA, IDR and CRA pictures


class EntryError(SourceError):
    """Reason why decoding cannot begin exactly at a place of a source."""


@dataclass(frozen=True)
class Entry:
    """Place in a source at which a decoder begins.

    Attributes:
        near_s: Seconds after the first frame; the last key frame before begins the decoding.
        begin_pts: Stamp of the first frame of the source, in ticks.
    """

    near_s: float
    begin_pts: int


def enter(container: InputContainer, stream: VideoStream, near_pts: int) -> int:
    """Place a container at the last key frame before a time, and return the stamp of that frame.

    Args:
        container: Opened container.
        stream: Video stream of the container.
        near_pts: The time in ticks of the stream.

    Raises:
        EntryError: No key frame is there from which decoding is exact.
    """
    _seek(container, stream, near_pts)
    for packet in read_packets(container, stream):
        if packet.size:
            if packet.pts is None or not packet.is_keyframe or not _is_entry(packet, stream):
                raise EntryError("decoding cannot begin exactly at one of its key frames")
            _seek(container, stream, near_pts)
            return packet.pts
    raise EntryError("nothing can be read from one of its key frames on")


def _seek(container: InputContainer, stream: VideoStream, near_pts: int) -> None:
    container.seek(near_pts, stream=stream)


def _is_entry(packet: Packet[VideoStream], stream: VideoStream) -> bool:
    header = bytes(stream.codec_context.extradata or b"")
    codec = stream.codec_context.codec.canonical_name
    if codec == "h264":
        return holds_idr(bytes(packet), header)
    if codec == "hevc":
        return any(
            unit[0] >> 1 & 63 in _IRAP for unit in nal_units(bytes(packet), prefix_bytes(header, codec))
        )
    return True


def holds_idr(packet: bytes, header: bytes, codec: str = "h264") -> bool:
    """Return True when a packet of H.264 or HEVC holds an IDR picture, by its NAL units.

    Args:
        packet: Packet, length-prefixed (ISO/IEC 14496-15) or with start codes (ITU-T H.264, annex B).
        header: Parameter sets; a first byte of 1 means length prefixes.
        codec: "h264", "hevc", or another one, whose packets hold none.
    """
    units = nal_units(packet, prefix_bytes(header, codec)) if codec in ("h264", "hevc") else iter(())
    if codec == "hevc":
        return any(unit[0] >> 1 & 63 in _IDR for unit in units)
    return any(unit[0] & 31 == _SLICE_IDR for unit in units)
