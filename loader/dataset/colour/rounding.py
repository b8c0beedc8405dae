"""Rounding of frames with more than 8 bits per sample to 8 bits."""

import re

import numpy as np
from av.video.frame import VideoFrame

from reelweave.loader.dataset.colour.loops import round_samples
from reelweave.loader.dataset.colour.planes import lines_of

_DEEP = re.compile(r"(yuv4(?:20|22|44)p)(9|10|12|14|16)le")


def is_deep(frame: VideoFrame) -> bool:
    """Return True when `round_to_8_bits` takes the format of a frame."""
    return _DEEP.fullmatch(frame.format.name) is not None


def round_to_8_bits(frame: VideoFrame) -> VideoFrame:
    """Return a frame in 8 bits, each sample rounded to the nearest value, without tags."""
    deep = _DEEP.fullmatch(frame.format.name)
    assert deep is not None
    bits = int(deep[2]) - 8
    out = VideoFrame(frame.width, frame.height, deep[1])
    for plane, to in zip(frame.planes, out.planes, strict=True):
        size = plane.height, plane.width
        round_samples(size, lines_of(plane, np.uint16), bits, lines_of(to, np.uint8))
    out.pts, out.time_base = frame.pts, frame.time_base
    return out
