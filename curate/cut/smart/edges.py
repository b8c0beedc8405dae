"""Encoding of the frames beside copied groups, as H.264 whose parameter sets have an id of their own."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import av
from av.codec.context import CodecContext, Flags
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame

from reelweave.curate.cut.clip import CutError
from reelweave.curate.cut.config import CutConfig
from reelweave.curate.cut.encode import X264, options
from reelweave.curate.cut.smart.parameter_sets import PPS, SEI, SPS, header_sets, sample, units_of
from reelweave.curate.frames.picture import Geometry
from reelweave.loader.errors import refuse_shortage

_LEFT_OUT = frozenset({SPS, PPS, SEI, 9, 12})  # access unit delimiters and filler, which MP4 does not need


@dataclass(frozen=True)
class Sample:
    """One frame of a clip, as MP4 stores it.

    Attributes:
        data: NAL units with lengths of four bytes.
        shown: Number of the frame in shown order.
        is_key: True for an IDR picture.
    """

    data: bytes
    shown: int
    is_key: bool


class EdgeEncoder:
    """Encoder of some frames of a clip, with the settings of encoded clips, that begins with an IDR picture.

    Args:
        size: Size of the pictures.
        rate: Frames per second.
        config: Encoder settings.
        set_id: Id of its parameter sets.
        reorders: False for no B-frames, since those of the source need none of their decoder.

    Attributes:
        samples: Frames so far, in decoding order.
        sets: Its parameter sets, once a frame was encoded.

    Raises:
        CutError: The encoder cannot be opened.
    """

    def __init__(
        self, size: Geometry, rate: Fraction, config: CutConfig, set_id: int, *, reorders: bool
    ) -> None:
        context = CodecContext.create(X264, "w")
        assert isinstance(context, VideoCodecContext)
        context.width, context.height, context.pix_fmt = size.width, size.height, size.pixel_format
        context.time_base, context.framerate = 1 / rate, rate
        context.thread_count, context.gop_size = config.threads, config.keyframe_every
        context.flags |= Flags.global_header
        if not reorders:
            context.max_b_frames = 0
        values = {name: str(value) for name, value in options(X264, config).items()}
        context.options = {**values, "x264-params": f"{values['x264-params']}:sps-id={set_id}"}
        self._context, self._time_base, self._size = context, 1 / rate, size
        self.samples: list[Sample] = []
        self.sets: list[bytes] = []

    def show(self, picture: VideoFrame, shown: int) -> None:
        """Encode a picture as a frame of the clip; the picture's fields are restored.

        Raises:
            CutError: It could not be encoded.
        """
        context = self._context
        before = picture.pts, picture.time_base or self._time_base, picture.pict_type
        try:
            if not context.is_open:
                context.colorspace, context.color_range = picture.colorspace, picture.color_range
                context.color_primaries, context.color_trc = picture.color_primaries, picture.color_trc
            picture.time_base, picture.pict_type, picture.pts = self._time_base, 0, shown
            self._take(picture)
        finally:
            picture.pts, picture.time_base, picture.pict_type = before

    def finish(self) -> list[Sample]:
        """Return all frames in decoding order.

        Raises:
            CutError: They could not be encoded.
        """
        self._take(None)
        return self.samples

    def _take(self, picture: VideoFrame | None) -> None:
        context = self._context
        try:
            for packet in context.encode(picture):
                data = sample(units_of(bytes(packet), None), _LEFT_OUT)
                self.samples.append(Sample(data, packet.pts or 0, packet.is_keyframe))
        except (av.error.FFmpegError, ValueError) as error:
            refuse_shortage(error)
            raise CutError(f"could not be encoded with {X264}: {error}") from error
        if not self.sets:
            self.sets = header_sets(bytes(context.extradata or b""))[0]
