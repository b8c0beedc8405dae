"""How a viewer turns a stored picture: by quarters, and mirrored where its display matrix says so."""

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

_MATRIX = struct.Struct("=9i")


class Orientation(NamedTuple):
    """Steps from the stored picture to the shown one, in this order.

    Attributes:
        transposed: Rows become columns.
        mirrored: Left and right change places.
        flipped: Top and bottom change places.
    """

    transposed: bool = False
    mirrored: bool = False
    flipped: bool = False

    def of(self, picture_HW: Any) -> Any:
        """A view of an array [H, W, ...] as it is shown."""
        shown = picture_HW.swapaxes(0, 1) if self.transposed else picture_HW
        return shown[:: -1 if self.flipped else 1, :: -1 if self.mirrored else 1]


_QUARTERS = (
    Orientation(),
    Orientation(True, True, False),
    Orientation(False, True, True),
    Orientation(True, False, True),
)
"""By how many quarters a viewer turns the picture clockwise."""


def orientation_of(frame: "VideoFrame") -> Orientation:
    """The turn that the display matrix of a decoded frame asks for, to the nearest quarter."""
    from av.sidedata.sidedata import Type

    try:
        found: Any = frame.side_data
    except ValueError:  # a frame with side data of a kind that PyAV has no name for, such as EXIF
        return _QUARTERS[round(-frame.rotation / 90) % 4]
    matrix = found.get(Type.DISPLAYMATRIX)
    if matrix is None:
        return Orientation()
    # Shown x is a * x + c * y, shown y is b * x + d * y.
    a, b, _, c, d, *_ = _MATRIX.unpack(bytes(matrix)[: _MATRIX.size])
    if abs(b) + abs(c) > abs(a) + abs(d):
        return Orientation(True, c < 0, b < 0)
    return Orientation(False, a < 0, d < 0)
