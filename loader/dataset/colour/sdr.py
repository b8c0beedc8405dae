"""8-bit SDR pictures of frames of any depth and transfer."""

from av.video.frame import VideoFrame

from reelweave.loader.dataset.colour import hdr, tone_map
from reelweave.loader.dataset.colour.chain import Chain
from reelweave.loader.dataset.colour.rounding import is_deep, round_to_8_bits
from reelweave.loader.dataset.colour.tone_map import tone_mapper

FULL_RANGE = 2


class SdrConverter:
    """Converter from frames of one video to 8-bit SDR; it keeps tables and memory between frames."""

    def __init__(self) -> None:
        self._deepened = Chain()

    def __call__(self, frame: VideoFrame) -> VideoFrame:
        """Return PQ and HLG mapped to BT.709, and samples of more than 8 bits rounded; others pass unchanged.

        Deep samples of full range pass, too: swscale converts range and depth at once.
        """
        if is_hdr(frame):
            deep = self._deepened(frame, _to_mapped_format(frame))
            return tone_mapper(int(frame.color_trc))(deep)
        # swscale would take three times as long.
        if not is_deep(frame) or frame.color_range == FULL_RANGE:
            return frame
        return _tag_picture(round_to_8_bits(frame), frame)


def is_hdr(frame: VideoFrame) -> bool:
    """Return True for a frame whose tags say PQ or HLG."""
    return frame.color_trc in (hdr.PQ, hdr.HLG)


def _to_mapped_format(frame: VideoFrame) -> tuple[str, ...]:
    """Return the filters that convert an HDR frame to the input format of tone mapping."""
    if frame.format.name == tone_map.FORMAT and frame.color_range != FULL_RANGE:
        return ()
    return (
        "scale=in_color_matrix=bt2020:in_range=auto:out_color_matrix=bt2020:out_range=limited:flags=area",
        f"format={tone_map.FORMAT}",
    )


def _tag_picture(picture: VideoFrame, like: VideoFrame) -> VideoFrame:
    picture.colorspace, picture.color_range = like.colorspace, like.color_range
    picture.color_primaries, picture.color_trc = like.color_primaries, like.color_trc
    return picture
