"""Pictures as clips hold them: upright, square pixels, even size, 8-bit 4:2:0, SDR."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from av.filter import Graph
from av.video.frame import VideoFrame

from curate import hdr

_TRANSPOSE = {90: "transpose=clock", 180: "hflip,vflip", 270: "transpose=cclock"}
_FULL_RANGE = 2


@dataclass(frozen=True)
class Geometry:
    """Size of a finished picture in pixels: upright, square pixels, even."""

    width: int
    height: int


def geometry(frame: VideoFrame, pixel_aspect: Fraction | None) -> Geometry:
    """The size a clip made from this decoded frame has.

    Args:
        frame: as decoded.
        pixel_aspect: width of a stored pixel over its height; None or 0 when unknown, taken as square.
    """
    width, height = frame.width, frame.height
    if pixel_aspect:
        width = round(width * pixel_aspect)
    if _clockwise(frame) in (90, 270):
        width, height = height, width
    return Geometry(max(2, width - width % 2), max(2, height - height % 2))


class Finisher:
    """Turns decoded frames into finished pictures of one size.

    Frames that are finished already pass untouched, so that nothing is lost twice. A source that changes
    its size on the way is scaled to the size it began with.
    """

    def __init__(self, target: Geometry, scratch: Path) -> None:
        self._target = target
        self._scratch = scratch
        self._graph: Graph | None = None
        self._made_for: tuple[object, ...] | None = None

    def finish(self, frame: VideoFrame) -> VideoFrame:
        """The finished picture of one decoded frame; time stamps are left to the caller."""
        kind = (
            frame.width,
            frame.height,
            frame.format.name,
            frame.color_trc,
            frame.color_range,
            frame.rotation,
        )
        if kind != self._made_for:
            chain = self._chain(frame)
            self._graph, self._made_for = _build(frame, chain) if chain else None, kind
        if self._graph is None:
            return frame
        self._graph.push(frame)
        finished = self._graph.pull()
        assert isinstance(finished, VideoFrame)
        return finished

    def _chain(self, frame: VideoFrame) -> list[str]:
        steps = []
        if frame.color_trc in (hdr.PQ, hdr.HLG):
            steps += [
                "scale=in_color_matrix=bt2020:in_range=auto:out_range=full",
                "format=gbrp16le",  # of all whole numbers only those of 16 bits are looked up with vector instructions
                f"lut3d=file={self._cube(int(frame.color_trc))}:interp=tetrahedral",
                "scale=in_range=full:out_color_matrix=bt709:out_range=limited",
            ]
        elif frame.color_range == _FULL_RANGE:
            steps.append("scale=out_range=limited")
        if frame.format.name != "yuv420p" or steps:
            steps += ["scale=flags=area", "format=yuv420p"]
        if frame.color_trc in (hdr.PQ, hdr.HLG):
            steps.append("setparams=color_primaries=bt709:color_trc=bt709:colorspace=bt709")
        clockwise = _clockwise(frame)
        if clockwise in _TRANSPOSE:
            steps.append(_TRANSPOSE[clockwise])
        upright = (frame.height, frame.width) if clockwise in (90, 270) else (frame.width, frame.height)
        if upright != (self._target.width, self._target.height):
            lost = (upright[0] - self._target.width, upright[1] - self._target.height)
            if max(lost) <= 1 and min(lost) >= 0:
                # An odd row or column cannot be said in 4:2:0; dropping it keeps the others as they are.
                steps.append(f"crop={self._target.width}:{self._target.height}:0:0")
            else:
                steps.append(f"scale={self._target.width}:{self._target.height}:flags=area")
                steps.append("setsar=1")
        return steps

    def _cube(self, transfer: int) -> str:
        path = self._scratch / f"{transfer}.cube"
        if not path.exists():
            path.write_text(hdr.cube(transfer))
        return str(path)


@contextmanager
def finisher(target: Geometry) -> Iterator[Finisher]:
    """A finisher with its scratch folder, removed on exit."""
    with tempfile.TemporaryDirectory(prefix="reelweave-picture-") as scratch:
        yield Finisher(target, Path(scratch))


def _clockwise(frame: VideoFrame) -> int:
    """Degrees by which a viewer turns the stored picture clockwise, a multiple of 90."""
    return round(-frame.rotation / 90) * 90 % 360


def _build(frame: VideoFrame, chain: list[str]) -> Graph:
    graph = Graph()
    graph.threads = 1  # sources run side by side instead
    source = graph.add_buffer(
        width=frame.width, height=frame.height, format=frame.format, time_base=frame.time_base
    )
    nodes = [source]
    for step in ",".join(chain).split(","):
        name, _, arguments = step.partition("=")
        nodes.append(graph.add(name, arguments or None))
    nodes.append(graph.add("buffersink"))
    graph.link_nodes(*nodes)
    graph.configure()
    return graph
