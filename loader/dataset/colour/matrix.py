"""Colour matrices that FFmpeg's scaler cannot convert to RGB."""

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

_NAMES = {
    3: "reserved",
    8: "YCgCo",
    10: "BT.2020 with constant luminance",
    11: "YDzDx",
    12: "chroma-derived",
    13: "chroma-derived with constant luminance",
    14: "ICtCp",
    15: "IPT-C2",
    16: "YCgCo-Re",
    17: "YCgCo-Ro",
}
"""Names by ITU-T H.273, table 4, of those that a version of FFmpeg may not convert."""

_UNSPECIFIED, _RESERVED = 2, 3


def settle_matrix(stream: "VideoStream") -> None:
    """Take a matrix of the container that is reserved for the future as unspecified, before anything is decoded.

    FFmpeg's decoders do so of one that the codec states, and its filters refuse such frames.
    """
    codec = stream.codec_context
    if codec is not None and (codec.colorspace == _RESERVED or codec.colorspace > max(_NAMES)):
        codec.colorspace = _UNSPECIFIED


def matrix_fault(frame: "VideoFrame") -> str | None:
    """Return why the colours of a frame cannot be converted, or None."""
    matrix = int(frame.colorspace)
    kind = frame.format.name
    if matrix not in _NAMES or _converts(kind, matrix) or not _converts(kind, _UNSPECIFIED):
        return None
    return (
        f"has colours by matrix {matrix} ({_NAMES[matrix]}), which FFmpeg's scaler does not convert; convert it first,"
        " as by `ffmpeg -i FILE -vf zscale=matrix=709 -c:a copy NEW_FILE` (2020_ncl for BT.2020 and HDR), or correct"
        " the tag if it is wrong"
    )


@cache
def _converts(kind: str, matrix: int) -> bool:
    """Return whether the scaler converts pictures of a pixel format and matrix, by trying."""
    import av
    from av.video.reformatter import VideoReformatter

    try:
        frame = av.VideoFrame(16, 16, kind)
        frame.colorspace = matrix
        VideoReformatter().reformat(frame, 16, 16, "rgb24")
    except (av.FFmpegError, ValueError):
        return False
    return True
