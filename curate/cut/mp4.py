"""MP4 files in memory, deterministic and with the index first."""

from __future__ import annotations

import heapq
import io
import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import av
from av.container import InputContainer, OutputContainer
from av.packet import Packet
from av.stream import Stream

from reelweave.loader.base.operations import charged

HEVC_TAG = "hvc1"
"""Sample entry of HEVC with its parameter sets in the index; players of Apple read no other."""

_BUFFER_BYTES = 1 << 20

_Stream = TypeVar("_Stream", bound=Stream)

_NESTED = frozenset({b"trak", b"mdia", b"minf", b"stbl"})


class Mp4:
    """MP4 file under construction; it is never on disk, so that a full disk cannot damage a clip.

    Attributes:
        container: Container for adding streams and packets.
    """

    def __init__(self) -> None:
        self._file = io.BytesIO()
        # Bit-exact output: no version or date in the file.
        self.container: OutputContainer = av.open(
            self._file, "w", format="mp4", options={"fflags": "+bitexact"}, buffer_size=_BUFFER_BYTES
        )

    def add_like(self, template: _Stream) -> _Stream:
        """Add a stream for the packets of another one."""
        stream = self.container.add_stream_from_template(template)
        if template.codec_context.name == "hevc":
            stream.codec_context.codec_tag = HEVC_TAG
        return stream

    def close(self) -> bytes:
        """Write the index and return the file, with its index last."""
        self.container.close()
        data = self._file.getvalue()
        self._file.close()  # containers are reference cycles and would keep the file until garbage collection
        return data


@contextmanager
def read(data: bytes) -> Iterator[InputContainer]:
    """Open an MP4 file written by this module."""
    with (
        io.BytesIO(data) as file,
        av.open(file, "r", format="mp4", metadata_errors="replace", buffer_size=_BUFFER_BYTES) as container,
    ):
        assert isinstance(container, InputContainer)
        yield container


@charged("sound")
def merge(picture: bytes, sound: bytes) -> bytes:
    """Return one file of the video stream of ``picture`` and the audio stream of ``sound``, packets unchanged."""
    with read(picture) as video, read(sound) as audio:
        tracks: list[tuple[InputContainer, Stream]] = [
            (video, video.streams.video[0]),
            (audio, audio.streams.audio[0]),
        ]
        merged = Mp4()
        packets: list[Iterator[tuple[int, int, Packet[Stream]]]] = []
        ticks = math.lcm(*(stream.time_base.denominator for _, stream in tracks if stream.time_base))
        for track_index, (container, stream) in enumerate(tracks):
            packets.append(
                _packets_with_ticks(container, stream, merged.add_like(stream), ticks, track_index)
            )
        for _, _, packet in heapq.merge(*packets, key=lambda timed: timed[:2]):
            merged.container.mux_one(packet)
        return merged.close()


def _packets_with_ticks(
    container: InputContainer, stream: Stream, target: Stream, ticks: int, track_index: int
) -> Iterator[tuple[int, int, Packet[Stream]]]:
    """Yield each packet of a stream behind its time, in ``ticks`` a second, which all time bases divide."""
    assert stream.time_base is not None
    tick = int(stream.time_base * ticks)
    for packet in container.demux(stream):
        if packet.size and packet.dts is not None:
            time = packet.dts * tick
            packet.stream = target
            yield time, track_index, packet


def fast_start(data: bytes) -> bytes:
    """Move the index (``moov``) before the media, so that the file plays from its first bytes.

    Chunk offsets (``stco``, ``co64``; ISO/IEC 14496-12, 8.7.5) move by the size of the index.

    Raises:
        ValueError: The file has no index after its media.
    """
    boxes = list(_boxes(data, 0, len(data)))
    kinds = [kind for kind, _, _ in boxes]
    if kinds.count(b"moov") != 1 or kinds.count(b"mdat") != 1 or kinds.index(b"moov") < kinds.index(b"mdat"):
        raise ValueError("the written file has no index at its end")
    _, start, end = boxes[kinds.index(b"moov")]
    index = bytearray(data[start:end])
    for kind, at, stop in _tables(index, 8, len(index)):
        _shift(index, kind, at, stop, len(index))
    first = boxes[0][2] if kinds[0] == b"ftyp" else 0
    return b"".join([data[:first], index, data[first:start], data[end:]])


def _boxes(data: bytes | bytearray, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield (type, begin, end) of the adjacent boxes in ``data[start:end]``."""
    while start + 8 <= end:
        size, kind = struct.unpack_from(">I4s", data, start)
        if size == 1:
            (size,) = struct.unpack_from(">Q", data, start + 8)
        if size < 8 or start + size > end:
            raise ValueError("the written file has a damaged box")
        yield kind, start, start + size
        start += size


def _tables(data: bytearray, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    for kind, first, last in _boxes(data, start, end):
        if kind in _NESTED:
            yield from _tables(data, first + 8, last)
        elif kind in (b"stco", b"co64"):
            yield kind, first, last


def _shift(index: bytearray, kind: bytes, at: int, stop: int, by: int) -> None:
    (count,) = struct.unpack_from(">I", index, at + 12)
    layout = f">{count}{'I' if kind == b'stco' else 'Q'}"
    if at + 16 + struct.calcsize(layout) > stop:
        raise ValueError("the written file has a damaged box")
    moved = [offset + by for offset in struct.unpack_from(layout, index, at + 16)]
    if kind == b"stco" and moved and max(moved) >= 1 << 32:
        raise ValueError("the clip is larger than 4 GB")
    struct.pack_into(layout, index, at + 16, *moved)
