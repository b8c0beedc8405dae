"""Opening a raw video safely and choosing its picture stream."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import av
from av.container import InputContainer
from av.stream import Disposition
from av.video.stream import VideoStream

# Playlists and image sequences name other files to read; raw video may not.
CONTAINERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,mpegvideo,flv,asf,ogg,mxf,yuv4mpegpipe,gif,"
    "h264,hevc,ivf,dv,rm"
)
_IO_BUFFER_BYTES = 1 << 20


class SourceError(Exception):
    """Why a source gives no clips, in words for ``accounting.parquet``; stages turn it into a record."""


@contextmanager
def open_video(file: BinaryIO) -> Iterator[tuple[InputContainer, VideoStream]]:
    """The container in ``file`` and its picture stream, closed on exit.

    Raises:
        SourceError: no container can be read, or it holds no picture stream.
    """
    try:
        container = av.open(
            file, mode="r", options={"format_whitelist": CONTAINERS}, buffer_size=_IO_BUFFER_BYTES
        )
    except (av.error.FFmpegError, OSError, ValueError) as error:
        file.seek(0, 2)
        if file.tell() == 0:
            raise SourceError("the file is empty") from error
        raise SourceError(
            "cannot be opened: no video container, or its index is missing or damaged"
            f" ({getattr(error, 'strerror', None) or error})"
        ) from error
    with container:
        stream = _choose_picture(container)
        # One thread decodes the same way every time, damaged streams too; sources run side by side instead.
        stream.thread_type = "NONE"
        stream.codec_context.thread_count = 1
        yield container, stream


def _choose_picture(container: InputContainer) -> VideoStream:
    """The stream a viewer sees: no cover art, default before others, then the largest picture."""
    candidates = [
        stream
        for stream in container.streams.video
        if not stream.disposition & (Disposition.attached_pic | Disposition.timed_thumbnails)
    ]
    if not candidates:
        raise SourceError("has no video stream")
    return max(
        candidates,
        key=lambda stream: (
            bool(stream.disposition & Disposition.default),
            stream.codec_context.width * stream.codec_context.height,
            -stream.index,
        ),
    )
