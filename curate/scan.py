"""One whole decode of a source: its frame times, damage, shot transitions and picture size."""

from dataclasses import dataclass
from typing import BinaryIO

from av.video.frame import VideoFrame

from curate.config import SourceStageConfig
from curate.picture import Geometry, geometry
from curate.probe import Probe, probe
from curate.sampling import FrameStats
from curate.shots import Transition, make_detector
from curate.shots.scale import Scaler
from curate.source import SourceError, open_video
from curate.stitch import Samples, stitch
from curate.timeline import Decoder, Timeline, timeline


@dataclass(frozen=True)
class Scan:
    """What one whole decode of a source tells."""

    probe: Probe
    timeline: Timeline
    transitions: list[Transition]
    size: Geometry
    stats: FrameStats


def scan(file: BinaryIO, config: SourceStageConfig) -> Scan:
    """Decodes a source once, whole.

    Memory is bounded by one frame, the detector's window, the stitching samples and 16 bytes per frame.

    Raises:
        SourceError: nothing can be decoded, or a limit is broken.
    """
    file.seek(0)
    limits = config.probe
    most = limits.max_width * limits.max_height
    with open_video(file, max_pixels=most, rough=True) as (container, stream):
        found = probe(container, stream, limits)
        detector = make_detector(config.shots, float(found.rate or 25))
        scale = Scaler(detector.analysis_size)
        samples = Samples(config.stitch, float(found.rate or 25))
        stats = FrameStats()
        decoder = Decoder(container, stream, limits)
        pts: list[int | None] = []
        first: VideoFrame | None = None
        last_duration: int | None = None
        for frame in decoder.frames():
            first = first or frame
            pts.append(frame.pts)
            last_duration = frame.duration
            small = scale(frame)
            detector.push(small)
            samples.push(len(pts) - 1, small)
            stats.push(small)
        if first is None or stream.time_base is None:
            raise SourceError("no frame could be decoded")
        line = timeline(
            pts,
            stream.time_base,
            last_duration,
            found.rate,
            decoder.damage(),
            config.cut.max_fps,
            deinterlace=decoder.interlaced and limits.interlaced == "deinterlace",
        )
        size = geometry(first, found.pixel_aspect)
        transitions = stitch(detector.finish(), samples, len(pts), config.stitch)
        return Scan(found, line, transitions, size, stats)
