"""Facts that a container states of a stream's pictures, which FFmpeg reads and its decoders leave to the player."""

from __future__ import annotations

import re
from dataclasses import dataclass

from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from reelweave.curate.frames.container.description import described_stream
from reelweave.curate.frames.container.dolby_vision import DolbyVision
from reelweave.loader.dataset.colour.chain import Chain

_DOLBY_VISION = re.compile(
    r"^ {6}DOVI configuration record: .*\bprofile: (\d+),.* bl flag: (\d+), compatibility id: (\d+)",
    re.MULTILINE,
)
_TURN = re.compile(r"^ {6}Display Matrix: rotation of (-?[\d.]+) degrees", re.MULTILINE)
_CROP = re.compile(r"^ {6}Frame Cropping: (\d+)/(\d+)/(\d+)/(\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Crop:
    """Rows and columns at the edges of stored pictures that players cut off."""

    left: int
    right: int
    top: int
    bottom: int


@dataclass(frozen=True)
class SideData:
    """Facts that a container states of one video stream."""

    dolby_vision: DolbyVision | None = None
    crop: Crop | None = None
    is_turned: bool = False


def side_data(stream: VideoStream) -> SideData:
    """Return what the container of a stream states of it, in MP4, MOV, Matroska and MPEG-TS."""
    part = described_stream(stream.container, stream.index)
    turn = _TURN.search(part)
    return SideData(_dolby_vision(part), _crop(part), turn is not None and float(turn[1]) != 0)


def _dolby_vision(text: str) -> DolbyVision | None:
    match = _DOLBY_VISION.search(text)
    return match and DolbyVision(int(match[1]), match[2] != "0", int(match[3]))


def _crop(text: str) -> Crop | None:
    match = _CROP.search(text)
    crop = match and Crop(*map(int, match.groups()))
    return crop if crop and any(vars(crop).values()) else None


class Cropper:
    """Cropper of the frames of one stream to what players show of them.

    Args:
        stream: The stream.
    """

    def __init__(self, stream: VideoStream) -> None:
        self._crop, self._chain = side_data(stream).crop, Chain()

    def __call__(self, frame: VideoFrame) -> VideoFrame:
        """Return the shown part of a frame, with its marks; it is not copied."""
        crop = self._crop
        if crop is None:
            return frame
        width, height = frame.width - crop.left - crop.right, frame.height - crop.top - crop.bottom
        if min(width, height) < 1:  # a statement on other pictures than these
            return frame
        # Another first row would change which field is shown first.
        top = crop.top - crop.top % 2 if frame.interlaced_frame else crop.top
        return self._chain(frame, (f"crop={width}:{height}:{crop.left}:{top}",))
