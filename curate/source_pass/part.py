"""Parts of a long source, which are worked on by tasks of their own to the bytes of one pass over the whole.

A part reaches from the last key frame before its time to that of the next part. Where decoding cannot begin exactly at
a key frame, or anything else is unusual, the source stays whole: its one pass decides all such cases.
"""

from dataclasses import dataclass
from typing import BinaryIO

from reelweave.curate.config import SourceStageConfig
from reelweave.curate.frames.decode_entry import CODECS, CONTAINERS
from reelweave.curate.frames.perceptual import PICTURE
from reelweave.curate.frames.probe import Probe, probe
from reelweave.curate.frames.source import SourceError, open_video
from reelweave.curate.shots import make_detector
from reelweave.curate.sources.inputs import SourceRef

_LEAST_BYTES_PER_S = 4000
"""Bit rate below which no video is as long as two parts: smaller files are not even opened to look."""

PART_FRAMES = 18_000
"""Frames of a part, about: a worker holds the small pictures of them all, 7 KB each, and hands on a copy."""
_HIGHEST_FPS = 120.0  # headers of variable rates promise many times as many


@dataclass(frozen=True)
class Part:
    """Part of a long source, by time.

    Attributes:
        number: Number among the parts, from 0.
        count: Number of parts.
        begin_s: Time after the start of the stream, before which its first key frame lies.
        end_s: Start of the next part; None for the last one.
    """

    number: int
    count: int
    begin_s: float
    end_s: float | None


def may_be_long(source: SourceRef, part_s: float) -> bool:
    """Return whether a source may be as long as two parts, by its size alone; 0 is an unknown size."""
    return source.size == 0 or source.size >= 2 * part_s * _LEAST_BYTES_PER_S


def source_parts(file: BinaryIO, config: SourceStageConfig, part_s: float) -> tuple[Part, ...]:
    """Return the parts of a source, or none where it stays whole.

    Args:
        file: File of the source.
        config: Configuration of the pass.
        part_s: Duration of a part in seconds, at most, about; sources shorter than two stay whole.
    """
    limits = config.probe
    file.seek(0)
    try:
        with open_video(file, max_pixels=limits.max_width * limits.max_height) as (container, stream):
            header = probe(container, stream, limits, file)
    except SourceError:
        return ()
    promised_s = header.promised_s or 0.0
    if promised_s < 2 * part_s or _whole(header, config) is not None:
        return ()
    fps = min(header.fps, _HIGHEST_FPS)
    count = int(max(promised_s / part_s, promised_s * fps / PART_FRAMES))
    edges_s = [index * promised_s / count for index in range(count)]
    ends_s = [*edges_s[1:], None]
    return tuple(Part(index, count, edges_s[index], ends_s[index]) for index in range(count))


def _whole(header: Probe, config: SourceStageConfig) -> str | None:
    """Return why a source stays whole, by its header and the configuration, or None."""
    if header.container not in CONTAINERS:
        return "its container holds no index of key frames, or no exact time stamps"
    if header.codec not in CODECS:
        return "key frames of its codec do not end all references to earlier frames"
    if header.interlaced and config.probe.interlaced == "deinterlace":
        return "deinterlacing looks at the frames around"
    if header.metadata.get("alpha_mode") == "1":
        return "its decoder with alpha is another one"
    if config.cut.mode not in ("encode", "smart"):
        return "packets are copied only in a pass over the whole"
    if make_detector(config.shots, header.fps).analysis_size != PICTURE:
        return "its detector looks at other pictures than those that parts hand on"
    return None
