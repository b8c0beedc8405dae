"""Safe opening of a raw video, and the choice of its video stream."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import av
from av.container import InputContainer
from av.video.stream import VideoStream

from loader.dataset.samples.frames.video_stream import choose_stream, count_frames, has_decoder, pictures_of
from loader.errors import refuse_shortage

# Playlists and image sequences name other files to read; raw video may not.
CONTAINERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,mpegvideo,flv,asf,ogg,mxf,yuv4mpegpipe,gif,"
    "h264,hevc,ivf,dv,rm,apng"
)
MAX_PIXELS = 8192 * 8192
_IO_BUFFER_BYTES = 1 << 20

_MOST_INDEX_BYTES = 1 << 26
_MOST_BOXES = 1000  # top-level boxes that are looked at in a file that cannot be opened

_OTHER_KINDS = {
    re.compile(rb"\x89PNG\r\n"): "a PNG picture",
    re.compile(rb"\xff\xd8\xff"): "a JPEG picture",
    re.compile(rb"RIFF....WEBP", re.DOTALL): "a WebP picture",
    re.compile(rb"PK\x03\x04|7z\xbc\xaf|Rar!|\x1f\x8b"): "an archive",
    re.compile(rb"\s*<(?:!doctype|html|\?xml)", re.IGNORECASE): "a web page",
    re.compile(rb"version https://git-lfs"): "a pointer of Git LFS",
    re.compile(rb"#EXTM3U"): "a playlist",
}


class SourceError(Exception):
    """Reason why a source gives no clips, in words for ``accounting.parquet``; stages turn it into a record."""


@contextmanager
def open_video(
    file: BinaryIO,
    *,
    max_pixels: int = MAX_PIXELS,
    motion_vectors: bool = False,
    containers: str = CONTAINERS,
) -> Iterator[tuple[InputContainer, VideoStream]]:
    """Open the container in ``file`` and yield it with its main video stream; close it on exit.

    Args:
        file: Seekable file, at its start.
        max_pixels: Maximum pixels per picture; the decoder rejects larger pictures before it allocates
            memory.
        motion_vectors: True to export the codec's motion vectors as side data of frames, where the codec has
            any.
        containers: Accepted container formats, by their names in FFmpeg.

    Raises:
        SourceError: The file is no accepted container, or holds no video stream.
    """
    container = _opened(file, max_pixels, containers)
    frames: dict[int, int] = {}
    if len(pictures_of(container)) > 1:
        with container:
            frames = count_frames(container)
        file.seek(0)
        container = _opened(file, max_pixels, containers)
    with container:
        if not pictures_of(container) and (reason := _unfinished(file)):
            raise SourceError(reason)
        stream = _chosen(container, frames)
        # One thread decodes damaged streams deterministically; parallelism comes from other sources.
        stream.thread_type = "NONE"
        stream.codec_context.thread_count = 1
        options = {"max_pixels": str(max_pixels)}
        if motion_vectors:
            options["flags2"] = "+export_mvs"
        stream.codec_context.options = options
        yield container, stream


def _opened(file: BinaryIO, max_pixels: int, containers: str) -> InputContainer:
    try:
        return av.open(
            file,
            mode="r",
            metadata_errors="replace",  # tags in other encodings
            options={"format_whitelist": containers, "max_pixels": str(max_pixels)},
            buffer_size=_IO_BUFFER_BYTES,
        )
    except (av.error.FFmpegError, OSError, ValueError) as error:
        refuse_shortage(error)
        file.seek(0, 2)
        if file.tell() == 0:
            raise SourceError("the file is empty") from error
        raise SourceError(
            encryption(file)
            or _unfinished(file)
            or (_other_kind(file) if containers == CONTAINERS else None)
            or "cannot be opened: no video container, or its index is missing or damaged"
            f" ({getattr(error, 'strerror', None) or error})"
        ) from error


def _other_kind(file: BinaryIO) -> str | None:
    """Return the kind of a file that is often named a video, or None where its first bytes are of none."""
    file.seek(0)
    head = file.read(64)
    kind = next((kind for begin, kind in _OTHER_KINDS.items() if begin.match(head)), None)
    return kind and f"cannot be opened: it is {kind}, which is no video container that is read"


def encryption(file: BinaryIO) -> str | None:
    """Return words for the encryption that an MP4 or MOV file states (ISO/IEC 23001-7), or None without it."""
    for kind, place, size in _boxes(file):
        if kind == b"moov":
            file.seek(place)
            index = file.read(min(size, _MOST_INDEX_BYTES))
            if b"encv" not in index and b"drmi" not in index:
                return None
            scheme = index[index.find(b"schm") + 8 :][:4] if b"schm" in index else b""
            name = scheme.decode() if scheme.isalnum() else "unknown scheme"
            return f"is encrypted ({name}), and no key is known here: decrypt it first"
    return None


def _boxes(file: BinaryIO) -> Iterator[tuple[bytes, int, int]]:
    """Yield kind, place and size of the top-level boxes of a file, up to the first that is none."""
    end, place = file.seek(0, 2), 0
    for _ in range(_MOST_BOXES):
        file.seek(place)
        header = file.read(16)
        size, kind = int.from_bytes(header[:4], "big"), header[4:8]
        if size == 1:
            size = int.from_bytes(header[8:16], "big")
        if size < 8 or place + size > end:
            return
        yield kind, place, size
        place += size


def _unfinished(file: BinaryIO) -> str | None:
    """Return what is wrong with an MP4 or MOV file without its index, or None for other files."""
    seen = set[bytes]()
    for kind, _, _ in _boxes(file):
        if kind == b"moov":
            return None
        seen.add(kind)
    if b"ftyp" not in seen:
        return None
    return (
        "cannot be opened: its index (moov) is missing or cut off: it is still being written, was cut off, or its"
        " recording was not ended; copy it again, or repair it with a whole film of the same camera"
    )


def _chosen(container: InputContainer, frames: dict[int, int]) -> VideoStream:
    if not pictures_of(container):
        raise SourceError("has no video stream")
    if not any(map(has_decoder, pictures_of(container))):
        raise SourceError("has a video stream of a codec that is not known here")
    return choose_stream(container, frames)
