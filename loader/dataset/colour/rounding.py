"""Rounding of frames with more than 8 bits per sample to 8 bits."""

import re

import numpy as np
from av.video.frame import VideoFrame
from numpy.typing import NDArray

_DEEP = re.compile(r"(yuv4(?:20|22|44)p)(9|10|12|14|16)le")
_BLOCK_SAMPLES = 1 << 15  # block size that stays in the CPU cache
_LARGEST = 255


def is_deep(frame: VideoFrame) -> bool:
    """Return True when `Rounding` takes the format of a frame."""
    return _DEEP.fullmatch(frame.format.name) is not None


class Rounding:
    """Rounding of frames of one source; it keeps the memory of its sums, since new memory is dear."""

    def __init__(self) -> None:
        self._sums = np.empty(_BLOCK_SAMPLES, np.uint16)
        # numpy compares with an array by vector instructions, and with a number eight times slower.
        self._largest = np.full(_BLOCK_SAMPLES, _LARGEST, np.uint16)

    def __call__(self, frame: VideoFrame) -> VideoFrame:
        """Return the frame in 8 bits, each sample rounded to the nearest value, without tags."""
        deep = _DEEP.fullmatch(frame.format.name)
        assert deep is not None
        bits = int(deep[2]) - 8
        out = VideoFrame(frame.width, frame.height, deep[1])
        for plane, to in zip(frame.planes, out.planes, strict=True):
            samples = np.frombuffer(memoryview(plane), "<u2").reshape(plane.height, -1)[:, : plane.width]
            lines = np.frombuffer(memoryview(to), np.uint8).reshape(to.height, -1)[:, : to.width]
            rows, columns = max(1, _BLOCK_SAMPLES // plane.width), min(plane.width, _BLOCK_SAMPLES)
            for top in range(0, plane.height, rows):
                for left in range(0, plane.width, columns):
                    block = np.s_[top : top + rows, left : left + columns]
                    self._round(samples[block], bits, lines[block])
        out.pts, out.time_base = frame.pts, frame.time_base
        return out

    def _round(self, samples: NDArray[np.uint16], bits: int, lines: NDArray[np.uint8]) -> None:
        """Round a block by dropping its lowest bits."""
        sums, largest = (each[: samples.size].reshape(samples.shape) for each in (self._sums, self._largest))
        # The half is added after half of the shift, so that 16 bits do not overflow.
        np.right_shift(samples, bits - 1, out=sums)
        sums += 1
        sums >>= 1
        np.minimum(sums, largest, out=sums)
        np.copyto(lines, sums, casting="unsafe")
