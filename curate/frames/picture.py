"""Conversion of frames to the format of clips: upright, square pixels, even size, 8-bit 4:2:0, SDR."""

from dataclasses import dataclass
from fractions import Fraction

from av.filter import Graph
from av.video.frame import VideoFrame

from curate.frames import hdr, tone_map
from curate.frames.rounding import Rounding, is_deep
from curate.frames.tone_map import tone_mapper
from loader.dataset.tars.orientation import Orientation, orientation_of

_TURNS = {
    Orientation(): (),
    Orientation(mirrored=True): ("hflip",),
    Orientation(flipped=True): ("vflip",),
    Orientation(mirrored=True, flipped=True): ("hflip", "vflip"),
    Orientation(transposed=True): ("transpose=cclock_flip",),
    Orientation(transposed=True, mirrored=True): ("transpose=clock",),
    Orientation(transposed=True, flipped=True): ("transpose=cclock",),
    Orientation(transposed=True, mirrored=True, flipped=True): ("transpose=clock_flip",),
}
_FULL_RANGE = 2


@dataclass(frozen=True)
class Geometry:
    """Size of a finished picture in pixels: upright, square pixels, even."""

    width: int
    height: int


def geometry(frame: VideoFrame, pixel_aspect: Fraction | None) -> Geometry:
    """Return the size of a clip made from a decoded frame.

    Args:
        frame: Decoded frame.
        pixel_aspect: Width of a stored pixel over its height; None or 0 when unknown, taken as square.
    """
    width, height = frame.width, frame.height
    if pixel_aspect:
        width = round(width * pixel_aspect)
    if orientation_of(frame).transposed:
        width, height = height, width
    return Geometry(max(2, width - width % 2), max(2, height - height % 2))


class Finisher:
    """Converter from decoded frames to finished pictures of one size.

    Frames that are finished already pass unchanged, without another loss. Where a source changes its size
    midway, pictures are scaled to the first size.
    """

    def __init__(self, target: Geometry) -> None:
        self._target = target
        self._deepened, self._shaped, self._rounding = _Chain(), _Chain(), Rounding()
        self._turn, self._rotation = Orientation(), 0

    def finish(self, frame: VideoFrame) -> VideoFrame:
        """Return the finished picture of a decoded frame; time stamps are left to the caller."""
        # A frame whose side data was read is freed only by the garbage collector.
        if frame.key_frame or frame.rotation != self._rotation:
            self._turn, self._rotation = orientation_of(frame), frame.rotation
        turn = self._turn
        if frame.color_trc in (hdr.PQ, hdr.HLG):
            deep = self._deepened(frame, _to_mapped_format(frame))
            mapped = tone_mapper(int(frame.color_trc))(deep)
            return self._shaped(mapped, self._to_shape(mapped, turn))
        # swscale would take three times as long.
        if not is_deep(frame) or frame.color_range == _FULL_RANGE:
            return self._shaped(frame, self._to_shape(frame, turn))
        narrowed = _tagged(self._rounding(frame), frame)
        return self._shaped(narrowed, self._to_shape(narrowed, turn))

    def _to_shape(self, frame: VideoFrame, turn: Orientation) -> tuple[str, ...]:
        """Return the filters that convert a frame's range, format, orientation and size."""
        full, turns = frame.color_range == _FULL_RANGE, _TURNS[turn]
        upright = (frame.height, frame.width) if turn.transposed else (frame.width, frame.height)
        lost = (upright[0] - self._target.width, upright[1] - self._target.height)
        # 4:2:0 cannot express an odd row or column; dropping it leaves the others unchanged.
        cropped = max(lost) <= 1 and min(lost) >= 0
        size = "" if cropped else f"{self._target.width}:{self._target.height}:"
        steps = []
        if full or frame.format.name != "yuv420p":
            # RGB has no matrix of its own; without one, players guess by the size of the picture.
            matrix = ":out_color_matrix=bt709" if _is_rgb(frame) else ""
            if size and not turns:  # one scale instead of two: faster, and chroma is rounded once
                limited = ":out_range=limited" if full else ""
                return (f"scale={size}flags=area{limited}{matrix}", "format=yuv420p", "setsar=1")
            steps += ["scale=out_range=limited"] if full and not matrix else []
            steps += [f"scale=flags=area{matrix}", "format=yuv420p"]
        steps += turns
        if size:
            steps += [f"scale={size}flags=area", "setsar=1"]
        elif max(lost):
            steps.append(f"crop={self._target.width}:{self._target.height}:0:0")
        return tuple(steps)


class _Chain:
    """Filter graph, rebuilt when the kind of frames changes."""

    def __init__(self) -> None:
        self._graph: Graph | None = None
        self._made_for: tuple[object, ...] | None = None

    def __call__(self, frame: VideoFrame, steps: tuple[str, ...]) -> VideoFrame:
        if not steps:
            return frame
        colours = int(frame.colorspace), int(frame.color_range)
        kind = (frame.width, frame.height, frame.format.name, colours, steps)
        if kind != self._made_for:
            self._graph, self._made_for = _build(frame, steps), kind
        assert self._graph is not None
        self._graph.push(frame)
        finished = self._graph.pull()
        assert isinstance(finished, VideoFrame)
        return finished


def _to_mapped_format(frame: VideoFrame) -> tuple[str, ...]:
    """Return the filters that convert an HDR frame to the input format of tone mapping."""
    if frame.format.name == tone_map.FORMAT and frame.color_range != _FULL_RANGE:
        return ()
    return (
        "scale=in_color_matrix=bt2020:in_range=auto:out_color_matrix=bt2020:out_range=limited:flags=area",
        f"format={tone_map.FORMAT}",
    )


def _is_rgb(frame: VideoFrame) -> bool:
    return frame.format.is_rgb or frame.format.has_palette


def _tagged(finished: VideoFrame, like: VideoFrame) -> VideoFrame:
    finished.colorspace, finished.color_range = like.colorspace, like.color_range
    finished.color_primaries, finished.color_trc = like.color_primaries, like.color_trc
    return finished


def _build(frame: VideoFrame, steps: tuple[str, ...]) -> Graph:
    graph = Graph()
    graph.threads = 1  # sources run side by side instead
    # swscale converts frames of another matrix than the declared one, and drops their tag.
    declared = (
        f"video_size={frame.width}x{frame.height}:pix_fmt={frame.format.name}:time_base={frame.time_base}"
        f":colorspace={int(frame.colorspace)}:range={int(frame.color_range)}"
    )
    nodes = [graph.add("buffer", declared)]
    for step in steps:
        name, _, arguments = step.partition("=")
        nodes.append(graph.add(name, arguments or None))
    nodes.append(graph.add("buffersink"))
    graph.link_nodes(*nodes)
    graph.configure()
    return graph
