"""Conversion of frames to the format of clips: upright, square pixels, even size, 4:2:0, 8-bit SDR or 10 bits.

The shape of pictures may change in mid-film: TV recordings change between 4:3 and 16:9, live ones turn or adapt to the
network. Joined films change between SDR and HDR. Each shape has clips of its own.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from av.codec.context import Flags
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from reelweave.curate.frames.probe import ProbeConfig, check_size
from reelweave.curate.frames.source import SourceError
from reelweave.loader.base.operations import charged
from reelweave.loader.dataset.colour import hdr
from reelweave.loader.dataset.colour.chain import Chain
from reelweave.loader.dataset.colour.light import Light, light_of
from reelweave.loader.dataset.colour.matrix import matrix_fault
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
_TRANSFERS = {0: "SDR", hdr.PQ: "PQ", hdr.HLG: "HLG"}
_ROUNDED = 2  # degrees by which a right angle may be off, as PyAV tells it
_FORMATS = {8: "yuv420p", 10: "yuv420p10le"}

MOST_SHAPES = 1000
"""Number of changes above which a source is refused."""


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
    def from_json(cls, values: list[Any]) -> Geometry:
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


def oblique(frame: VideoFrame) -> str:
    """Return words where a frame states a turn that is no right angle, "" elsewhere; the nearest one is taken."""
    off = abs(frame.rotation - 90 * round(frame.rotation / 90))
    return "states a turn that is no right angle; the nearest one is taken" if off > _ROUNDED else ""


class Finisher:
    """Converter from decoded frames to finished pictures of one size.

    Frames that are finished already pass unchanged, without another loss. Others are scaled to the size, so each shape
    of a source has a converter of its own.
    """

    def __init__(self, target: Geometry) -> None:
        self._target = target
        self._shaped, self._sdr = Chain(), SdrConverter()
        self._turn, self._rotation = Orientation(), 0

    @charged("convert")
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
        pixel_format = self._target.pixel_format
        full, turns = frame.color_range == FULL_RANGE, _TURNS[turn]
        upright = (frame.height, frame.width) if turn.transposed else (frame.width, frame.height)
        lost = (upright[0] - self._target.width, upright[1] - self._target.height)
        # 4:2:0 cannot express an odd row or column; dropping it leaves the others unchanged.
        cropped = max(lost) <= 1 and min(lost) >= 0
        size = "" if cropped else f"{self._target.width}:{self._target.height}:"
        steps = []
        if full or frame.format.name != pixel_format:
            # RGB has no matrix of its own; without one, players guess by the size of the picture.
            matrix = "bt2020" if frame.color_primaries == _BT2020 else "bt709"
            matrix = f":out_color_matrix={matrix}" if _is_rgb(frame) else ""
            if size and not turns:  # one scale instead of two: faster, and chroma is rounded once
                limited = ":out_range=limited" if full else ""
                return (f"scale={size}flags=area{limited}{matrix}", f"format={pixel_format}", "setsar=1")
            steps += ["scale=out_range=limited"] if full and not matrix else []
            steps += [f"scale=flags=area{matrix}", f"format={pixel_format}"]
        steps += turns
        if size:
            steps += [f"scale={size}flags=area", "setsar=1"]
        elif max(lost):
            steps.append(f"crop={self._target.width}:{self._target.height}:0:0")
        return tuple(steps)


def _is_rgb(frame: VideoFrame) -> bool:
    return frame.format.is_rgb or frame.format.has_palette


@dataclass(frozen=True)
class Shape:
    """Size and colours of finished pictures from one frame on.

    Attributes:
        first: First frame of this shape, in display order.
        width: Width in pixels, upright and with square pixels.
        height: Height in pixels.
        bits: Bits per sample of clips that may have 10.
        transfer: PQ or HLG as in ITU-T H.273, 0 for SDR.
        matrix: Matrix of the colours as in FFmpeg.
        light: Light that HDR pictures were made for, where their source says so.
    """

    first: int
    width: int
    height: int
    bits: int = 8
    transfer: int = 0
    matrix: int = 0
    light: Light | None = None

    @property
    def kind(self) -> tuple[int, ...]:
        """Values that are the same for all pictures of a clip."""
        return self.width, self.height, self.bits, self.transfer, self.matrix

    def change_to(self, other: Shape) -> str:
        """Return in words what is different in another shape."""
        if (self.width, self.height) != (other.width, other.height):
            return f"from {self.width}x{self.height} to {other.width}x{other.height}"
        if self.transfer != other.transfer:
            return f"from {_TRANSFERS[self.transfer]} to {_TRANSFERS[other.transfer]}"
        if self.bits != other.bits:
            return f"from {self.bits} to {other.bits} bits"
        return f"from colour matrix {self.matrix} to {other.matrix}"


def shape_at(shapes: Sequence[Shape], frame: int) -> Shape:
    """Return the shape of a frame; ``shapes`` rise and begin with that of frame 0."""
    return shapes[bisect_right(shapes, frame, key=lambda shape: shape.first) - 1]


def size_at(shapes: Sequence[Shape], frame: int, size: Geometry, max_bits: int = 8) -> Geometry:
    """Return the size of a clip that begins with a frame.

    Args:
        shapes: Shapes of the source, or none where it has one.
        frame: First frame of the clip.
        size: Size of the source's first frame.
        max_bits: Maximum bits per sample.
    """
    if not shapes:
        return size
    shape = shape_at(shapes, frame)
    if shape.bits > 8 and max_bits > 8:
        return Geometry(shape.width, shape.height, shape.bits, shape.light)
    return Geometry(shape.width, shape.height)


def checksum(frame: VideoFrame) -> int:
    """Return a checksum of a frame's stored samples, without what pads their rows."""
    total = 0
    wide = 2 if any(component.bits > 8 for component in frame.format.components) else 1
    for plane in frame.planes:
        rows = np.frombuffer(memoryview(plane), np.uint8, plane.height * plane.line_size)
        total = zlib.crc32(rows.reshape(plane.height, -1)[:, : plane.width * wide].tobytes(), total)
    return total


def marks_of(frame: VideoFrame) -> object:
    """Return the `opaque` that the packet of a frame had before `ShapeMeter` decoded it; None where it is not known."""
    return frame.opaque[0] if isinstance(frame.opaque, list) else None


class ShapeMeter:
    """Decoder that notes the shape of each frame.

    Args:
        stream: Stream of the packets.
        codec: Decoder of the stream.
        limits: Limits of sizes.
        crop: Function from a decoded frame to what is shown of it.

    Attributes:
        shapes: Shapes so far.
    """

    def __init__(
        self,
        stream: VideoStream,
        codec: VideoCodecContext,
        limits: ProbeConfig,
        crop: Callable[[VideoFrame], VideoFrame] = lambda frame: frame,
    ) -> None:
        self._codec, self._limits, self._crop = codec, limits, crop
        self._stated = stream.sample_aspect_ratio or None
        # A container that says otherwise than the codec goes before it.
        self._overrides = self._stated != (stream.codec_context.sample_aspect_ratio or None)
        codec.flags |= Flags.copy_opaque
        self._kind: tuple[object, ...] = ()
        self._frames = 0
        self.shapes: list[Shape] = []

    def decode(self, packet: Packet[VideoStream]) -> list[VideoFrame]:
        """Decode a packet, which is given a note: `marks_of` its frames returns what it was marked with before.

        Raises:
            SourceError: A picture is too large, its colours cannot be converted, or the shape changes too often.
        """
        # The codec tells the pixel aspect of the packet, which shows some frames later.
        note: list[Any] = [packet.opaque]
        packet.opaque = note
        try:
            frames = [self._crop(frame) for frame in self._codec.decode(packet)]
        finally:
            note.append(self._codec.sample_aspect_ratio)
        for frame in frames:
            self._take(frame)
            self._frames += 1
        return frames

    def repeat(self) -> None:
        """Count a frame that is shown once more, without a packet of its own."""
        self._frames += 1

    def shift(self, frames: int) -> None:
        """Count frames that are lost before the first one, of whose shape they are taken to be."""
        self._frames += frames
        self.shapes[1:] = [replace(shape, first=shape.first + frames) for shape in self.shapes[1:]]

    def _take(self, frame: VideoFrame) -> None:
        note = frame.opaque
        frame_aspect = note[1] if isinstance(note, list) else self._codec.sample_aspect_ratio
        aspect = self._stated if self._overrides else (frame_aspect or self._stated)
        transfer = int(frame.color_trc) if is_hdr(frame) else 0
        matrix = int(frame.colorspace)
        kind = (frame.width, frame.height, frame.format.name, frame.rotation, aspect, transfer, matrix)
        if kind == self._kind:
            return
        self._kind = kind
        if fault := matrix_fault(frame):
            raise SourceError(fault)
        size = geometry(frame, aspect, 10)
        check_size(size.width, size.height, self._limits)
        shape = Shape(self._frames, size.width, size.height, size.bits, transfer, matrix, size.light)
        if self.shapes and self.shapes[-1].kind == shape.kind:
            return
        if len(self.shapes) > MOST_SHAPES:
            raise SourceError(f"its pictures change their shape more than {MOST_SHAPES} times")
        self.shapes.append(shape)
