"""Times of coding, for frames of containers that store no others: H.264 and HEVC in AVI and ASF."""

from collections.abc import Iterable
from typing import cast

from av.container import Container
from av.container import Flags as ContainerFlags
from av.format import Flags
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

_UNTYPED = ("h264", "hevc", "vvc")
"""Codecs of whose packets FFmpeg does not know which ones hold B-frames."""


def is_timed(container: Container) -> bool:
    """Return whether packets have times at all; a raw stream has a container without any."""
    return not container.format.flags & cast(int, Flags.no_timestamps.value)


def keep_missing_stamps(container: Container, stream: VideoStream) -> None:
    """Make FFmpeg leave packets without a stamp as they are, where it would take that of the next packet.

    PyAV asks for guesses (``genpts``) of every container; FFmpeg's own programs do not.
    """
    if stream.codec_context.codec.canonical_name in _UNTYPED:
        container.flags &= ~cast(int, ContainerFlags.gen_pts.value)


def use_coding_times(frames: Iterable[VideoFrame]) -> None:
    """Show frames without a stamp at the time of coding that the decoder has reached, as FFmpeg's players do."""
    for frame in frames:
        if frame.pts is None:
            frame.pts = frame.dts
