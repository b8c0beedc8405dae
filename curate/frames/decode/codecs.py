"""Decoders of streams that FFmpeg's own decoders do not show as they are: with an alpha, and of VP9."""

from collections.abc import Callable

from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream

from reelweave.curate.frames.container.description import described_stream
from reelweave.loader.dataset.samples.frames.video_stream import codec_of, is_checked
from reelweave.loader.dataset.samples.frames.vp9_sizes import bound_packet, refuse_huge

_WITH_ALPHA = {"vp8": "libvpx", "vp9": "libvpx-vp9"}


def codec_with_alpha(stream: VideoStream) -> VideoCodecContext:
    """Return the decoder of a stream: libvpx where packets hold an alpha, which FFmpeg's own leave out, or of VP9.

    FFmpeg conceals damage of VP9, which libvpx tells. Side data of the container reach the frames of FFmpeg's alone.
    """
    name = _WITH_ALPHA.get(stream.codec_context.codec.canonical_name)
    if name and (has_alpha_packets(stream) or (is_checked(stream) and not _has_side_data(stream))):
        return codec_of(stream, name)
    return stream.codec_context


def bounded_packets(
    stream: VideoStream, codec: VideoCodecContext
) -> Callable[["Packet[VideoStream]"], "Packet[VideoStream]"]:
    """Return what bounds the packets of a stream for a decoder of `codec_with_alpha`; libvpx takes any size."""
    if codec.codec.name != "libvpx-vp9":
        return lambda packet: packet
    return _with_alpha if has_alpha_packets(stream) else bound_packet


def _with_alpha(packet: "Packet[VideoStream]") -> "Packet[VideoStream]":
    """Return a packet of VP9 with its alpha, as it is, unless a frame is too large."""
    refuse_huge(bytes(packet))
    return packet


def _has_side_data(stream: VideoStream) -> bool:
    return "Side data:" in described_stream(stream.container, stream.index)


def has_alpha_packets(stream: VideoStream) -> bool:
    """Return whether packets of a stream hold an alpha channel beside the picture (WebM)."""
    return stream.metadata.get("alpha_mode") == "1"
