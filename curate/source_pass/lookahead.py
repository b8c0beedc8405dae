"""Prediction of the clip that a frame belongs to, before its source is decoded to the end.

Detector, stitching and the rules of spans need only a few seconds after a frame. A prediction that lags
behind by as much is nearly always right. A right one saves work; a wrong one changes no result.
"""

import math
from array import array
from collections.abc import Sequence

from av.video.format import VideoFormat

from reelweave.curate.config import SourceStageConfig
from reelweave.curate.cut.smart.plan import MOST_BEFORE, MOST_WAITING
from reelweave.curate.filters.vectors import VECTOR_CODECS
from reelweave.curate.frames.probe import Probe
from reelweave.curate.shots import LookaheadDetector, ShotDetector
from reelweave.curate.shots.spans import long_enough, longest_hold_s, part_end
from reelweave.curate.shots.stitch import SampleEmbeddings, stitch
from reelweave.curate.source_pass.listed_lookahead import ListedLookahead, listed_lookahead
from reelweave.curate.sources.segments import Segment

TURN = 16
"""Frames that are taken from the window at a time."""
_VECTOR_BYTES = 0.7  # per pixel: 40 for each vector of a block of 8x8, two in B pictures at times


class Lookahead:
    """Predictor of the clips of one source, frame by frame.

    Args:
        detector: Detector that receives the same source.
        samples: Stitching samples of the same source.
        config: Configuration of shots, stitching and spans.
        fps: Frame rate of the source.
        within: True if frames begin somewhere in a shot, of which nothing is predicted: nobody knows where its parts
            begin.

    Attributes:
        lag: Number of frames by which predicted frames must be behind decoded ones.
    """

    def __init__(
        self,
        detector: LookaheadDetector,
        samples: SampleEmbeddings,
        config: SourceStageConfig,
        fps: float,
        *,
        within: bool = False,
    ) -> None:
        self._within = within
        self._detector, self._samples, self._config = detector, samples, config
        shortest = math.ceil(config.spans.min_clip_s * fps) + 1
        self.lag = detector.judged_after + max(detector.settled_after, shortest)
        self._judged = 0
        self._shot = self._part = 0  # first frames
        self._firm = 0  # first frame of the last part that begins there, wherever the shot ends
        self._end: int | None = None  # end of the shot, where it is known
        self._fading = False  # whether that end is only a fade that has begun
        self._next: int | None = None  # first frame of the next shot, where it is known
        self._part_end: int | None = None
        self._longest_s = longest_hold_s(config.spans)
        self._gaps: list[int] = []  # frames displayed for too long to be in a clip
        self._timed = 0  # number of frames whose display time is known

    @property
    def known_end(self) -> int | None:
        """End of the clip of the last frame, where it is known by now."""
        return self._part_end

    def is_certain(self, frame: int, times_s: "array[float]") -> bool:
        """Return whether the clip of a frame is known, but for cuts that stitching may remove later.

        The clip depends on the end of its shot up to ``min_clip_s`` after the frame. While that is not known
        `clip_of` guesses, and a wrong guess costs a clip.

        Args:
            frame: A decoded frame, not the last.
            times_s: Display time of each decoded frame.
        """
        return long_enough(times_s[self._detector.settled] - times_s[frame + 1], self._config.spans)

    def clip_of(self, frame: int, times_s: "array[float]", *, ended: bool = False) -> int | None:
        """Return the first frame of the clip that a frame belongs to, or None when it belongs to none.

        Args:
            frame: One more than at the last call.
            times_s: Display time of each decoded frame; once ended, also the end of the last one.
            ended: True if the detector has finished.
        """
        if self._finds_gap(times_s) or self._detector.judged > self._judged:
            self._judged = self._detector.judged
            self._look(frame, times_s, ended)
        if self._end is not None and frame >= self._end:
            if self._next is None or frame < self._next:
                return None
            self._shot = self._part = self._firm = self._next
            self._end, self._within = None, False
            self._look(frame, times_s, ended)
            if self._end is not None and frame >= self._end:  # one gap after the other
                return None
        elif self._part_end is not None and frame >= self._part_end:
            self._next_part(times_s)
        if self._within:
            return None
        # What resembles the beginning of a fade is often a dark moment.
        end = None if self._fading and self._part_end == self._end else self._part_end
        reach = self._judged if end is None else end
        return self._part if long_enough(times_s[reach] - times_s[self._part], self._config.spans) else None

    def _finds_gap(self, times_s: "array[float]") -> bool:
        """Look for gaps among the frames decoded since the last call; return whether there are any."""
        new_gaps = [
            frame
            for frame in range(self._timed, len(times_s) - 1)
            if times_s[frame + 1] - times_s[frame] > self._longest_s
        ]
        self._timed = len(times_s) - 1
        self._gaps = [gap for gap in self._gaps if gap >= self._shot] + new_gaps
        return bool(new_gaps)

    def _look(self, frame: int, times_s: "array[float]", ended: bool) -> None:
        """Update the end of the shot and the beginning of the next one, where they are known by now."""
        known_transitions = self._detector.known_transitions(self._shot)
        stitched = stitch(
            known_transitions.transitions, self._samples, self._judged, self._config.stitch, first=self._shot
        )
        fade = None if known_transitions.fading_since is None or ended else known_transitions.fading_since + 1
        before = self._end
        edges = [(transition.start_frame + 1, transition.end_frame) for transition in stitched]
        edges += [(gap, gap + 1) for gap in self._gaps if gap >= self._shot]
        ends = [end for end, _ in edges] + ([] if fade is None else [fade])
        # An end that was passed stays, unless it came to nothing; one that appears behind us comes too late.
        if self._end is None or frame < self._end or self._end not in ends:
            self._end = min((end for end in ends if end >= frame), default=self._judged if ended else None)
            self._fading = self._end is not None and self._end == fade
        self._next = next((begin for end, begin in edges if end == self._end), None)
        if before not in (None, self._end):
            self._part = self._firm  # an end that was no end may have moved the parts before it
        self._split(times_s)
        while self._part_end is not None and self._part_end < frame:
            self._next_part(times_s)

    def _next_part(self, times_s: "array[float]") -> None:
        assert self._part_end is not None
        if self._end is None:
            self._firm = self._part_end
        self._part = self._part_end
        self._split(times_s)

    def _split(self, times_s: "array[float]") -> None:
        spans = self._config.spans
        if self._end is not None:
            self._part_end = part_end(times_s, self._part, max(self._end, self._part + 1), spans)
        elif times_s[self._judged] - times_s[self._part] > spans.max_clip_s + spans.min_clip_s:
            self._part_end = part_end(times_s, self._part, self._judged, spans)
        else:
            self._part_end = None


def lookahead_of(
    detector: ShotDetector,
    samples: SampleEmbeddings,
    header: Probe,
    config: SourceStageConfig,
    segments: Sequence[Segment] = (),
    *,
    within: bool = False,
) -> Lookahead | ListedLookahead | None:
    """Return the lookahead of a source, or None where its clips cannot be encoded ahead within ``cut.ahead_mb``.

    Args:
        detector: Detector that receives the same source.
        samples: Stitching samples of the same source.
        header: Probe of the source.
        config: Configuration.
        segments: Segments that a list names.
        within: See `Lookahead`.
    """
    cut, spans = config.cut, config.spans
    lookahead: Lookahead | ListedLookahead | None = None
    if not header.rate or not header.pixel_format or cut.mode in ("copy", "auto"):
        return None
    if segments:
        lookahead = listed_lookahead(segments, spans, header.fps, within=within)
    elif isinstance(detector, LookaheadDetector) and spans.crop_s == 0 and spans.long_shots != "equal":
        lookahead = Lookahead(detector, samples, config, header.fps, within=within)
    if lookahead is None:
        return None
    min_frame_bytes = min(decoded_bytes(header), finished_bytes(header, config))
    waiting = lookahead.lag + TURN
    if cut.mode == "smart":
        waiting += MOST_WAITING + (MOST_BEFORE if header.codec == "hevc" else 0)
    return lookahead if waiting * min_frame_bytes <= cut.ahead_mb * 10**6 else None


def finished_bytes(header: Probe, config: SourceStageConfig) -> float:
    """Return the bytes of a frame that waits in the window finished; it has lost its vectors then."""
    if header.codec in VECTOR_CODECS:
        return math.inf
    pixels = header.width * header.height * max(1.0, float(header.pixel_aspect or 1))
    return pixels * (1.5 if config.cut.max_bits == 8 else 3.0)


def decoded_bytes(header: Probe) -> float:
    """Return the bytes of a frame that waits in the window as decoded."""
    bits = VideoFormat(header.pixel_format, header.width, header.height).padded_bits_per_pixel
    vectors = _VECTOR_BYTES if header.codec in VECTOR_CODECS else 0
    return header.width * header.height * (bits / 8 + vectors)
