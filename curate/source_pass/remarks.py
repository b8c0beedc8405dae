"""Words on what is done to the pictures of a source without a mark that asks for it."""

from collections.abc import Sequence

from av.video.stream import VideoStream

from reelweave.curate.frames.container.side_data import side_data
from reelweave.curate.frames.frame_times import FrameTimes

TRANSPARENT = "transparent pixels shown over black"
TURNED = "turned upright as its codec says (display orientation), which players may not do"
TURNED_TWICE = (
    "turned upright as its codec says (display orientation), though its container states a turn as well"
)
DEINTERLACED = "interlaced without a mark; deinterlaced"
CODED = "its stamps do not tell when frames are shown; held ones are told by their order of coding, within a few frames"
PARTLY_COMBED = "parts of its source are interlaced without a mark; left as they are"
WHOLE_STEPS = (
    "its sound steps beside its pictures where parts are joined; listed segments may hold such a step"
)


def describe_grid(stamps: Sequence[int | None], line: FrameTimes) -> str:
    """Return the remark on frames whose stamps all tell one time, "" for others."""
    if len(stamps) < 2 or stamps[0] is None or any(stamp != stamps[0] for stamp in stamps):
        return ""
    return f"its stamps tell one time for all frames; {float(line.rate):g} frames per second are a guess"


def describe_turn(stream: VideoStream) -> str:
    """Return the remark on pictures that their codec turns."""
    return TURNED_TWICE if side_data(stream).is_turned else TURNED


def describe_changes(line: FrameTimes, *, combed: bool, transparent: bool, others: Sequence[str]) -> str:
    """Return in words what is done to all pictures, or left undone.

    Args:
        line: Timeline of the source.
        combed: True if some pictures are combed without a mark.
        transparent: True if pictures have transparent pixels.
        others: Further remarks, "" for none.
    """
    remarks = [TRANSPARENT if transparent else "", CODED if line.coded else ""]
    if line.unmarked is not None:
        remarks.append(DEINTERLACED)
    elif combed and line.pulldown is None:
        remarks.append(PARTLY_COMBED)
    return "; ".join(filter(None, (*remarks, *others)))
