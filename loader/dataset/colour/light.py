"""Light that HDR pictures were made for: the mastering display (SMPTE ST 2086) and the content's levels (CTA-861.3)."""

import struct
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from av.sidedata.sidedata import Type
from av.video.frame import VideoFrame

_MASTERING = struct.Struct("=22i")  # AVMasteringDisplayMetadata: ten rationals, two flags
_LEVELS = struct.Struct("=2I")  # AVContentLightMetadata


@dataclass(frozen=True)
class Light:
    """Static HDR metadata of a video.

    Attributes:
        primaries: Chromaticity (x, y) of red, green, blue and white of the mastering display; None when unknown.
        nits: Minimum and maximum luminance of that display; None when unknown.
        levels: Maximum of pixels and of frame averages in nits (MaxCLL, MaxFALL); None when unknown.
    """

    primaries: tuple[tuple[Fraction, Fraction], ...] | None = None
    nits: tuple[Fraction, Fraction] | None = None
    levels: tuple[int, int] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the metadata as JSON values."""
        primaries = self.primaries and [[str(x), str(y)] for x, y in self.primaries]
        return {"primaries": primaries, "nits": self.nits and [*map(str, self.nits)], "levels": self.levels}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Light":
        """Return the metadata that `to_json` wrote."""
        primaries, nits, levels = values["primaries"], values["nits"], values["levels"]
        return cls(
            primaries and tuple((Fraction(x), Fraction(y)) for x, y in primaries),
            nits and (Fraction(nits[0]), Fraction(nits[1])),
            levels and (levels[0], levels[1]),
        )


def light_of(frame: VideoFrame) -> Light | None:
    """Return the metadata that a frame carries, or None without any."""
    try:
        beside: Any = frame.side_data
    except ValueError:  # PyAV has no name for some kinds of side data, such as EXIF
        return None
    primaries = nits = levels = None
    mastering, content = beside.get(Type.MASTERING_DISPLAY_METADATA), beside.get(Type.CONTENT_LIGHT_LEVEL)
    if mastering is not None and mastering.buffer_size == _MASTERING.size:
        primaries, nits = _mastering(_MASTERING.unpack(bytes(mastering)))
    if content is not None and content.buffer_size == _LEVELS.size:
        levels = _LEVELS.unpack(bytes(content))
    light = Light(primaries, nits, levels)
    return None if light == Light() else light


def _mastering(
    values: tuple[int, ...],
) -> tuple[tuple[tuple[Fraction, Fraction], ...] | None, tuple[Fraction, Fraction] | None]:
    *parts, has_primaries, has_luminance = values
    rationals = list(zip(parts[::2], parts[1::2], strict=True))
    if any(below <= 0 for _, below in rationals[: 8 if has_primaries else 0]):
        has_primaries = 0
    if any(below <= 0 for _, below in rationals[8:]):
        has_luminance = 0
    fractions = [Fraction(over, below) if below else Fraction(0) for over, below in rationals]
    points = tuple(zip(fractions[:8:2], fractions[1:8:2], strict=True))
    return points if has_primaries else None, (fractions[8], fractions[9]) if has_luminance else None
