"""Deinterlacing, one full picture per frame, and the interlaced frames that no flag marks."""

from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Literal

import av
import numpy as np
from av.filter import Graph
from av.video.frame import VideoFrame
from numpy.typing import NDArray

FieldOrder = Literal["tff", "bff"]
"""Field that is shown first: the upper or the lower one."""

_SMALLEST = 4  # minimum side, pixels; the filter needs some lines above and below

_EVERY, _AT_ONCE = 30, 10  # frames, of which so many in a row are looked at: the cost of a third
_BWDIF = "bwdif=mode=send_frame:parity=auto:deint=interlaced"
_CONTEXT = 2  # frames after which one has neighbours on both sides
_LEAST_COMBED = 6  # frames that must show it where no header says so
_LEAST_SHARE = 0.9  # of the frames in which the order of fields can be seen at all
# Frames of one order beyond those of the other: pictures that hardly move show both by chance.
_SOME, _SOME_SHARE = 3, 0.2
_LEAST_COMB = 0.96  # see `_Weave`: at least 0.99 in interlaced films, at most 0.94 in tilts
_COLUMNS = 320  # of a picture that are looked at, at most about
_CODED_FIELDS = (
    "is HEVC coded as fields, each a picture of half the height; weave them first, as by `ffmpeg -i FILE -vf"
    " weave=first_field=top -c:v libx264 -crf 16 -flags +ildct+ilme -c:a copy NEW_FILE.mkv` (or bottom, as the film has"
    " it)"
)
_KIND = "lavfi.idet.single.current_frame"


def fields_fault(frame: VideoFrame, codec: str) -> str | None:
    """Return why frames of a codec are no whole pictures, or None: FFmpeg leaves the fields of HEVC as they are coded.

    Args:
        frame: Decoded frame.
        codec: Name of its decoder in FFmpeg.
    """
    # FFmpeg marks pictures of HEVC so only where each is one field (pic_struct 1, 2 and 9 to 12 of ITU-T H.265, D.3.3).
    return _CODED_FIELDS if codec == "hevc" and frame.interlaced_frame else None


class CombMeter:
    """Meter of the order of fields that pictures show, whatever their flags say.

    Fields of one moment fit each other. Of two moments, one field fits the frame before better and the other one the
    frame after (FFmpeg's idet). Still pictures say nothing. Pictures that move up or down by even rows show the same,
    but their own lines fit best (`_Weave`).
    """

    def __init__(self) -> None:
        self._graph: Graph | None = None
        self._kind: tuple[int, int, str] | None = None
        self._number = 0
        self._measures = True
        self._counts = {"tff": 0, "bff": 0, "progressive": 0}
        self._weave, self._combs = _Weave(), array("f")

    def push(self, frame: VideoFrame) -> None:
        """Take the next frame in display order."""
        index, self._number = self._number % _EVERY, self._number + 1
        if not self._measures or index >= _AT_ONCE:
            return
        kind = (frame.width, frame.height, frame.format.name)
        if index == 0 and min(kind[:2]) >= _SMALLEST:
            self._kind = kind
        elif kind != self._kind or frame.interlaced_frame:
            self._kind = None  # the rest of this run says nothing
            return
        try:
            if index == 0:
                self._graph, self._weave = _chain(frame, "idet"), _Weave()
            self._take(frame, index)
        except (av.error.FFmpegError, ValueError):  # a format that nothing converts
            self._measures = False

    def _take(self, frame: VideoFrame, index: int) -> None:
        assert self._graph is not None
        self._graph.push(frame)
        for filtered in _pull(self._graph):
            field_order = filtered.metadata.get(_KIND, "")
            if index >= _CONTEXT and field_order in self._counts:
                self._counts[field_order] += 1
            if (comb := self._weave.comb(filtered, field_order)) is not None:
                self._combs.append(comb)

    def _has_comb(self) -> bool:
        """Return whether in a tenth of the frames moving lines fit no better than those of the fields beside."""
        return not self._combs or float(np.quantile(self._combs, 0.9)) >= _LEAST_COMB

    def order(self, stated: bool) -> FieldOrder | None:
        """Return the order of fields of a film whose frames are interlaced, or None.

        Args:
            stated: True if its header says that it is interlaced; then fewer frames are enough.
        """
        upper, lower = self._counts["tff"], self._counts["bff"]
        max_count = max(upper, lower)
        if max_count < (1 if stated else _LEAST_COMBED) or max_count < _LEAST_SHARE * sum(
            self._counts.values()
        ):
            return None
        if not self._has_comb():
            return None
        return "tff" if upper > lower else "bff"

    def some(self) -> bool:
        """Return whether some of the frames are interlaced."""
        beyond = abs(self._counts["tff"] - self._counts["bff"])
        is_some = beyond >= _SOME and beyond > _SOME_SHARE * sum(self._counts.values())
        return is_some and self._has_comb()


class _Weave:
    """Fit of a frame's own lines, where something moves, against that of the other field nearest in time.

    Both are the same of two moments. Of one moment, the frame's own lines fit better.
    """

    def __init__(self) -> None:
        self._last: deque[tuple[VideoFrame, str]] = deque(maxlen=3)

    def comb(self, frame: VideoFrame, field_order: str) -> float | None:
        """Take the next frame, and return the misfit of lines in the one before over that of the fields beside.

        None unless that frame seems to have two fields.

        Args:
            frame: Frame of planes.
            field_order: Order of its fields, as they seem.
        """
        self._last.append((frame, field_order))
        if len(self._last) < 3 or self._last[1][1] not in ("tff", "bff"):
            return None
        order = self._last[1][1]
        before, shown, after = (_lines(beside) for beside, _ in self._last)
        upper, lower, lines = shown[:-2], shown[2:], shown[1:-1]
        fields = after[1:-1].copy()
        first = 0 if order == "tff" else 1  # in TFF odd lines of the frame before are next to even ones
        fields[first::2] = before[1:-1][first::2]
        moved = (np.abs(lines - before[1:-1]) + np.abs(lines - after[1:-1])) ** 2
        own, beside = (float((moved * np.abs(upper + lower - 2 * other)).sum()) for other in (lines, fields))
        return own / beside if beside else None


def _lines(frame: VideoFrame) -> NDArray[np.float32]:
    """Return the luma of some columns of a frame."""
    plane, is_deep = frame.planes[0], frame.format.components[0].bits > 8
    rows = np.frombuffer(memoryview(plane), "<u2" if is_deep else np.uint8).reshape(plane.height, -1)
    return rows[:, : frame.width : max(1, frame.width // _COLUMNS)].astype(np.float32)


def deinterlace(
    frames: Iterable[VideoFrame], pulldown: FieldOrder | None = None, unmarked: FieldOrder | None = None
) -> Iterator[VideoFrame]:
    """Yield the same number of frames in the same order, with interlaced frames as full pictures.

    Each picture shows the moment of its first field (bwdif, which reads one frame before and one after).
    Frames before the first interlaced one pass unchanged and without delay; later ones are delayed by one
    frame. Time stamps are unchanged.

    Args:
        frames: Frames in display order.
        pulldown: Order of fields, if the second field of a picture may lie in the frame before or after. Pictures
            that no field completes are deinterlaced: those before cuts, and the first one.
        unmarked: Order of fields of frames that are interlaced without a mark; all are deinterlaced.
    """
    graph: Graph | None = None
    first_graph: Graph | None = None
    made_for: tuple[object, ...] = ()
    waiting: deque[VideoFrame] = deque()
    for frame in frames:
        kind = (frame.width, frame.height, frame.format.name)
        # Another size or format needs another filter; what the old one holds comes first.
        if graph is not None and kind != made_for:
            yield from _pull_frames(graph, None, waiting)
            graph = None
        if graph is None:
            # Progressive frames before the first interlaced one pass without delay.
            is_progressive = pulldown is None and unmarked is None and not frame.interlaced_frame
            if is_progressive or min(frame.width, frame.height) < _SMALLEST:
                yield frame
                continue
            steps = [] if pulldown is None else [f"fieldmatch=order={pulldown}"]
            steps += [] if unmarked is None else [f"setfield={unmarked}"]
            graph, made_for = _chain(frame, *steps, _BWDIF), kind
            # No cut tells that the fields of a first frame are of two pictures, so it is looked at for combs.
            if pulldown is not None:
                first_graph = _chain(frame, f"{steps[0]}:combmatch=full", _BWDIF)
        # From then on every frame goes through the filter, which answers one frame later.
        waiting.append(frame)
        finished = _pull_frames(graph, frame, waiting)
        if first_graph is not None:
            first_graph.push(frame)
            if (first := next(_pull(first_graph), None)) is not None:
                first_graph = None
                yield _with_times(first, next(finished))
        yield from finished
    if graph is not None:
        yield from _pull_frames(graph, None, waiting)


def _pull_frames(graph: Graph, frame: VideoFrame | None, waiting: deque[VideoFrame]) -> Iterator[VideoFrame]:
    """Push a frame, or None for the end, and yield the finished frames with their own time stamps."""
    graph.push(frame)
    for finished in _pull(graph):
        # The filter counts in half ticks, to leave room for one picture per field.
        yield _with_times(finished, waiting.popleft())


def _with_times(frame: VideoFrame, original: VideoFrame) -> VideoFrame:
    """Return a frame with the times of another one."""
    frame.pts, frame.time_base, frame.duration = original.pts, original.time_base, original.duration
    return frame


def _pull(graph: Graph) -> Iterator[VideoFrame]:
    """Yield the frames that a graph has ready."""
    while True:
        try:
            finished = graph.pull()
        except (BlockingIOError, av.error.EOFError):
            return
        assert isinstance(finished, VideoFrame)
        yield finished


def _chain(frame: VideoFrame, *steps: str) -> Graph:
    """Return a graph of filters, each given as ``name=arguments``, for frames of this kind."""
    graph = Graph()
    graph.threads = 1
    nodes = [
        graph.add_buffer(
            width=frame.width, height=frame.height, format=frame.format, time_base=frame.time_base
        )
    ]
    for step in steps:
        name, _, arguments = step.partition("=")
        nodes.append(graph.add(name, arguments or None))
    nodes.append(graph.add("buffersink"))
    graph.link_nodes(*nodes)
    graph.configure()
    return graph
