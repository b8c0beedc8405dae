"""Clips that the scan of a part encoded ahead, kept in the ledger until the spans of the source are known.

Near the ends of a part, and where a prediction was wrong, there is none. Those clips are cut from a decoder
of their own, from the same frames to the same bytes.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from fractions import Fraction
from typing import Any

import numpy as np
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from numpy.typing import NDArray

from reelweave.curate.config import SourceStageConfig
from reelweave.curate.cut.crop import BarMeter, Crop
from reelweave.curate.cut.smart.ahead import SmartAhead, agrees
from reelweave.curate.cut.smart.noted import form_values
from reelweave.curate.cut.smart.packets import SmartPackets
from reelweave.curate.cut.smart.plan import Plan, plan_of
from reelweave.curate.filters import SpanMotion
from reelweave.curate.filters.sample import ReadText
from reelweave.curate.filters.still_edges import StillEdges
from reelweave.curate.frames.frame_times import FrameTimes, timeline
from reelweave.curate.frames.picture import Geometry, Shape, geometry, size_at
from reelweave.curate.frames.probe import Probe
from reelweave.curate.shots.spans import Span
from reelweave.curate.shots.stitch import SampleEmbeddings
from reelweave.curate.source_pass.ahead_clip import AheadClip, shows
from reelweave.curate.source_pass.lookahead import lookahead_of
from reelweave.curate.source_pass.lookahead_encode import LookaheadEncoder, encode_ahead
from reelweave.curate.source_pass.part import Part
from reelweave.curate.source_pass.parts.store import SCAN, PartStore
from reelweave.curate.source_pass.sampling import ClipPictures
from reelweave.curate.source_pass.scan import detector_for, stitch_for
from reelweave.curate.sources.segments import Segment

_CLIP, _INDEX = "ahead", "ahead-index"

_MOST_BEHIND_S = 15.0
"""Time behind the end of a part for which a clip that crosses it is encoded on."""


class PartAhead:
    """Clips encoded while a part is scanned, by predictions of a detector that sees this part alone.

    Args:
        stack: Stack on which its files are closed.
        header: Probe of the source.
        config: Configuration of the pass.
        stream: Video stream of the source, opened.
        source_bytes: Size of the source.
        part: The part.
        segments: Segments that a list names.
        smart: Notes on the packets that are read for the part, for ``cut.mode=smart``.
        bars: Bars of its frames, for ``cut.crop_bars``; it takes each frame first.

    Attributes:
        size: Size of its clips, by the first frame of the part.
    """

    def __init__(
        self,
        stack: ExitStack,
        header: Probe,
        config: SourceStageConfig,
        stream: VideoStream,
        source_bytes: int,
        part: Part,
        segments: Sequence[Segment],
        smart: SmartPackets | None,
        bars: BarMeter | None,
    ) -> None:
        fps = header.fps
        # A guess needs no network.
        guesses = "colour" if config.shots.detector == "hybrid" else config.shots.detector
        guessed = config.model_copy(update={"shots": config.shots.model_copy(update={"detector": guesses})})
        self._detector = detector_for(guessed, fps, segments)
        self._samples = SampleEmbeddings(stitch_for(config, segments), fps)
        self._lookahead = lookahead_of(
            self._detector, self._samples, header, config, segments, within=part.number > 0
        )
        self._encoder: LookaheadEncoder | None = None
        self.size: Geometry | None = None
        self._stream, self._smart, self._bars = stream, smart, bars
        self._stack, self._found, self._config = stack, header, config
        self._time_base, self._source_bytes = stream.time_base or Fraction(1, 1000), source_bytes
        self._begin_pts = stream.start_time  # where it is not the first frame's, no clip is used
        self._pushed, self._most_behind = 0, _MOST_BEHIND_S * fps

    def push(self, frame: VideoFrame, picture: NDArray[np.uint8], shape: Shape) -> None:
        """Take the next frame, its small picture and its shape."""
        # Without clips ahead only packets are noted, and dropped.
        if self._lookahead is None:
            if self._smart is not None:
                self._smart.drop_all()
            return
        # The first frame tells the size of all clips of the part.
        if self._encoder is None:
            bits = self._config.cut.max_bits
            self.size = size_at([shape], 0, geometry(frame, None, bits), bits)
            smart = self._smart
            encoder = encode_ahead(
                self._lookahead,
                self.size,
                self._found,
                self._time_base,
                self._source_bytes,
                self._config,
                self._begin_pts,
                None if smart is None else SmartAhead(self._stream, smart, self.size, self._config.cut),
                self._bars,
            )
            self._encoder = self._stack.enter_context(encoder)
        self._detector.push(picture)
        self._samples.push(self._pushed, picture)
        self._encoder.push(frame)
        self._pushed += 1

    def has_passed(self, frame: int) -> bool:
        """Return whether all clips that begin before a frame are encoded, as far as they will be."""
        encoder = self._encoder
        return encoder is None or encoder.has_passed(frame) or self._pushed > frame + self._most_behind

    def clips(self, pts: Sequence[int], durations: Sequence[int], ended: bool) -> Iterator[AheadClip]:
        """Return the clips that the frames complete.

        Args:
            pts: Stamps of the frames of the part, in ticks.
            durations: Their durations.
            ended: True if the source ends with them.
        """
        if self._encoder is None:
            return iter(())
        if ended and pts:
            self._detector.finish()
            self._encoder.finish(self._line(pts, durations))
        return self._encoder.take_clips()

    def _line(self, pts: Sequence[int], durations: Sequence[int]) -> FrameTimes:
        """Return the times of the last part of a source, as those of the whole will be."""
        last, rate, max_fps = durations[-1] or None, self._found.rate, self._config.cut.max_fps
        line = timeline(list(pts), self._time_base, last, rate, (), max_fps, durations=durations)
        last_s = line.times_s[-1] - line.times_s[-2]
        times_s = (np.array(pts, np.float64) - (self._begin_pts or 0)) * float(self._time_base)
        fps = self._config.cut.clip_fps
        return replace(line, times_s=np.append(times_s, times_s[-1] + last_s), fps=fps)


def keep_clips(store: PartStore, part_index: int, size: Geometry | None, clips: Iterable[AheadClip]) -> None:
    """Write the clips of a part to the ledger, one at a time, and their size."""
    index = {"size": _json(size and size.to_json())}
    for clip in clips:
        # What joining the parts needs of a clip: its bytes, samples and motion.
        motion = clip.collected.motion
        arrays: dict[str, NDArray[Any]] = {
            "data": np.frombuffer(clip.data, np.uint8),
            "pictures": clip.collected.pictures,
            "times_s": clip.collected.times_s,
            "fingerprint": clip.collected.fingerprint,
            "vectors_missing": np.array([motion.vectors_missing]),
        }
        for name, values in (("motion", motion.motion), ("motion_local", motion.motion_local)):
            if values is not None:
                arrays[name] = values
        if (text := clip.collected.text) is not None:
            arrays |= {"read_pictures": np.array([text.pictures]), "text_lines": text.lines}
        if (edges := clip.collected.edges) is not None:
            arrays |= {"edge_pictures": np.array([edges.pictures]), "edge_cells": edges.cells}
        store.put(_CLIP, part_index, arrays, clip.first)
        # The index of the part, written last, says which clips there are.
        rate = np.array([clip.rate.numerator, clip.rate.denominator])
        index |= {
            f"{clip.first}.shown": clip.shown,
            f"{clip.first}.times_s": clip.times_s,
            f"{clip.first}.rate": rate,
            f"{clip.first}.plan": _json(None if clip.plan is None else asdict(clip.plan)),
            f"{clip.first}.crop": _json(None if clip.crop is None else asdict(clip.crop)),
        }
    store.put(_INDEX, part_index, index)


class PartClips:
    """Clips that begin in one part and were encoded ahead, as `reelweave.curate.cut.EncodedSpans`.

    Args:
        store: Place of what is known of the source.
        part_index: Index of the part. The one before it also encoded the clip across, or at, its end.
        firsts: First frame of each part in the source.
        line: Timeline of the source.
        size: Size of its clips.
        smart: Notes on all packets of the source for ``cut.mode=smart``, else None.
        packets: Number of the first packet of each part.
        bars: Bars of all frames of the source for ``cut.crop_bars``, else None.
    """

    def __init__(
        self,
        store: PartStore,
        part_index: int,
        firsts: Sequence[int],
        line: FrameTimes,
        size: Geometry,
        smart: SmartPackets | None = None,
        packets: Sequence[int] = (),
        bars: BarMeter | None = None,
    ) -> None:
        self._bars, self._crops = bars, dict[int, Crop | None]()
        self._store, self._line, self._size, self._smart = store, line, size, smart
        self._plans: dict[int, Plan | None] = {}
        self._places: dict[int, tuple[int, int]] = {}  # of clips by first frame: part and first frame in it
        self._index: dict[int, tuple[NDArray[Any], NDArray[Any], Fraction]] = {}
        for part in {max(0, part_index - 1), part_index}:
            index = store.arrays(_INDEX, part)
            if not np.array_equal(index["size"], _json(size.to_json())):
                continue
            if smart is not None and not self._has_form(part):
                continue
            for name in index:
                if name.endswith(".shown"):
                    local_first = int(name.removesuffix(".shown"))
                    first = firsts[part] + local_first
                    self._places[first] = part, local_first
                    rate = Fraction(*index[f"{local_first}.rate"].tolist())
                    self._index[first] = index[name], index[f"{local_first}.times_s"], rate
                    crop = json.loads(index[f"{local_first}.crop"].tobytes())
                    self._crops[first] = None if crop is None else Crop(**crop)
                    if smart is not None:
                        plan = json.loads(index[f"{local_first}.plan"].tobytes())
                        self._plans[first] = None if plan is None else plan_of(plan).moved(packets[part])

    def __contains__(self, span: object) -> bool:
        """Return whether exactly this span was encoded, frame for frame."""
        if not isinstance(span, Span) or span.first not in self._index:
            return False
        shown, times_s, rate = self._index[span.first]
        line = self._line
        # Samples weigh frames by times that are the same to the last bit.
        same_timing = rate == line.clip_rate(span.first, span.last) and np.array_equal(
            times_s, line.times_s[span.first : span.last + 1]
        )
        if not same_timing or not shows(shown, span, line):
            return False
        crop = self._crops[span.first]
        if self._bars is not None and self._bars.crop(span.first, span.last, self._size) != crop:
            return False
        if self._smart is None or crop is not None:  # nothing is copied of what is cropped
            return True
        return agrees(self._smart, self._plans[span.first], span, line, self._size)

    def get(self, span: Span, /) -> bytes | None:
        """Return a span as an MP4 file of pictures only, index last, or None when it was not encoded."""
        return self._clip(span)["data"].tobytes() if span in self else None

    def take_pictures(self, span: Span) -> ClipPictures:
        """Return the samples that were collected from a span that was encoded."""
        arrays = self._clip(span)
        motion = SpanMotion(
            arrays.get("motion"), arrays.get("motion_local"), bool(arrays["vectors_missing"][0])
        )
        text = None
        if "text_lines" in arrays:
            text = ReadText(int(arrays["read_pictures"][0]), arrays["text_lines"])
        edges = None
        if "edge_cells" in arrays:
            edges = StillEdges(int(arrays["edge_pictures"][0]), arrays["edge_cells"])
        return ClipPictures(arrays["pictures"], arrays["times_s"], motion, arrays["fingerprint"], text, edges)

    def _has_form(self, part: int) -> bool:
        """Return whether a part saw the form that the source has by its first frame."""
        assert self._smart is not None
        assert self._smart.form is not None
        note = self._store.note(SCAN, part)
        return note is not None and note.found["form"] == form_values(self._smart.form)

    def _clip(self, span: Span) -> dict[str, NDArray[Any]]:
        return self._store.arrays(_CLIP, *self._places[span.first])


def _json(value: object) -> NDArray[Any]:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)
