"""Verification of a written clip against its index entry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Literal, cast

import av
import numpy as np
from av.audio.stream import AudioStream
from av.packet import Packet
from av.stream import Stream
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from reelweave.curate.cut.clip import CutError
from reelweave.curate.cut.mp4 import read
from reelweave.curate.filters.sample import Floats
from reelweave.curate.filters.sound import LoudnessMeter
from reelweave.curate.frames.picture import Geometry
from reelweave.loader.base.operations import charged
from reelweave.loader.errors import refuse_shortage


class DamagedSoundError(CutError):
    """Reason why the sound track of a clip does not decode."""


@charged("verify")
def verify(
    data: bytes,
    frames: int,
    rate: Fraction,
    size: Geometry,
    *,
    sound: bool,
    extent: Literal["ends", "whole"] = "ends",
) -> Floats:
    """Read a clip as a player would: count its packets, decode its sound, and the ends of its pictures or all of them.

    Args:
        data: Bytes of the MP4 file.
        frames: Expected number of frames.
        rate: Frame rate of the grid that frames must lie on, beginning at 0.
        size: Expected size and depth of the pictures.
        sound: True when a sound track that begins with the first picture is expected.
        extent: Decoded part: the first and the last frame with their references, or all.

    Returns:
        Loudness of its sound, as `reelweave.curate.filters.sound.loudness_dbfs`.

    Raises:
        DamagedSoundError: Its sound does not decode.
        CutError: The clip differs.
    """
    try:
        with read(data) as container:
            stream = container.streams.video[0]
            stream.thread_type = "NONE"
            # By default a decoder conceals damage. The loop filter proves nothing here.
            stream.codec_context.options = {"err_detect": "explode", "skip_loop_filter": "all"}
            packets: list[Packet[Stream]] = [packet for packet in container.demux() if packet.size]
            picture = [packet for packet in packets if isinstance(packet.stream, VideoStream)]
            heard = [packet for packet in packets if not isinstance(packet.stream, VideoStream)]
            _check_times(picture, frames, rate)
            if sound != bool(heard) or (sound and not _begins_in_time(heard)):
                raise CutError("its sound track was not written as it should be")
            _check_pictures(stream, picture, size, extent)
            return _loudness(container.streams.audio[0], heard) if heard else np.zeros(0, np.float32)
    except (av.error.FFmpegError, ValueError, IndexError) as error:
        refuse_shortage(error)
        raise CutError(f"its clip cannot be read: {error}") from error


def _check_times(packets: list[Packet[Stream]], frames: int, rate: Fraction) -> None:
    if len(packets) != frames:
        raise CutError(f"its clip holds {len(packets)} frames instead of {frames}")
    if not packets[0].is_keyframe:
        raise CutError("its clip does not begin with a key frame")
    # One multiplication per clip instead of one per frame: ticks are whole multiples of a frame.
    step = 1 / (rate * packets[0].time_base)
    if sorted(packet.pts or 0 for packet in packets) != [round(index * step) for index in range(frames)]:
        raise CutError("its clip's frames do not lie on the grid of its rate")


def _begins_in_time(packets: list[Packet[Stream]]) -> bool:
    heard = [
        packet for packet in packets if packet.pts is not None and packet.pts + (packet.duration or 0) > 0
    ]
    return bool(heard) and (heard[0].pts or 0) <= (heard[0].duration or 0)


@charged("sound")
def _loudness(stream: AudioStream, packets: list[Packet[Stream]]) -> Floats:
    """Decode a sound track and return its loudness; an error in any packet raises."""
    meter = LoudnessMeter()
    context = stream.codec_context
    context.thread_count = 1
    try:
        for packet in [*packets, None]:
            for frame in context.decode(cast("Packet[AudioStream] | None", packet)):
                if frame.is_corrupt:
                    raise DamagedSoundError("it decodes with damage")
                meter.push(frame)
    except (av.error.FFmpegError, ValueError) as error:
        refuse_shortage(error)
        raise DamagedSoundError("it does not decode") from error
    return meter.take()


def _check_pictures(
    stream: VideoStream, packets: list[Packet[Stream]], size: Geometry, extent: Literal["ends", "whole"]
) -> None:
    if extent == "whole":
        _check_run(_decode_packets(stream, packets), len(packets), size, "pictures")
        return
    last_key = max(index for index, packet in enumerate(packets) if packet.is_keyframe)
    if last_key > 0:
        _check_run(_decode_packets(stream, packets[:1]), 1, size, "first frame")
        stream.codec_context.flush_buffers()
    _check_run(_last(stream, packets[last_key:]), 1, size, "last frame")


def _last(stream: VideoStream, packets: list[Packet[Stream]]) -> list[VideoFrame]:
    """Decode the frame shown last, from a key frame on through its references; an empty list without it."""
    last_pts = max(packet.pts or 0 for packet in packets)
    # Frames without dependents are skipped.
    stream.codec_context.skip_frame = "NONREF"
    last_frame = None
    for packet in [*packets, None]:
        if packet is not None and packet.pts == last_pts:
            stream.codec_context.skip_frame = "DEFAULT"
        for frame in stream.codec_context.decode(packet):
            if frame.is_corrupt:
                raise CutError("its clip decodes with damage")
            last_frame = frame
    return [last_frame] if last_frame is not None and last_frame.pts == last_pts else []


def _check_run(frames: Iterable[VideoFrame], expected: int, size: Geometry, which: str) -> None:
    count, before = 0, -1
    for frame in frames:
        count += 1
        if frame.pts is None or frame.pts <= before:
            raise CutError("its clip's frames are not shown in the order of their times")
        before = frame.pts
        if frame.is_corrupt:
            raise CutError("its clip decodes with damage")
        if (frame.width, frame.height, frame.format.name) != (size.width, size.height, size.pixel_format):
            raise CutError(f"its clip shows {frame.width}x{frame.height} {frame.format.name}")
    if count != expected:
        raise CutError(f"its clip's {which} decode to {count} frames instead of {expected}")


def _decode_packets(stream: VideoStream, packets: list[Packet[Stream]]) -> Iterator[VideoFrame]:
    for packet in [*packets, None]:
        yield from stream.codec_context.decode(packet)
