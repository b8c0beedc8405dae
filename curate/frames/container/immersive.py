"""Pictures that players show otherwise than they are stored: panoramas, and both views of 3D in one picture."""

import struct
from typing import Any

from av.sidedata.sidedata import Type
from av.video.frame import VideoFrame

_PANORAMAS = {
    0: "equirectangular",
    1: "cube map",
    2: "part of an equirectangular one",
    3: "half equirectangular",
    5: "fisheye",
    6: "parametric",
}
"""Words for the values of FFmpeg's AVSphericalProjection; rectilinear pictures (4) are flat."""

_VIEWS = {
    1: "side by side",
    2: "one above the other",
    3: "frame by frame",
    4: "in a checkerboard",
    5: "side by side",
    6: "line by line",
    7: "column by column",
}
"""Words for the values of FFmpeg's AVStereo3DType; others (0, 8) have one view in a picture."""


def immersive(frame: VideoFrame) -> str:
    """Return in words how a picture is stored that its film marks as a panorama or as 3D, "" for flat ones."""
    try:
        beside: Any = frame.side_data
    except ValueError:  # with a kind that PyAV has no name for, as EXIF, it hands out none
        return ""
    panorama, views = (
        _PANORAMAS.get(_first(beside, Type.SPHERICAL)),
        _VIEWS.get(_first(beside, Type.STEREO3D)),
    )
    remarks = [f"a panorama ({panorama}) is shown as it is stored"] if panorama else []
    remarks += [f"both views of 3D ({views}) are shown as they are stored"] if views else []
    return "; ".join(remarks)


def _first(beside: Any, kind: Type) -> int:
    """Return the first field of a frame's side data, an enumeration, or -1 without such data."""
    fields = beside.get(kind)
    return -1 if fields is None else int(struct.unpack_from("=i", bytes(fields))[0])
