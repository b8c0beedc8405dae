"""Order of frames where the header of H.264 or HEVC understates how far coding moves them.

FFmpeg believes the header. It then drops frames of H.264 that come later, and shows those of HEVC late, without a word.
The first packets tell how far frames are moved: by their stamps, or by a decode where stamps are missing or squeezed.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

from reelweave.loader.dataset.samples.frames.packets import read_packets
from reelweave.loader.dataset.samples.frames.picture_order import shown_positions

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.codeccontext import VideoCodecContext
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

_CODECS = ("h264", "hevc")
_DELAY = "has_b_frames"  # option of decoders: frames that may be waited for
_MAX_DEPTH = 15  # ITU-T H.264, A.3.1 and H.265, A.4.2: a decoder holds 16 pictures
_AHEAD, _AHEAD_BYTES = 64, 1 << 25
_FAR_S = 2.0
"""Seconds above which a stamp behind others is one of another clock, as of joined recordings."""
_IN_CODING_ORDER = ("avi", "asf")  # containers whose stamps may be times of coding
_SQUEEZED_S = 0.0015
"""Seconds below which the distance of stamps is one that a muxer made up, as FFmpeg for packets behind their time."""


class FrameOrder:
    """Frames of a stream in the order of their stamps, where a decoder gives them in another one.

    Args:
        stream: stream whose decoder has its delay from `delay_decoder`; frames of other streams pass.
    """

    def __init__(self, stream: "VideoStream") -> None:
        codec = stream.codec_context
        is_late = codec.codec.canonical_name == "hevc"
        self._depth = int(codec.options.get(_DELAY, 0)) if is_late else 0
        self._far = _FAR_S / float(stream.time_base or 1)
        self._held: list[VideoFrame] = []

    def sort(self, frames: "list[VideoFrame]", packet: "Packet[Any]") -> "list[VideoFrame]":
        """Take the frames that a packet releases, and return those whose turn it is; all at the end."""
        if not self._depth:
            return frames
        sorted_frames: list[VideoFrame] = []
        for frame in frames:
            if frame.pts is None or any(
                abs(frame.pts - (other.pts or 0)) > self._far for other in self._held
            ):
                sorted_frames += self._held
                self._held = []
            self._held.append(frame)
            self._held.sort(key=lambda held: held.pts or 0)
            if len(self._held) > self._depth:
                sorted_frames.append(self._held.pop(0))
        if not packet.size:
            sorted_frames += self._held
            self._held = []
        return sorted_frames


def is_reordered(stream: "VideoStream") -> bool:
    """Return whether a stream has a codec whose header states how far frames are moved."""
    return stream.codec_context.codec.canonical_name in _CODECS


def is_understated(container: "InputContainer", stream: "VideoStream") -> bool:
    """Return whether frames of H.264 or HEVC are moved further than FFmpeg believes; first packets are read for it."""
    if not is_reordered(stream):
        return False
    delay_decoder(stream, read_ahead(read_packets(container, stream))[0])
    return is_delayed(stream)


def is_delayed(stream: "VideoStream") -> bool:
    """Return whether `delay_decoder` lets a stream's decoder wait longer than its header says."""
    return _DELAY in stream.codec_context.options


def is_measured(stream: "VideoStream") -> bool:
    """Return whether FFmpeg measures itself how far frames are moved: H.264 in an MP4 whose index is whole."""
    is_indexed = "mp4" in stream.container.format.name and stream.frames > 0
    if not is_indexed or stream.codec_context.codec.canonical_name != "h264":
        return False
    entries = stream.index_entries
    stamps = [entries[index].timestamp for index in range(min(_AHEAD, len(entries)))]
    return not _are_squeezed(stamps, stream)


def read_ahead(packets: "Iterable[Packet[Any]]") -> "tuple[list[Packet[Any]], Exception | None]":
    """Return the first packets, which tell how far frames are moved, and the error at which they end, or None."""
    import av

    ahead: list[Packet[Any]] = []
    seen_bytes = 0
    try:
        for packet in packets:
            ahead.append(packet)
            seen_bytes += packet.size
            if len(ahead) == _AHEAD or seen_bytes >= _AHEAD_BYTES:
                break
    except (av.FFmpegError, OSError) as error:
        return ahead, error
    return ahead, None


def delay_decoder(stream: "VideoStream", packets: "Iterable[Packet[Any]]") -> None:
    """Let a stream's decoder, which is not open yet, wait for as many frames as its first packets show.

    Args:
        stream: stream of H.264 or HEVC.
        packets: its first packets.
    """
    codec, coded = stream.codec_context, [packet for packet in packets if packet.size]
    if codec.is_open:
        return
    stamps = [packet.pts for packet in coded]
    if not _are_squeezed(stamps, stream) and stream.container.format.name not in _IN_CODING_ORDER:
        depth = _depth(
            [stamp for stamp in stamps if stamp is not None], _FAR_S / float(stream.time_base or 1)
        )
    elif codec.codec.canonical_name == "h264":
        depth = _depth(_decoded_positions(codec, coded), _AHEAD)
    else:
        return
    # A stamp that is too late looks like a frame that is moved far; slices of HEVC tell the order itself.
    if depth > codec.reorder_depth and codec.codec.canonical_name == "hevc":
        shown = shown_positions(bytes(codec.extradata or b""), map(bytes, coded))
        depth = depth if shown is None else min(depth, _depth(shown, _AHEAD))
    if depth > codec.reorder_depth:
        codec.options = {**codec.options, _DELAY: str(min(depth, _MAX_DEPTH))}


def _depth(positions: list[int], far: float) -> int:
    """Return how many frames at most lie before one in coding and behind it on screen, given their places there."""
    return max(
        (
            sum(
                0 < earlier - position <= far for earlier in positions[max(0, index - _MAX_DEPTH - 1) : index]
            )
            for index, position in enumerate(positions)
        ),
        default=0,
    )


def _are_squeezed(stamps: list[int | None] | list[int], stream: "VideoStream") -> bool:
    """Return whether stamps do not tell the order of frames: some are missing, equal, or hardly apart."""
    known = sorted(stamp for stamp in stamps if stamp is not None)
    near = _SQUEEZED_S / float(stream.time_base or 1)
    return len(known) < len(stamps) or any(later - earlier < near for earlier, later in pairwise(known))


def _decoded_positions(codec: "VideoCodecContext", packets: "list[Packet[Any]]") -> list[int]:
    """Return the place on screen of each packet's frame, in coding order, by a decode that waits for all it can."""
    import av
    from av.codec.context import CodecContext

    patient = cast("VideoCodecContext", CodecContext.create(codec.name, "r"))
    patient.extradata, patient.thread_count, patient.thread_type = codec.extradata, 1, "NONE"
    patient.options = {**codec.options, _DELAY: str(_MAX_DEPTH)}
    shown: list[int] = []
    for index, packet in enumerate([*packets, None]):
        stamp = None if packet is None else packet.pts
        try:
            if packet is not None:
                packet.pts = index
            shown += [frame.pts for frame in patient.decode(packet) if frame.pts is not None]
        except av.FFmpegError:  # the decoder of the stream says so
            continue
        finally:
            if packet is not None:
                packet.pts = stamp
    places = {index: place for place, index in enumerate(shown)}
    return [places[index] for index in sorted(places)]
