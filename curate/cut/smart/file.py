"""MP4 file of a smart cut: one sample entry, whose record holds the parameter sets of both parts."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import av
from av.packet import Packet
from av.video.stream import VideoStream

from reelweave.curate.cut.clip import CutError
from reelweave.curate.cut.copy import decoding_times
from reelweave.curate.cut.mp4 import Mp4
from reelweave.curate.cut.smart.coding import Coding
from reelweave.curate.cut.smart.edges import Sample
from reelweave.loader.errors import refuse_shortage


def write(
    stream: VideoStream, coding: Coding, sets: Sequence[bytes], samples: Sequence[Sample], rate: Fraction
) -> bytes:
    """Return an MP4 file of frames on the grid of a rate, with its index last.

    Args:
        stream: Video stream of the source, whose size and colours the file states.
        coding: Codec of the clip.
        sets: Parameter sets of all frames; ids differ.
        samples: Frames in decoding order.
        rate: Frames per second.

    Raises:
        CutError: MP4 cannot hold them.
    """
    shown = [stored.shown for stored in samples]
    try:
        file = Mp4()
        target = file.add_like(stream)
        target.codec_context.extradata = coding.record(sets)
        target.codec_context.bit_rate = 0  # the muxer measures that of the clip
        target.time_base = 1 / rate
        for stored, dts in zip(samples, decoding_times(shown), strict=True):
            packet = Packet(stored.data)
            packet.stream, packet.time_base = target, 1 / rate
            packet.pts, packet.dts, packet.duration = stored.shown, dts, 1
            packet.is_keyframe = stored.is_key
            file.container.mux_one(packet)
        return file.close()
    except (av.error.FFmpegError, ValueError) as error:
        refuse_shortage(error)
        raise CutError(f"could not be cut: {error}") from error
