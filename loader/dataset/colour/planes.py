"""Planes of decoded frames as arrays."""

from typing import Any

import numpy as np
from av.video.plane import VideoPlane
from numpy.typing import NDArray


def lines_of(plane: VideoPlane, kind: Any) -> NDArray[Any]:
    """Return the lines of a plane with their padding, [height, at least width]; they share its memory."""
    return np.frombuffer(memoryview(plane), kind).reshape(plane.height, -1)
