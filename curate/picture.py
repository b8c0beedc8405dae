"""Pictures as clips hold them: upright, square pixels, even size, 8-bit 4:2:0, SDR."""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
from av.filter import Graph
from av.video.frame import VideoFrame

from curate import hdr
from loader.dataset.orientation import Turn, turn_of

_TURNS = {
    Turn(): (),
    Turn(mirrored=True): ("hflip",),
    Turn(flipped=True): ("vflip",),
    Turn(mirrored=True, flipped=True): ("hflip", "vflip"),
    Turn(transposed=True): ("transpose=cclock_flip",),
    Turn(transposed=True, mirrored=True): ("transpose=clock",),
    Turn(transposed=True, flipped=True): ("transpose=cclock",),
    Turn(transposed=True, mirrored=True, flipped=True): ("transpose=clock_flip",),
}
_FULL_RANGE = 2
_DEEP = re.compile(r"(yuv4(?:20|22|44)p)(9|10|12|14|16)le")


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
    if turn_of(frame).transposed:
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
        if not _narrows(frame):
            return self._finished(frame)
        finished = self._finished(_narrowed(frame))
        # Set only now: scaling a tagged frame converts it to another matrix and leaves it without tags.
        finished.colorspace, finished.color_range = frame.colorspace, frame.color_range
        finished.color_primaries, finished.color_trc = frame.color_primaries, frame.color_trc
        return finished

    def _finished(self, frame: VideoFrame) -> VideoFrame:
        kind = (
            frame.width,
            frame.height,
            frame.format.name,
            frame.color_trc,
            frame.color_range,
            turn_of(frame),
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
        turn = turn_of(frame)
        steps += _TURNS[turn]
        upright = (frame.height, frame.width) if turn.transposed else (frame.width, frame.height)
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


def _narrows(frame: VideoFrame) -> bool:
    """Whether the samples of a frame are rounded to 8 bits before anything else.

    swscale converts tagged frames to another matrix besides, a level too dark, and takes three times as long.
    """
    hdr_or_full = frame.color_trc in (hdr.PQ, hdr.HLG) or frame.color_range == _FULL_RANGE
    # A display matrix cannot be handed on to another frame.
    return _DEEP.fullmatch(frame.format.name) is not None and not hdr_or_full and turn_of(frame) == Turn()


def _narrowed(frame: VideoFrame) -> VideoFrame:
    """The frame in 8 bits, each sample rounded to the nearest value; without tags."""
    deep = _DEEP.fullmatch(frame.format.name)
    assert deep is not None
    bits = int(deep[2]) - 8
    out = VideoFrame(frame.width, frame.height, deep[1])
    for plane, to in zip(frame.planes, out.planes, strict=True):
        samples = np.frombuffer(memoryview(plane), "<u2").reshape(plane.height, -1)[:, : plane.width]
        # The half is added after half of the shift, so that 16 bits do not overflow.
        rounded = samples >> (bits - 1)
        rounded += 1
        rounded >>= 1
        np.minimum(rounded, 255, out=rounded)
        lines = np.frombuffer(memoryview(to), np.uint8).reshape(to.height, -1)[:, : to.width]
        np.copyto(lines, rounded, casting="unsafe")
    out.pts, out.time_base = frame.pts, frame.time_base
    return out


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
