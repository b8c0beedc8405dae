"""Conversion of frames to the format of clips: upright, square pixels, even size, 4:2:0, 8-bit SDR or 10 bits."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from av.video.frame import VideoFrame

from reelweave.loader.dataset.colour.chain import Chain
from reelweave.loader.dataset.colour.light import Light, light_of
from reelweave.loader.dataset.colour.sdr import FULL_RANGE, SdrConverter, is_hdr
from reelweave.loader.dataset.tars.orientation import Orientation, orientation_of

_TURNS = {
    Orientation(): (),
    Orientation(mirrored=True): ("hflip",),
    Orientation(flipped=True): ("vflip",),
    Orientation(mirrored=True, flipped=True): ("hflip", "vflip"),
    Orientation(transposed=True): ("transpose=cclock_flip",),
    Orientation(transposed=True, mirrored=True): ("transpose=clock",),
    Orientation(transposed=True, flipped=True): ("transpose=cclock",),
    Orientation(transposed=True, mirrored=True, flipped=True): ("transpose=clock_flip",),
}
_BT2020 = 9  # primaries in ITU-T H.273
_FORMATS = {8: "yuv420p", 10: "yuv420p10le"}


@dataclass(frozen=True)
class Geometry:
    """Size and depth of finished pictures: upright, square pixels, even.

    Attributes:
        width: Width in pixels.
        height: Height in pixels.
        bits: Bits per sample, 8 or 10; pictures of 8 bits are SDR.
        light: Light that HDR pictures were made for, where their source says so.
    """

    width: int
    height: int
    bits: int = 8
    light: Light | None = None

    @property
    def pixel_format(self) -> str:
        """Name of the pixel format in FFmpeg."""
        return _FORMATS[self.bits]

    def to_json(self) -> list[Any]:
        """Return the geometry as JSON values."""
        return [self.width, self.height, self.bits, self.light and self.light.to_json()]

    @classmethod
    def from_json(cls, values: list[Any]) -> "Geometry":
        """Return the geometry that `to_json` wrote."""
        width, height, bits, light = values
        return cls(width, height, bits, light and Light.from_json(light))


def geometry(frame: VideoFrame, pixel_aspect: Fraction | None, max_bits: int = 8) -> Geometry:
    """Return the size of a clip made from a decoded frame.

    Args:
        frame: Decoded frame, the first of its source.
        pixel_aspect: Width of a stored pixel over its height; None or 0 when unknown, taken as square.
        max_bits: Maximum bits per sample.
    """
    width, height = frame.width, frame.height
    if pixel_aspect:
        width = round(width * pixel_aspect)
    if orientation_of(frame).transposed:
        width, height = height, width
    even = max(2, width - width % 2), max(2, height - height % 2)
    deep = is_hdr(frame) or max(part.bits for part in frame.format.components) > 8
    return Geometry(*even, 10, light_of(frame)) if deep and max_bits > 8 else Geometry(*even)


class Finisher:
    """Converter from decoded frames to finished pictures of one size.

    Frames that are finished already pass unchanged, without another loss. Where a source changes its size
    midway, pictures are scaled to the first size.
    """

    def __init__(self, target: Geometry) -> None:
        self._target = target
        self._shaped, self._sdr = Chain(), SdrConverter()
        self._turn, self._rotation = Orientation(), 0

    def finish(self, frame: VideoFrame) -> VideoFrame:
        """Return the finished picture of a decoded frame; time stamps are left to the caller."""
        # A frame whose side data was read is freed only by the garbage collector.
        if frame.key_frame or frame.rotation != self._rotation:
            self._turn, self._rotation = orientation_of(frame), frame.rotation
        turn = self._turn
        picture = frame if self._target.bits > 8 else self._sdr(frame)
        return self._shaped(picture, self._to_shape(picture, turn))

    def _to_shape(self, frame: VideoFrame, turn: Orientation) -> tuple[str, ...]:
        """Return the filters that convert a frame's range, format, orientation and size."""
        wanted = self._target.pixel_format
        full, turns = frame.color_range == FULL_RANGE, _TURNS[turn]
        upright = (frame.height, frame.width) if turn.transposed else (frame.width, frame.height)
        lost = (upright[0] - self._target.width, upright[1] - self._target.height)
        # 4:2:0 cannot express an odd row or column; dropping it leaves the others unchanged.
        cropped = max(lost) <= 1 and min(lost) >= 0
        size = "" if cropped else f"{self._target.width}:{self._target.height}:"
        steps = []
        if full or frame.format.name != wanted:
            # RGB has no matrix of its own; without one, players guess by the size of the picture.
            matrix = "bt2020" if frame.color_primaries == _BT2020 else "bt709"
            matrix = f":out_color_matrix={matrix}" if _is_rgb(frame) else ""
            if size and not turns:  # one scale instead of two: faster, and chroma is rounded once
                limited = ":out_range=limited" if full else ""
                return (f"scale={size}flags=area{limited}{matrix}", f"format={wanted}", "setsar=1")
            steps += ["scale=out_range=limited"] if full and not matrix else []
            steps += [f"scale=flags=area{matrix}", f"format={wanted}"]
        steps += turns
        if size:
            steps += [f"scale={size}flags=area", "setsar=1"]
        elif max(lost):
            steps.append(f"crop={self._target.width}:{self._target.height}:0:0")
        return tuple(steps)


def _is_rgb(frame: VideoFrame) -> bool:
    return frame.format.is_rgb or frame.format.has_palette
