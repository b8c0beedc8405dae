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
from reelweave.loader.errors import refuse_shortage

_SMALL = 64  # samples of luma across and down that are compared, about
_LEVELS, _LEVELS_PER_CRF = 4.0, 0.4
"""Mean distance of luma, in levels of 255, by which encoded frames differ at most."""

Expected = int | NDArray[np.uint8]
"""Checksum of a copied frame, or some luma of an encoded one."""


class SeamError(CutError):
    """Reason why a smart cut does not show the pictures of its source."""


def checksum(picture: VideoFrame) -> int:
    """Return a checksum of all samples of a frame."""
    return zlib.crc32(np.ascontiguousarray(picture.to_ndarray(), np.uint8).data)


def small_luma(picture: VideoFrame) -> NDArray[np.uint8]:
    """Return some samples of the luma of a frame, uint8 [rows, columns]."""
    plane = picture.planes[0]
    luma = np.frombuffer(memoryview(plane), np.uint8).reshape(-1, plane.line_size)
    rows, columns = max(1, picture.height // _SMALL), max(1, picture.width // _SMALL)
    return luma[: picture.height : rows, : picture.width : columns].copy()


def check(
    data: bytes,
    segments: Sequence[Segment],
    expected: Mapping[int, Expected | None],
    crf: int,
    extent: Literal["ends", "whole"],
) -> None:
    """Decode the edges of a clip, or all of it, and compare the frames.

    Args:
        data: MP4 file of pictures only.
        segments: Segments of the clip, in its frames.
        expected: What is known of frames, by their number.
        crf: Constant rate factor of encoded frames.
        extent: ends: encoded segments, each with the first frame copied behind it; whole: all frames.

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
                _compare(stream, packets, step, expected, range(frames), crf)
                return
            for first, last in _stretches(segments):
                _compare(stream, packets[first:last], step, expected, range(first, last), crf)
                stream.codec_context.flush_buffers()
    except (av.error.FFmpegError, ValueError) as error:
        refuse_shortage(error)
        raise SeamError("its clip cannot be decoded") from error


def _stretches(segments: Sequence[Segment]) -> Iterator[tuple[int, int]]:
    """Yield runs of frames, as many packets, that decode without others: encoded ones, and the IDR picture behind."""
    for at, segment in enumerate(segments):
        follows = at + 1 < len(segments)
        if not segment.copied:
            yield segment.first, segment.last + follows
        elif not at or segments[at - 1].copied:
            yield segment.first, segment.first + 1


def _compare(
    stream: VideoStream,
    packets: Sequence[Packet[VideoStream]],
    stamps: Sequence[int],
    expected: Mapping[int, Expected | None],
    wanted: range,
    crf: int,
) -> None:
    decoded = (frame for packet in [*packets, None] for frame in stream.codec_context.decode(packet))
    count = 0
    for number, frame in zip(wanted, decoded, strict=False):
        count += 1
        if frame.pts != stamps[number] or frame.is_corrupt:
            raise SeamError(f"frame {number} of its clip is not shown in its time, or decodes with damage")
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
