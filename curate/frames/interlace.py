"""Deinterlacing, one full picture per frame."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Literal

import av
from av.filter import Graph
from av.video.frame import VideoFrame

FieldOrder = Literal["tff", "bff"]
"""Field that is shown first: the upper or the lower one."""

_SMALLEST = 4  # minimum side, pixels; the filter needs some lines above and below


def deinterlaced(frames: Iterable[VideoFrame], pulldown: FieldOrder | None = None) -> Iterator[VideoFrame]:
    """Yield the same number of frames in the same order, with interlaced frames as full pictures.

    Each picture shows the moment of its first field (bwdif, which reads one frame before and one after).
    Frames before the first interlaced one pass unchanged and without delay; later ones are delayed by one
    frame. Time stamps are unchanged.

    Args:
        frames: Frames in display order.
        pulldown: Order of fields, if the second field of a picture may lie in the frame before or after. Pictures
            that no field completes are deinterlaced.
    """
    graph: Graph | None = None
    made_for: tuple[object, ...] = ()
    waiting: deque[VideoFrame] = deque()
    for frame in frames:
        kind = (frame.width, frame.height, frame.format.name)
        if graph is not None and kind != made_for:
            yield from _pulled(graph, None, waiting)
            graph = None
        if graph is None:
            whole = pulldown is None and not frame.interlaced_frame
            if whole or min(frame.width, frame.height) < _SMALLEST:
                yield frame
                continue
            graph, made_for = _build(frame, pulldown), kind
        waiting.append(frame)
        yield from _pulled(graph, frame, waiting)
    if graph is not None:
        yield from _pulled(graph, None, waiting)


def _pulled(graph: Graph, frame: VideoFrame | None, waiting: deque[VideoFrame]) -> Iterator[VideoFrame]:
    """Push a frame, or None for the end, and yield the finished frames with their own time stamps."""
    graph.push(frame)
    while True:
        try:
            finished = graph.pull()
        except (BlockingIOError, av.error.EOFError):
            return
        assert isinstance(finished, VideoFrame)
        original = waiting.popleft()
        # The filter counts in half ticks, to leave room for one picture per field.
        finished.pts, finished.time_base = original.pts, original.time_base
        finished.duration = original.duration
        yield finished


def _build(frame: VideoFrame, pulldown: FieldOrder | None) -> Graph:
    graph = Graph()
    graph.threads = 1
    nodes = [
        graph.add_buffer(
            width=frame.width, height=frame.height, format=frame.format, time_base=frame.time_base
        ),
        *([] if pulldown is None else [graph.add("fieldmatch", f"order={pulldown}")]),
        graph.add("bwdif", "mode=send_frame:parity=auto:deint=interlaced"),
        graph.add("buffersink"),
    ]
    graph.link_nodes(*nodes)
    graph.configure()
    return graph
