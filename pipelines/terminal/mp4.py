"""Encoding of pixels as an MP4 that plays everywhere."""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray


def encode_mp4(video_CTHW: NDArray[np.uint8], fps: int) -> bytes:
    """Encode RGB frames as an H.264 MP4 in 4:2:0 with fast start.

    Args:
        video_CTHW: [3, frames, height, width], height and width even.
        fps: frames per second.
    """
    from av.video.frame import VideoFrame

    from reelweave.curate.cut.config import CutConfig
    from reelweave.curate.cut.encode import X264, ClipEncoder
    from reelweave.curate.cut.mp4 import fast_start
    from reelweave.curate.frames.picture import Geometry

    _, _, height, width = video_CTHW.shape
    encoder = ClipEncoder(X264, Geometry(width, height), Fraction(fps), CutConfig())
    for picture_HWC in video_CTHW.transpose(1, 2, 3, 0):
        frame = VideoFrame.from_ndarray(np.ascontiguousarray(picture_HWC), "rgb24")
        encoder.show(frame.reformat(format="yuv420p", dst_colorspace="ITU601"), 1)
    return fast_start(encoder.finish())
