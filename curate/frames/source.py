"""Safe opening of a raw video, and the choice of its video stream."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, cast

import av
from av.container import InputContainer
from av.packet import Packet
from av.video.stream import VideoStream

from reelweave.curate.frames.clocks.coding_times import keep_missing_stamps
from reelweave.curate.frames.container.cut_off import FileBegin, fragments_end
from reelweave.curate.frames.container.encryption import (
    EncryptedError,
    boxes,
    encrypted_words,
    encryption,
    names_key,
)
from reelweave.curate.frames.container.other_containers import other_container
from reelweave.curate.frames.container.stills import film_behind, still_of_items
from reelweave.curate.frames.container.ts_file import transport
from reelweave.loader.dataset.colour.matrix import settle_matrix
from reelweave.loader.dataset.samples.frames.packets import read_packets
from reelweave.loader.dataset.samples.frames.reorder import (
    delay_decoder,
    is_measured,
    is_reordered,
    read_ahead,
)
from reelweave.loader.dataset.samples.frames.video_stream import (
    choose_stream,
    count_frames,
    has_decoder,
    pictures_of,
)
from reelweave.loader.dataset.tars.media import FORMATS
from reelweave.loader.dataset.tars.pictures import has_further_picture
from reelweave.loader.errors import refuse_shortage

# Playlists and image sequences name other files to read; raw video may not.
CONTAINERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,mpegvideo,flv,asf,ogg,mxf,yuv4mpegpipe,gif,"
    "h264,hevc,ivf,dv,rm,apng"
)
MAX_PIXELS = 8192 * 8192
_IO_BUFFER_BYTES = 1 << 20
_SIGNED = "flv,ogg,asf,mxf,rm"
"""Containers of raw videos that samples are not read in, and that begin with bytes of their own."""

_PACK = b"\0\0\x01\xba"  # first bytes of MPEG-PS (MPG, VOB)
_HEAD_BYTES = 4096
_OTHER_KINDS = {
    re.compile(rb"\x89PNG\r\n"): "a PNG picture",
    re.compile(rb"\xff\xd8\xff"): "a JPEG picture",
    re.compile(rb"RIFF....WEBP", re.DOTALL): "a WebP picture",
    re.compile(rb"PK\x03\x04|7z\xbc\xaf|Rar!|\x1f\x8b"): "an archive",
    re.compile(rb".{0,2000}?<MPD\b", re.DOTALL): "a manifest of DASH",
    re.compile(rb"\s*<(?:!doctype|html|\?xml)", re.IGNORECASE): "a web page",
    re.compile(rb"version https://git-lfs"): "a pointer of Git LFS",
    re.compile(rb".{257}ustar", re.DOTALL): "a tar; `reelweave index` makes tars a dataset",
}
_RAW_STREAMS = {
    re.compile(rb"\0\0\x01(?:\xb0.\0\0\x01|[\x20-\x2f]|\0\0\0\x01[\x20-\x2f])", re.DOTALL): "MPEG-4",
    re.compile(rb"\0\0\x01\xb0[\x12\x20\x22\x24\x30\x32\x48][^\0]", re.DOTALL): "AVS",
    re.compile(rb"\0?\0\0\x01\0[\x61\x69\x71\x79\xa1\xb9]"): "VVC",
    re.compile(rb"\0\0\x02\x80[\x01-\x03]"): "VC-3 (DNxHD)",
    re.compile(rb"\0\x01[\0-\x0f].\0\x01[\x10-\x1f]", re.DOTALL): "H.261",
    re.compile(rb"\x12\0\x0a"): "AV1 (OBU)",
    re.compile(rb"\0\0[\x80-\x83]"): "H.263",
    re.compile(rb"\0\0\x01\x0f"): "VC-1",
    re.compile(rb"BBCD\0"): "Dirac or VC-2",
}
"""Beginnings of streams without a container that are not read; the first picture of MPEG-4 may have two headers."""

_MULTIPLE = b"MPF\0"  # index of several pictures in a JPEG
_JPEGS_BYTES = 1 << 24  # within which a second picture of a raw stream begins


class SourceError(Exception):
    """Reason why a source gives no clips, in words for ``accounting.parquet``; stages turn it into a record."""


@contextmanager
def open_video(
    file: BinaryIO,
    *,
    max_pixels: int = MAX_PIXELS,
    motion_vectors: bool = False,
    containers: str = CONTAINERS,
    is_decoded: bool = True,
) -> Iterator[tuple[InputContainer, VideoStream]]:
    """Open the container in ``file`` and yield it with its main video stream; close it on exit.

    Args:
        file: Seekable file, at its start.
        max_pixels: Maximum pixels per picture; the decoder rejects larger pictures before it allocates
            memory.
        motion_vectors: True to export the codec's motion vectors as side data of frames, where the codec has
            any.
        containers: Accepted container formats, by their names in FFmpeg.
        is_decoded: False to read only the header, so that first packets do not set the delay of the decoder.

    Raises:
        SourceError: The file is no accepted container, or holds no video stream.
    """
    container = _open_container(file, max_pixels, containers)
    frames: dict[int, int] = {}
    if len(pictures_of(container)) > 1:
        with container:
            frames = count_frames(container)
        file.seek(0)
        container = _open_container(file, max_pixels, containers)
    with container:
        if not pictures_of(container) and (reason := _missing_index(file)):
            raise SourceError(reason)
        try:
            stream = _choose_stream(container, frames)
        except SourceError as error:  # the head of an encrypted tag of FLV reads as a codec that nobody knows
            raise SourceError(encryption(file) or str(error)) from error
        keep_missing_stamps(container, stream)
        # One thread decodes damaged streams deterministically; parallelism comes from other sources.
        stream.thread_type = "NONE"
        stream.codec_context.thread_count = 1
        settle_matrix(stream)
        options = {"max_pixels": str(max_pixels)}
        if motion_vectors:
            options["flags2"] = "+export_mvs"
        stream.codec_context.options = options
        if is_decoded and is_reordered(stream) and not is_measured(stream):
            delay_decoder(stream, read_first_packets(file, stream, max_pixels))
        try:
            yield container, stream
        except EncryptedError as error:
            raise SourceError(encryption(file) or encrypted_words("unknown scheme")) from error


def read_first_packets(file: BinaryIO, stream: VideoStream, max_pixels: int) -> list[Packet[Any]]:
    """Return the first packets of a stream, read by another reader; none where they cannot be read.

    Args:
        file: File of the stream, which is left where it was.
        stream: Opened stream, which reads no packet by this.
        max_pixels: Maximum pixels per picture, as of `open_video`.
    """
    position = file.tell()
    try:
        file.seek(0)
        with _open_container(file, max_pixels, stream.container.format.name) as again:
            if stream.index < len(again.streams):
                return read_ahead(read_packets(again, again.streams[stream.index]))[0]
    except SourceError:  # the reader of the stream says so
        pass
    finally:
        file.seek(position)
    return []


def _open_container(file: BinaryIO, max_pixels: int, containers: str) -> InputContainer:
    if containers == CONTAINERS:
        if kind := still_of_items(file):  # FFmpeg shows it as a film of one second
            raise SourceError(_no_video(kind, file))
        file.seek(0)
    try:
        return _open(file, max_pixels, containers)
    except (av.error.FFmpegError, OSError, ValueError) as error:
        refuse_shortage(error)
        end = fragments_end(file)
        if (
            end is not None and end.kind == b"moof"
        ):  # FFmpeg refuses all of it where it meets its cut header at once
            with suppress(av.error.FFmpegError, OSError, ValueError):
                return _open(cast(BinaryIO, FileBegin(file, end.offset)), max_pixels, containers)
        file.seek(0, 2)
        if file.tell() == 0:
            raise SourceError("the file is empty") from error
        raise SourceError(
            encryption(file)
            or _missing_index(file)
            or _raw_stream(file)
            or (_other_kind(file) if containers == CONTAINERS else None)
            or (_other_container(file, max_pixels) if containers == FORMATS else None)
            or "cannot be opened: no video container, or encrypted as a whole, or its index is missing or damaged"
            f" ({getattr(error, 'strerror', None) or error})"
        ) from error


def _open(file: BinaryIO, max_pixels: int, containers: str) -> InputContainer:
    return av.open(
        transport(file),
        mode="r",
        metadata_errors="replace",  # tags in other encodings
        options={"format_whitelist": containers, "max_pixels": str(max_pixels)},
        buffer_size=_IO_BUFFER_BYTES,
    )


def _other_container(file: BinaryIO, max_pixels: int) -> str | None:
    """Return the reason for a film in a container of raw videos, which no sample has, or None for other files."""
    file.seek(0)
    containers = f"{_SIGNED},mpeg" if file.read(4) == _PACK else _SIGNED
    file.seek(0)
    try:
        # FFmpeg knows these by their first bytes; damaged bytes may look like others, such as raw streams.
        with _open_container(file, max_pixels, containers) as container:
            name = container.format.name
    except SourceError:
        return None
    # MPEG-PS stamps no more than some of its pictures; Matroska wants a stamp for each.
    name, option = ("MPEG-PS", "-fflags +genpts ") if name == "mpeg" else (name, "")
    return (
        f"is {name}, which samples are not read in; give it another container, as by"
        f" `ffmpeg {option}-i FILE -c copy FILE.mkv`"
    )


def _other_kind(file: BinaryIO) -> str | None:
    """Return why a file of another container or kind is not read, or None where its first bytes are of none."""
    file.seek(0)
    head = file.read(_HEAD_BYTES)
    if head.removeprefix(b"\xef\xbb\xbf").startswith(b"#EXTM3U"):
        return _playlist(head)
    if words := other_container(head):
        return words
    kind = next((kind for begin, kind in _OTHER_KINDS.items() if begin.match(head)), None)
    return kind and _no_video(kind, file)


def _no_video(kind: str, file: BinaryIO) -> str:
    behind = film_behind(file) if kind.endswith("picture") else ""
    return f"cannot be opened: no video container that is read, it is {kind}{behind}"


def _raw_stream(file: BinaryIO) -> str | None:
    """Return the reason for a stream without a container of a codec that is not read so, or None for other files."""
    file.seek(0)
    head = file.read(_HEAD_BYTES)
    codec = next((name for begin, name in _RAW_STREAMS.items() if begin.match(head)), None)
    if head.startswith(b"\xff\xd8\xff"):
        pictures = head + file.read(_JPEGS_BYTES)
        # A photo may hold further ones: its gain map, a preview, the other eye (CIPA DC-007), or a film.
        if has_further_picture(pictures) and _MULTIPLE not in pictures and not film_behind(file):
            codec = "JPEG pictures"
    return codec and (
        f"cannot be opened: it is a raw stream of {codec}, without a container or times, which is not read; give it a"
        " container, as by `ffmpeg -framerate RATE -i FILE -c copy FILE.mkv`"
    )


def _playlist(head: bytes) -> str:
    words = (
        "cannot be opened: it is a playlist, which holds no video; give the files that it names, or join them"
        " (ffmpeg -i PLAYLIST -c copy film.mkv)"
    )
    methods = set(re.findall(rb"#EXT-X-(?:SESSION-)?KEY:[^\r\n]*METHOD=([A-Za-z0-9-]+)", head)) - {b"NONE"}
    if not methods:
        return words
    return f"{words}; those files are encrypted ({', '.join(sorted(map(bytes.decode, methods)))}): decrypt them first"


def _missing_index(file: BinaryIO) -> str | None:
    """Return what is wrong with an MP4 or MOV file without its index, or None for other files."""
    box_kinds = set[bytes]()
    for kind, _, _ in boxes(file):
        if kind == b"moov":
            return None
        box_kinds.add(kind)
    if b"moof" in box_kinds:
        return (
            "cannot be opened: it is a segment of a stream, without the index (moov) in its init segment; put that one"
            " before it, and later segments behind (cat INIT SEGMENT ... >film.mp4)"
        )
    if b"ftyp" not in box_kinds:
        return None
    return (
        "cannot be opened: its index (moov) is missing or cut off: it is still being written, was cut off, or its"
        " recording was not ended; copy it again, or repair it with a whole film of the same camera"
    )


def without_frames(file: BinaryIO) -> str:
    """Return why a file of which no frame decodes holds none."""
    if (end := fragments_end(file)) is not None and end.words:
        return f"no frame could be decoded: {end.words}"
    kinds = {kind for kind, _, _ in boxes(file)}
    if b"moov" in kinds and not kinds & {b"mdat", b"moof"}:
        return (
            "holds no frame: it is the init segment of a stream, whose segments belong behind it in one file"
        )
    return "no frame could be decoded"


def _choose_stream(container: InputContainer, frames: dict[int, int]) -> VideoStream:
    if not pictures_of(container):
        raise SourceError("has no video stream")
    if not any(map(has_decoder, pictures_of(container))):
        raise SourceError("has a video stream of a codec that is not known here")
    stream = choose_stream(container, frames)
    if names_key(stream):
        raise SourceError(encrypted_words("Matroska"))
    return stream
