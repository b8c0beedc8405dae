"""Joining of what the parts of a long source saw: the same timeline, shots and spans as of one whole decode.

Shots, stitching and statistics run over the small pictures of all parts in turn, so that nothing hangs on where parts
meet. Neighbouring parts must have decoded the first frames of the later one to the same pictures.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from reelweave.curate.config import SourceStageConfig
from reelweave.curate.cut.crop import BarMeter, BarNotes
from reelweave.curate.cut.smart.noted import PacketNotes, first_packets, join_notes
from reelweave.curate.cut.smart.packets import SmartPackets
from reelweave.curate.frames.budget import check_pixels
from reelweave.curate.frames.clocks.sound_stamps import SoundStamps
from reelweave.curate.frames.container.edit_list import count_edits, kept_lead, misread_step
from reelweave.curate.frames.container.further_film import unread_entries, unread_from, unread_sound
from reelweave.curate.frames.container.immersive import immersive
from reelweave.curate.frames.container.stream_choice import SoundChoice, choose_sound, left_out
from reelweave.curate.frames.frame_times import FrameTimes
from reelweave.curate.frames.picture import Geometry, geometry, oblique
from reelweave.curate.frames.probe import Probe, probe
from reelweave.curate.frames.sound_clock import SoundClock
from reelweave.curate.frames.source import SourceError, open_video
from reelweave.curate.frames.telecine import FieldDifferences, Pulldown
from reelweave.curate.ledger.records import Record
from reelweave.curate.shots.boundaries import candidates_of, name_boundaries
from reelweave.curate.shots.listed import listed_spans
from reelweave.curate.shots.spans import Span, cut_off_span, further_span, left_out_span, spans, unread_span
from reelweave.curate.shots.stitch import SampleEmbeddings
from reelweave.curate.source_pass.cut_source import check_wanted, tags_of
from reelweave.curate.source_pass.decoded import Decoded
from reelweave.curate.source_pass.part import Part
from reelweave.curate.source_pass.parts.scan import CHANGES, PartSignals
from reelweave.curate.source_pass.parts.store import SCAN, Arrays, PartStore
from reelweave.curate.source_pass.sampling import FrameStats
from reelweave.curate.source_pass.scan import (
    check_edits,
    check_order,
    detector_for,
    ended_by,
    shots,
    stitch_for,
)
from reelweave.curate.source_pass.source_file import sha256_of
from reelweave.curate.sources.segments import Segment

JOIN = "join"

_MOST_REPEATED_S = 10.0  # sound that both of two neighbouring parts may read


@dataclass(frozen=True)
class Joined:
    """Joined scans of all parts of a source.

    Attributes:
        timeline: Display times, of a clock that needed no repair.
        spans: Spans of the source.
        size: Size of clips.
        stats: Statistics of every frame.
        source_bytes: Size of the source.
        sha256: Digest of its bytes.
        codec: Name of its decoder.
        tags: Text that the container holds, by tag.
        begin_pts: Stamp of its first frame in ticks.
        firsts: First frame of each part.
        packets: Number of the first packet of each part, for ``cut.mode=smart``.
        notes: Notes on all packets for ``cut.mode=smart``, or None.
        smart: The same notes, as a cut reads them.
        bars: Bars of all frames for ``cut.crop_bars``, or None.
        remark: Words on its streams and the choice among them; sources of which anything else is to be said stay whole.
    """

    timeline: FrameTimes
    spans: tuple[Span, ...]
    size: Geometry
    stats: FrameStats
    source_bytes: int
    sha256: str
    codec: str
    tags: dict[str, str]
    begin_pts: int
    firsts: tuple[int, ...]
    packets: tuple[int, ...] = ()
    notes: PacketNotes | None = None
    smart: SmartPackets | None = None
    remark: str = ""
    bars: BarMeter | None = None

    def with_smart(self, file: BinaryIO, max_bits: int) -> "Joined":
        """Return it with what smart cuts read of its notes, where there are any."""
        if self.notes is None:
            return self
        file.seek(0)
        with open_video(file) as (_, stream):
            return replace(self, smart=SmartPackets.of_notes(stream, self.notes, max_bits))

    @property
    def sound_clock(self) -> SoundClock | None:
        """None: sources whose sound needs a repaired clock stay whole."""
        return None

    def span_indices(self, part: Part, records: Sequence[Record]) -> list[int]:
        """Return the places of the spans to cut that begin in a part."""
        ends = [*self.firsts[1:], self.timeline.frames]
        first, end = self.firsts[part.number], ends[part.number]
        return [
            index
            for index, (span, record) in enumerate(zip(self.spans, records, strict=True))
            if record.state == "kept" and first <= span.first < end
        ]

    def values(self) -> dict[str, Any]:
        """Return all but the arrays as JSON values."""
        return {
            "rate": [self.timeline.rate.numerator, self.timeline.rate.denominator],
            "constant": self.timeline.constant,
            "max_fps": self.timeline.max_fps,
            "fps": str(self.timeline.fps or ""),
            "spans": [asdict(span) for span in self.spans],
            "size": self.size.to_json(),
            "source_bytes": self.source_bytes,
            "sha256": self.sha256,
            "codec": self.codec,
            "tags": self.tags,
            "begin_pts": self.begin_pts,
            "firsts": list(self.firsts),
            "packets": list(self.packets),
            "remark": self.remark,
            **({} if self.notes is None else self.notes.values()),
        }

    def arrays(self) -> Arrays:
        luma, steps = (np.array(series, np.float64) for series in self.stats.values)
        notes = {} if self.notes is None else self.notes.arrays()
        bars = {} if self.bars is None else self.bars.notes(self.timeline.frames).arrays()
        return {"times_s": self.timeline.times_s, "luma": luma, "steps": steps, **notes, **bars}

    @classmethod
    def read(cls, store: PartStore) -> "Joined":
        """Return what was joined, from the store."""
        note, arrays = store.note(JOIN), store.arrays(JOIN)
        assert note is not None
        values = note.found
        rates = {"max_fps": values["max_fps"], "fps": Fraction(text) if (text := values.get("fps")) else None}
        return cls(
            FrameTimes(arrays["times_s"], Fraction(*values["rate"]), values["constant"], (), **rates),
            tuple(Span(**span) for span in values["spans"]),
            Geometry.from_json(values["size"]),
            FrameStats.of_values(arrays["luma"].tolist(), arrays["steps"].tolist()),
            values["source_bytes"],
            values["sha256"],
            values["codec"],
            values["tags"],
            values["begin_pts"],
            tuple(values["firsts"]),
            tuple(values["packets"]),
            PacketNotes.read(values, arrays),
            remark=values["remark"],
            bars=None if (bars := BarNotes.read(arrays)) is None else BarMeter.of_notes(bars),
        )


def join(
    file: BinaryIO,
    config: SourceStageConfig,
    count: int,
    store: PartStore,
    sound_s: float,
    segments: Sequence[Segment] = (),
) -> Joined:
    """Join the parts of a source.

    Args:
        file: File of the source.
        config: Configuration of the pass.
        count: Number of parts.
        store: Place of what they saw.
        sound_s: Seconds before a clip from which its sound will be read.
        segments: Segments that a list names.

    Raises:
        SourceError: the source has to stay whole; its words say why.
    """
    limits = config.probe
    check_order(file)
    file.seek(0)
    with open_video(file, max_pixels=limits.max_width * limits.max_height) as (container, stream):
        header = probe(container, stream, limits, file)
        check_edits(container, stream, file)
        choice = choose_sound(container, stream, file) if config.cut.audio == "keep" else SoundChoice()
        if count_edits(container, file, stream.id) > 1 or misread_step(container, file, stream.id):
            raise SourceError("its edit list or its clock may hide some of it")
        sound, remark = choice.stream, left_out(container, choice)
        lacking = "" if sound is None else unread_sound(file, sound.id)
        tick_s = float(sound.time_base or 0) if sound is not None else 0.0
        time_base, start_time = stream.time_base or Fraction(1, 1000), stream.start_time
        source_bytes = container.size
        depth, stored = Geometry(0, 0), ""
        if (frame := next(container.decode(stream), None)) is not None:
            stored = "; ".join(filter(None, (immersive(frame), oblique(frame))))
            if config.cut.max_bits > 8:
                depth = geometry(frame, header.pixel_aspect, config.cut.max_bits)
    joiner = _Joiner(header, config, SoundStamps(tick_s), segments, time_base)
    for part_index in range(count):
        note = store.note(SCAN, part_index)
        assert note is not None
        joiner.take(PartSignals.read(note.found, store.arrays(SCAN, part_index)))
    decoded = Decoded(
        header,
        joiner.pts,
        joiner.durations,
        time_base,
        start_time,
        (),
        joiner.interlaced,
        None,
        None,
        joiner.sound,
    )
    if len(joiner.pts) > limits.max_frames:
        raise SourceError(f"has more than probe.max_frames = {limits.max_frames} frames")
    check_pixels(joiner.pixels, source_bytes, limits)
    if joiner.pulldown() is not None:
        raise SourceError("it is telecined")
    line = decoded.timeline(config)
    if line.shifts_s is not None or line.breaks or line.deinterlace:
        raise SourceError("its clock steps, or it is interlaced")
    if decoded.sound_clock(line) is not None:
        raise SourceError("the clock of its sound steps")
    begin_pts = joiner.pts[0]
    assert begin_pts is not None
    if _lead_s(joiner.sound, line, float(begin_pts * time_base)) > sound_s - 1:
        raise SourceError("its sound lies far ahead of its pictures")
    transitions = shots(joiner.detector, joiner.samples, line, config)
    promised_s = decoded.promised_s(line)
    unread = unread_entries(file) if header.container.startswith("mov,") else None
    behind = [] if unread is None else [left_out_span(line, unread, promised_s)]
    promised_s = promised_s if unread is None else None
    if segments:
        parts = listed_spans(line, transitions, promised_s, config.spans, segments)
    else:
        parts = spans(line, transitions, promised_s, config.spans)
    parts = name_boundaries(parts, transitions, candidates_of(joiner.detector), line)
    parts += behind
    if (begins := unread_from(file)) is not None:  # parts may be of MP4 and Matroska, which is read on
        parts = [*parts, further_span(line, begins)]
    elif (words := ended_by(file, header.container)) and not cut_off_span(line, promised_s):
        parts = [*parts, unread_span(line, words)]
    lead = kept_lead(header.container, float(begin_pts * time_base))
    merged = Joined(
        line,
        tuple(parts),
        replace(depth, width=joiner.size[0], height=joiner.size[1]),
        joiner.stats,
        source_bytes,
        sha256_of(file),
        header.codec,
        tags_of(header),
        begin_pts,
        tuple(joiner.firsts),
        tuple(first_packets(joiner.notes)),
        join_notes(joiner.notes) if joiner.notes else None,
        remark="; ".join(filter(None, [stored, lead, remark, lacking or decoded.uneven_sound(line)])),
        bars=joiner.bars,
    )
    check_wanted([span for span in merged.spans if span.fault is None], merged, config)
    return merged


class _Joiner:
    """Signals of all parts so far, in turn."""

    def __init__(
        self,
        header: Probe,
        config: SourceStageConfig,
        sound: SoundStamps,
        segments: Sequence[Segment],
        time_base: Fraction,
    ) -> None:
        fps = header.fps
        self.bars = BarMeter(time_base, fps) if config.cut.crop_bars else None
        self.detector = detector_for(config, fps, segments)
        self.samples = SampleEmbeddings(stitch_for(config, segments), fps)
        self.stats = FrameStats()
        inverts = config.probe.interlaced == "deinterlace"
        self._fields: FieldDifferences | None = FieldDifferences(header.rate if inverts else None)
        self._next_fields: NDArray[np.float64] | None = None  # of the first frame of the next part
        self.sound = sound
        self.pts: list[int | None] = []
        self.durations: list[int] = []
        self.firsts: list[int] = []
        self.size: tuple[int, ...] = (0, 0)
        self.interlaced = False
        self.pixels = 0
        self.notes: list[PacketNotes] = []
        self._behind: tuple[tuple[int, int, int], ...] | None = None

    def take(self, part: PartSignals) -> None:
        """Take the signals of the next part.

        Raises:
            SourceError: It does not go on where the part before ended.
        """
        if self._behind is None:
            self.size = part.size
        elif part.size != self.size:
            raise SourceError(CHANGES)
        elif self._behind != part.begin[: len(self._behind)]:
            raise SourceError("its parts decode otherwise than the whole")
        self._behind = part.behind
        self.firsts.append(len(self.pts))
        for picture in part.pictures():
            self.detector.push(picture)
            self.samples.push(len(self.pts), picture)
            self.stats.push(picture)
            self.pts.append(int(part.pts[len(self.pts) - self.firsts[-1]]))
        if self.bars is not None and part.bars is not None:
            self.bars.join(part.bars, part.pts.tolist())
        self.durations += part.durations.tolist()
        self.interlaced |= part.interlaced
        self.pixels += part.pixels
        if part.notes is not None:
            self.notes.append(part.notes)
        self._match(part)
        self._hear(part)

    def pulldown(self) -> Pulldown | None:
        """Return the pulldown of the source, or None without one."""
        return None if self._fields is None else self._fields.pulldown()

    def _match(self, part: PartSignals) -> None:
        """Add the differences of fields, the first of which the part before tells."""
        if not len(part.fields):  # a part that shows no pulldown, or cannot
            self._fields = None
        if self._fields is None:
            return
        differences = part.fields[: len(part.pts)].copy()
        if self._next_fields is not None:
            differences[:1] = self._next_fields
        self._fields.extend(differences)
        self._next_fields = part.fields[len(part.pts) :]

    def _hear(self, part: PartSignals) -> None:
        """Add the sound that the parts before did not read."""
        pts = part.sound[:, 0]
        if (np.diff(pts) <= 0).any():
            raise SourceError("the stamps of its sound do not rise")
        last_pts = self.sound.pts[-1] if len(self.sound.pts) else None
        new = part.sound if last_pts is None else part.sound[pts > last_pts]
        if (
            last_pts is not None
            and len(new) < len(pts)
            and (last_pts - int(pts[0])) * self.sound.tick_s > _MOST_REPEATED_S
        ):
            raise SourceError("the stamps of its sound do not rise")
        for stamp, duration, before in new.tolist():
            self.sound.pts.append(stamp)
            self.sound.durations.append(duration)
            self.sound.pictures_before.append(self.sound.pictures + before)
        self.sound.pictures += part.packets


def _lead_s(sound: SoundStamps, line: FrameTimes, begin_s: float) -> float:
    """Return the time by which sound lies ahead of the pictures beside it in the file, at most."""
    if not len(sound.pts):
        return 0.0
    stamps = np.array(sound.pts, np.float64) + np.array(sound.durations, np.float64)
    frames: NDArray[np.intp] = np.minimum(np.array(sound.pictures_before), line.frames)
    return float((stamps * sound.tick_s - begin_s - line.times_s[frames]).max())
