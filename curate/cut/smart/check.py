"""Comparison of a finished smart cut with the pictures of its source."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import av
import numpy as np
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from numpy.typing import NDArray

from reelweave.curate.cut.clip import CutError
from reelweave.curate.cut.mp4 import read
from reelweave.curate.cut.smart.plan import Segment
from reelweave.loader.dataset.colour.sdr import FULL_RANGE
from reelweave.loader.errors import refuse_shortage

_SMALL = 64  # samples of luma across and down that are compared, about
MOST_CHECKED = 12
"""Frames that are compared at the begin of a copied run whose leading pictures are left out, at most."""
_LEVELS, _LEVELS_PER_CRF = 4.0, 0.4
"""Mean distance of luma, in levels of 255, by which encoded frames differ at most."""

Expected = int | NDArray[np.uint8]
"""Checksum of a copied frame, or some luma of an encoded one."""


class SeamError(CutError):
    """Reason why a smart cut does not show the pictures of its source."""


def colours_of(picture: VideoFrame) -> tuple[int, ...]:
    """Return matrix, primaries and transfer of a frame, and whether its range is full; unknown ones are limited."""
    is_full = picture.color_range == FULL_RANGE
    return picture.colorspace, picture.color_primaries, picture.color_trc, is_full


def checksum(picture: VideoFrame) -> int:
    """Return a checksum of all samples of a frame."""
    return zlib.crc32(np.ascontiguousarray(picture.to_ndarray()).data)


def small_luma(picture: VideoFrame) -> NDArray[np.uint8]:
    """Return some samples of the luma of a frame, in levels of 255, uint8 [rows, columns]."""
    plane, bits = picture.planes[0], picture.format.components[0].bits
    kind = np.dtype(np.uint8 if bits == 8 else np.uint16)
    luma = np.frombuffer(memoryview(plane), kind).reshape(-1, plane.line_size // kind.itemsize)
    rows, columns = max(1, picture.height // _SMALL), max(1, picture.width // _SMALL)
    some = luma[: picture.height : rows, : picture.width : columns]
    return (some >> bits - 8).astype(np.uint8)


def check(
    data: bytes,
    segments: Sequence[Segment],
    expected: Mapping[int, Expected | None],
    colours: tuple[int, ...],
    crf: int,
    extent: Literal["ends", "whole"],
) -> None:
    """Decode the edges of a clip, or all of it, and compare the frames.

    Args:
        data: MP4 file of pictures only.
        segments: Segments of the clip, in its frames.
        expected: What is known of frames, by their number.
        colours: `colours_of` all frames.
        crf: Constant rate factor of encoded frames.
        extent: ends: encoded segments, each with the first frames copied behind it; whole: all frames.

    Raises:
        SeamError: A frame is missing or shows something else.
    """
    frames = segments[-1].last
    try:
        with read(data) as container:
            stream = container.streams.video[0]
            stream.thread_type = "NONE"
            stream.codec_context.options = {"err_detect": "explode"}
            packets = [packet for packet in container.demux(stream) if packet.size]
            step = sorted(packet.pts or 0 for packet in packets)
            if len(step) != frames:
                raise SeamError(f"its clip holds {len(step)} frames instead of {frames}")
            if extent == "whole":
                _compare(stream, packets, step, expected, colours, range(frames), crf)
                return
            shown = [packet.pts or 0 for packet in packets]
            for first, last in _stretches(segments, shown):
                _compare(stream, packets[first:last], step, expected, colours, range(first, last), crf)
                stream.codec_context.flush_buffers()
    except (av.error.FFmpegError, ValueError) as error:
        refuse_shortage(error)
        raise SeamError("its clip cannot be decoded") from error


def _stretches(segments: Sequence[Segment], shown: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield runs of frames, as many packets, that decode without others: encoded ones, and the first copied behind.

    Args:
        segments: Segments of the clip, in its frames.
        shown: Time of showing of each packet in decoding order.
    """
    for at, segment in enumerate(segments):
        following = segments[at + 1] if at + 1 < len(segments) else None
        if not segment.copied:
            yield segment.first, segment.last if following is None else _first_copied(following, shown)
        elif not at or segments[at - 1].copied:
            yield segment.first, _first_copied(segment, shown)


def _first_copied(segment: Segment, shown: Sequence[int]) -> int:
    """Return one past the first frames of a copied run that are compared.

    That is its entry, since one that nothing leads is decoded by itself. Behind leading pictures that are left out, it
    is frames enough to show whether any refers to them.
    """
    last = segment.first + 1
    if segment.skipped:
        times = sorted(shown[segment.first : segment.last])
        stop = min(segment.last, segment.first + MOST_CHECKED)
        for end in range(last + 1, stop + 1):
            count = end - segment.first
            if sorted(shown[segment.first : end]) == times[:count]:
                last = end
    return last


def _compare(
    stream: VideoStream,
    packets: Sequence[Packet[VideoStream]],
    stamps: Sequence[int],
    expected: Mapping[int, Expected | None],
    colours: tuple[int, ...],
    wanted: range,
    crf: int,
) -> None:
    decoded = (frame for packet in [*packets, None] for frame in stream.codec_context.decode(packet))
    count = 0
    for number, frame in zip(wanted, decoded, strict=False):
        count += 1
        if frame.pts != stamps[number] or frame.is_corrupt:
            raise SeamError(f"frame {number} of its clip is not shown in its time, or decodes with damage")
        if colours_of(frame) != colours:
            raise SeamError(f"frame {number} of its clip has other colours than its source")
        picture = expected.get(number)
        if isinstance(picture, int):
            if checksum(frame) != picture:
                raise SeamError(f"frame {number} of its clip is not that of its source")
        elif picture is not None:
            levels = float(np.abs(small_luma(frame).astype(np.int16) - picture).mean())
            if levels > _LEVELS + _LEVELS_PER_CRF * crf:
                raise SeamError(f"frame {number} of its clip differs from its source by {levels:.1f} levels")
    if count != len(wanted):
        raise SeamError(f"{len(wanted)} frames of its clip decode to {count}")
