"""Frame rate by the times of the first packets, where a header states another one."""

from fractions import Fraction
from itertools import islice
from typing import BinaryIO, cast

import av
import numpy as np
from av.container import InputContainer
from av.format import Flags
from av.video.stream import VideoStream

_PACKETS = 96
_LEAST_GAPS = 12
_NEAR, _SHARE = 0.25, 0.8  # relative distance of gaps that are the same but for ticks, and their least share
_OTHER = 1.5  # ratio of two rates that are told apart


def packet_rate(
    container: InputContainer, stream: VideoStream, file: BinaryIO, stated: Fraction | None
) -> float | None:
    """Return the frames per second of the first packets, where these lie evenly and contradict the header.

    A field's duration as that of a frame in Matroska, a time base in H.264's own header, and empty chunks of AVI state
    two to four times as many frames. MP4 counts its frames itself.

    Args:
        container: Opened container.
        stream: Its stream of pictures.
        file: The file that it reads, which is left where it was.
        stated: Frames per second in the header.
    """
    stampless = container.format.flags & cast(int, Flags.no_timestamps.value)
    if "mp4" in container.format.name or stampless or stated is None:
        return None
    position = file.tell()
    try:
        file.seek(0)
        measured = _measure(file, container.format.name, stream.index)
    finally:
        file.seek(position)
    if measured is None or 1 / _OTHER < measured / float(stated) < _OTHER:
        return None
    # Each field of an interlaced film may be a packet.
    interlaced = stream.codec_context.field_order > 1
    return None if interlaced and measured > stated else measured


def _measure(file: BinaryIO, name: str, index: int) -> float | None:
    try:
        with av.open(file, mode="r", metadata_errors="replace", options={"format_whitelist": name}) as again:
            if index >= len(again.streams):
                return None
            stream = again.streams[index]
            packets = (packet for packet in again.demux(stream) if packet.size)
            stamps = [
                packet.dts if packet.pts is None else packet.pts for packet in islice(packets, _PACKETS)
            ]
            time_base = float(stream.time_base or 0)
    except (av.error.FFmpegError, ValueError):
        return None  # whoever decodes it says why
    gaps = np.diff(np.unique([stamp for stamp in stamps if stamp is not None])) * time_base
    if len(gaps) < _LEAST_GAPS:
        return None
    usual = float(np.median(gaps))
    even = np.abs(gaps - usual) <= _NEAR * usual
    return 1 / usual if even.mean() >= _SHARE else None
