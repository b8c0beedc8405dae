"""Safe opening of a clip's bytes, and the choice of the video stream that a player shows."""

import errno
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from reelweave.loader.dataset.colour.matrix import settle_matrix
from reelweave.loader.dataset.samples.frames.gif_delays import with_usual_delays
from reelweave.loader.dataset.samples.frames.lasting_turn import LastingTurn
from reelweave.loader.dataset.samples.frames.packets import read_packets
from reelweave.loader.dataset.samples.frames.reorder import (
    FrameOrder,
    delay_decoder,
    is_reordered,
    read_ahead,
)
from reelweave.loader.dataset.samples.frames.ts_packets import without_repeats
from reelweave.loader.dataset.samples.frames.vp9_sizes import bound_packet, is_left_out
from reelweave.loader.dataset.tars.media import FORMATS
from reelweave.loader.dataset.tars.pictures import CutOffError, first_picture

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.codeccontext import VideoCodecContext
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

_COUNTED, _COUNTED_BYTES = 250, 1 << 26
_COLOURS = ("color_range", "color_primaries", "color_trc", "colorspace")
"""What a container may say of a stream's colours, and a decoder made apart from it does not know."""
_STILLS = 20
"""Ratio of frame counts beyond which a stream counts as stills: a motion photo's, or thumbnails."""


@contextmanager
def open_clip(clip: bytes | memoryview) -> Iterator[tuple["InputContainer", "VideoStream"]]:
    """Open a clip and yield its container and the stream that a player shows; close it on exit.

    Raises:
        av.FFmpegError: the bytes are no container of `FORMATS`, or a picture that is cut off.
        IndexError: the container has no video stream that can be decoded.
    """
    container = _open_clip(clip)
    frames: dict[int, int] = {}
    if len(pictures_of(container)) > 1:
        with container:
            frames = count_frames(container)
        container = _open_clip(clip)
    with container:
        stream = choose_stream(container, frames)
        # Clips are decoded in parallel, so one clip needs one thread.
        stream.thread_type = "NONE"
        settle_matrix(stream)
        yield container, stream


def decode_stream(container: "InputContainer", stream: "VideoStream") -> Iterator["VideoFrame"]:
    """Yield the frames of a stream that a player shows, and raise at damage that a decoder can tell.

    FFmpeg conceals damage of HEVC, of which it tells what concerns headers when it is asked to, and of VP9 of 8 bits,
    which libvpx tells.

    Raises:
        av.FFmpegError: a packet cannot be decoded.
    """
    codec = stream.codec_context
    if codec.codec.canonical_name == "hevc":
        codec.options = {**codec.options, "err_detect": "explode"}
    if is_checked(stream):
        yield from _decode_vp9(container, stream)
    elif is_reordered(stream):
        yield from _decode_in_order(container, stream)
    else:
        for packet in with_usual_delays(read_packets(container, stream), container.format.name):
            yield from codec.decode(packet)


def _decode_in_order(container: "InputContainer", stream: "VideoStream") -> Iterator["VideoFrame"]:
    """Yield all frames in the order of their stamps, turned as lasting messages of their codec say.

    The stream may understate how far frames are moved.
    """
    packets = read_packets(container, stream)
    ahead, fault = read_ahead(packets)
    delay_decoder(stream, ahead)
    order, turn = FrameOrder(stream), LastingTurn(stream)
    for packet in ahead:
        yield from order.sort(stream.codec_context.decode(turn(packet)), packet)
    if fault is not None:
        raise fault
    for packet in packets:
        yield from order.sort(stream.codec_context.decode(turn(packet)), packet)


def is_checked(stream: "VideoStream") -> bool:
    """Return whether libvpx tells damage of a stream that FFmpeg conceals: VP9 of 8 bits, for which it is built.

    An FFmpeg that was built without libvpx, unlike that of PyAV's wheels, tells none.
    """
    import av

    codec = stream.codec_context
    is_8bit = codec.format is not None and codec.format.components[0].bits == 8
    return codec.codec.canonical_name == "vp9" and is_8bit and "libvpx-vp9" in av.codecs_available


def codec_of(stream: "VideoStream", name: str) -> "VideoCodecContext":
    """Return another decoder of a stream, which knows its colours, and no side data of the container."""
    from av.codec.context import CodecContext

    default = stream.codec_context
    codec = cast("VideoCodecContext", CodecContext.create(name, "r"))
    codec.extradata, codec.options = default.extradata, default.options
    codec.thread_count, codec.thread_type = default.thread_count, default.thread_type
    for colour in _COLOURS:
        setattr(codec, colour, getattr(default, colour))
    return codec


def _decode_vp9(container: "InputContainer", stream: "VideoStream") -> Iterator["VideoFrame"]:
    """Yield frames by libvpx, whose pictures are the same; those with side data of the container by FFmpeg, too."""
    default, checking = stream.codec_context, codec_of(stream, "libvpx-vp9")
    has_side_data: bool | None = None  # until there is a frame
    for packet in read_packets(container, stream):
        coded = bound_packet(packet)
        checked = checking.decode(coded)
        if is_left_out(packet, coded):  # libvpx has a packet's frames at once
            checked = []
        frames = checked if has_side_data is False else default.decode(packet)
        if frames and has_side_data is None:
            has_side_data = _has_side_data(frames[0])
        yield from frames


def _has_side_data(frame: "VideoFrame") -> bool:
    """Return whether a frame has side data, such as how it is turned, or how bright it is."""
    try:
        return len(frame.side_data) > 0
    except ValueError:  # of a kind that PyAV has no name for
        return True


def pictures_of(container: "InputContainer") -> list["VideoStream"]:
    """Return the video streams except cover art and thumbnails."""
    from av.stream import Disposition

    aside = Disposition.attached_pic | Disposition.timed_thumbnails
    return [stream for stream in container.streams.video if not stream.disposition & aside]


def count_frames(container: "InputContainer") -> dict[int, int]:
    """Return the number of frames of each video stream, by stream index, as far as that tells films from stills.

    Headers are believed where all streams have a count; otherwise packets are read, and the container is used up.
    """
    import av

    streams = pictures_of(container)
    counts = {stream.index: stream.frames for stream in streams}
    if all(counts.values()):
        return counts
    counts = dict.fromkeys(counts, 0)
    seen_bytes = 0
    try:
        for packet in read_packets(container, *streams):
            counts[packet.stream.index] += packet.size > 0
            seen_bytes += packet.size
            if max(counts.values()) >= _COUNTED or seen_bytes >= _COUNTED_BYTES:
                break
    except (av.error.FFmpegError, OSError):  # the decoder will report it
        pass
    return counts


def choose_stream(container: "InputContainer", frames: dict[int, int]) -> "VideoStream":
    """Return the stream that a player shows: films before stills, default before others, then the largest.

    A stream is a still beside one of twenty times its frames. One frame is a still beside any film, as is the picture
    of an AVIF beside a sequence.

    Args:
        container: container with the streams.
        frames: number of frames by stream index.

    Raises:
        IndexError: no stream has a decoder.
    """
    from av.stream import Disposition

    decodable = [stream for stream in pictures_of(container) if has_decoder(stream)]
    if not decodable:
        raise IndexError("no video stream can be decoded")
    max_frames = max(frames.get(stream.index, 0) for stream in decodable)
    return max(
        decodable,
        key=lambda stream: (
            not (_is_item(stream) and max_frames > 1),
            _is_film(frames.get(stream.index, 0), max_frames),
            bool(stream.disposition & Disposition.default),
            stream.codec_context.width * stream.codec_context.height,
            -stream.index,
        ),
    )


def _is_film(frames: int, most: int) -> bool:
    """Return whether a stream of so many frames is no still beside one of the most frames, as a cover is."""
    return frames * _STILLS >= most and (frames > 1 or most <= 1)


def _is_item(stream: "VideoStream") -> bool:
    """Return whether a stream is the one picture of an AVIF or HEIF, beside which its sequence is a film."""
    return stream.frames == 1 and stream.duration is None


def has_decoder(stream: "VideoStream") -> bool:
    """Return whether FFmpeg knows the stream's codec."""
    return getattr(stream, "codec_context", None) is not None


def _open_clip(clip: bytes | memoryview) -> "InputContainer":
    import av

    try:
        first = first_picture(clip)
    except CutOffError as error:
        raise av.error.InvalidDataError(errno.EINVAL, f"it is cut off: {error}") from error
    # The whitelist excludes playlists, through which FFmpeg would open arbitrary files.
    return av.open(
        io.BytesIO(without_repeats(first)),
        mode="r",
        metadata_errors="replace",
        options={"format_whitelist": FORMATS},
    )
