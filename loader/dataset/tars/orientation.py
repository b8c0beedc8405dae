"""Orientation of stored pictures: rotation by quarter turns and mirroring, from the display matrix."""

import io
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

_MATRIX = struct.Struct("=9i")


class Orientation(NamedTuple):
    """Steps from the stored picture to the displayed one, in this order.

    Attributes:
        transposed: True to swap rows and columns.
        mirrored: True to swap left and right.
        flipped: True to swap top and bottom.
    """

    transposed: bool = False
    mirrored: bool = False
    flipped: bool = False

    def of(self, picture_HW: Any) -> Any:
        """Return a view of an array [H, W, ...] as displayed."""
        shown = picture_HW.swapaxes(0, 1) if self.transposed else picture_HW
        return shown[:: -1 if self.flipped else 1, :: -1 if self.mirrored else 1]


_QUARTERS = (
    Orientation(),
    Orientation(True, True, False),
    Orientation(False, True, True),
    Orientation(True, False, True),
)
"""Orientations by clockwise quarter turns of the viewer."""


_EXIF_ORIENTATION = 0x0112
_BY_EXIF = {
    1: Orientation(),
    2: Orientation(False, True, False),
    3: Orientation(False, True, True),
    4: Orientation(False, False, True),
    5: Orientation(True, False, False),
    6: Orientation(True, True, False),
    7: Orientation(True, True, True),
    8: Orientation(True, False, True),
}
"""Orientations by the tag of Exif 2.32, 4.6.4."""


def orientation_of(frame: "VideoFrame", picture: bytes | memoryview = b"") -> Orientation:
    """Return the orientation by the display matrix of a decoded frame, to the nearest quarter turn.

    Args:
        frame: decoded frame.
        picture: the bytes it was decoded from, where these may be a picture with EXIF.
    """
    from av.sidedata.sidedata import Type

    try:
        side_data: Any = frame.side_data
    except (
        ValueError
    ):  # PyAV has no name for some kinds of side data, such as EXIF, and its rotation mirrors nothing
        return _by_exif(picture) or _QUARTERS[round(-frame.rotation / 90) % 4]
    matrix = side_data.get(Type.DISPLAYMATRIX)
    if matrix is None:
        return Orientation()
    # Displayed x is a * x + c * y, displayed y is b * x + d * y.
    a, b, _, c, d, *_ = _MATRIX.unpack(bytes(matrix)[: _MATRIX.size])
    if abs(b) + abs(c) > abs(a) + abs(d):
        return Orientation(True, c < 0, b < 0)
    return Orientation(False, a < 0, d < 0)


def _by_exif(picture: bytes | memoryview) -> Orientation | None:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(picture)) as image:
            return _BY_EXIF.get(image.getexif().get(_EXIF_ORIENTATION, 1))
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
