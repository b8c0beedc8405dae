"""FFmpeg's filters over single frames."""

from av.filter import Graph
from av.video.frame import VideoFrame


class Chain:
    """Filter graph, rebuilt when the kind of frames or the steps change."""

    def __init__(self) -> None:
        self._graph: Graph | None = None
        self._made_for: tuple[object, ...] | None = None

    def __call__(self, frame: VideoFrame, steps: tuple[str, ...]) -> VideoFrame:
        """Return the frame after filters, each given as ``name=arguments``."""
        if not steps:
            return frame
        colours = int(frame.colorspace), int(frame.color_range)
        kind = (frame.width, frame.height, frame.format.name, colours, steps)
        if kind != self._made_for:
            self._graph, self._made_for = _build(frame, steps), kind
        assert self._graph is not None
        self._graph.push(frame)
        filtered = self._graph.pull()
        assert isinstance(filtered, VideoFrame)
        return filtered


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
