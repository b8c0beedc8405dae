"""Encoding of the frames beside copied groups, with parameter sets whose ids those of the copies leave."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import av
from av.codec.context import CodecContext, Flags
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame

from reelweave.curate.cut.clip import CutError
from reelweave.curate.cut.config import CutConfig
from reelweave.curate.cut.encode import options
from reelweave.curate.cut.smart.coding import Coding, SetsOf
from reelweave.curate.frames.picture import Geometry
from reelweave.loader.errors import refuse_shortage


@dataclass(frozen=True)
class Sample:
    """One frame of a clip, as MP4 stores it.

    Attributes:
        data: NAL units with lengths of four bytes.
        shown: Number of the frame in shown order.
        is_key: True for a picture at which decoding may begin.
    """

    data: bytes
    shown: int
    is_key: bool


class EdgeEncoder:
    """Encoder of some frames of a clip, with the settings of encoded clips, that begins with an IDR picture.

    Args:
        coding: Codec of the clip.
        size: Size and depth of the pictures.
        rate: Frames per second.
        config: Encoder settings.
        beside: Parameter sets of the copies.
        reorders: False for no B-frames, since those of the source need none of their decoder.

    Attributes:
        samples: Frames so far, in decoding order.
        sets: Its parameter sets, once a frame was encoded.

    Raises:
        CutError: The encoder cannot be opened.
    """

    def __init__(
        self,
        coding: Coding,
        size: Geometry,
        rate: Fraction,
        config: CutConfig,
        beside: SetsOf,
        *,
        reorders: bool,
    ) -> None:
        context = CodecContext.create(coding.encoder, "w")
        assert isinstance(context, VideoCodecContext)
        context.width, context.height, context.pix_fmt = size.width, size.height, size.pixel_format
        context.time_base, context.framerate = 1 / rate, rate
        context.thread_count, context.gop_size = config.threads, config.keyframe_every
        context.flags |= Flags.global_header
        if not reorders:
            context.max_b_frames = 0
        values = {name: str(value) for name, value in options(coding.encoder, config, size.light).items()}
        context.options = coding.edge_options(values, beside)
        self._coding, self._beside = coding, beside
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
                data = self._coding.edge_sample(bytes(packet), self._beside)
                self.samples.append(Sample(data, packet.pts or 0, packet.is_keyframe))
            if not self.sets:
                self.sets = self._coding.edge_sets(bytes(context.extradata or b""), self._beside)
        except (av.error.FFmpegError, ValueError) as error:
            refuse_shortage(error)
            raise CutError(f"could not be encoded with {self._coding.encoder}: {error}") from error
