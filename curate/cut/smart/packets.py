"""Packets of a source of H.264, noted in the decode of the whole source: what can be copied, and of which frames."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from reelweave.curate.cut.copy import SourceFormat, form_fault, format_of, has_new_header, is_sound
from reelweave.curate.cut.smart.noted import PacketNotes, form_of_values, form_values
from reelweave.curate.cut.smart.parameter_sets import (
    IDR,
    LAYERED,
    PPS,
    SPS,
    ParameterError,
    SequenceSet,
    fit_record,
    free_id,
    header_sets,
    kind_of,
    picture_set_ids,
    sequence_set,
    units_of,
)
from reelweave.curate.cut.smart.plan import CHANGED, DAMAGED, FrameFacts, Plan, plan
from reelweave.curate.frames.frame_times import FrameTimes
from reelweave.curate.frames.picture import Geometry, shape_at
from reelweave.curate.shots.spans import Span

_BUILD = re.compile(rb"x264 - core (\d+)")
_OLD_BUILD = 34
"""First build of x264 whose streams FFmpeg decodes without looking at the build, which only a film's begin states."""
_LOOKED_AT = 3  # packets in which a build is stated
_MOST_GENERATIONS = 1000
_IDR, _KEY, _WHOLE = 1, 2, 4


@dataclass(frozen=True)
class SetsOf:
    """Parameter sets in force at a packet.

    Attributes:
        sets: Sequence and picture parameter sets.
        encoder_id: Id that they leave for those of an encoder.
        fault: Reason why packets of these sets are not copied, or None.
    """

    sets: tuple[bytes, ...]
    encoder_id: int
    fault: str | None


class SmartPackets:
    """Notes on the packets of a source's pictures in decoding order, and on the packet of each frame.

    Memory is six bytes a packet and eight a frame. The bytes of packets are kept only while `keeps` is true.

    Args:
        stream: Video stream of the source, used until the source is closed.
        fault: Reason why nothing of the source is copied, where one is known before.
        is_begin: False where the packets are those of a later part of the source.

    Attributes:
        kept_bytes: Size of the packets that are kept.
        keeps: True to keep the bytes of packets until they are dropped.
        form: Form of the source, once a frame was decoded.
        prefix: Bytes of the length prefixes of packets; None for start codes.
    """

    def __init__(
        self, stream: VideoStream, *, keeps: bool = False, fault: str | None = None, is_begin: bool = True
    ) -> None:
        self._stream, self.keeps = stream, keeps
        self._looked_at = _LOOKED_AT if is_begin else 0
        header = bytes(stream.codec_context.extradata or b"")
        self._is_h264 = stream.codec_context.codec.canonical_name == "h264"
        self._current: dict[tuple[int, int], bytes] = {}
        self._fault = fault
        self._flags = bytearray()
        self._generations = array("H")
        self._sets: list[tuple[bytes, ...]] = []
        self._known: dict[int, SetsOf] = {}
        self._has_changed = False
        self._frames = array("q")
        self._bytes: dict[int, bytes] = {}
        self._kept_from = 0
        self.kept_bytes = 0
        self.form: SourceFormat | None = None
        self.prefix: int | None = None
        if self._is_h264:
            self._take_header(header)
        self._sets.append(tuple(self._current.values()))

    def take(self, packet: Packet[VideoStream]) -> None:
        """Note a packet, before it is decoded; it is marked with its number."""
        position = len(self._flags)
        packet.opaque = position
        if not self._is_h264 or self._fault:
            self._flags.append(0)
            self._generations.append(0)
            return
        data = bytes(packet)
        try:
            units = units_of(data, self.prefix)
        except ParameterError as error:
            units, self._fault = [], str(error)
        kinds = {kind_of(unit) for unit in units}
        if has_new_header(packet) and not self._has_changed:
            self._has_changed = True
            self._known[len(self._sets)] = SetsOf((), 0, CHANGED)
            self._sets.append(())
        if not self._has_changed and (SPS in kinds or PPS in kinds) and self._take_sets(units):
            if len(self._sets) > _MOST_GENERATIONS:
                self._fault = "its parameter sets change too often"
            else:
                self._sets.append(tuple(self._current.values()))
        if position < self._looked_at and (build := _BUILD.search(data)) and int(build[1]) < _OLD_BUILD:
            self._fault = "made by an early x264"
        if kinds & LAYERED:
            self._fault = "layers, partitions or auxiliary pictures"
        flags = (_IDR if IDR in kinds else 0) | (_KEY if packet.is_keyframe else 0)
        self._flags.append(flags | (_WHOLE if is_sound(packet) else 0))
        self._generations.append(len(self._sets) - 1)
        if self.keeps:
            self._bytes[position] = data
            self.kept_bytes += len(data)

    def show(self, frame: VideoFrame, marks: object) -> None:
        """Note the packet of the next shown frame.

        Args:
            frame: The decoded frame.
            marks: What its packet was marked with.
        """
        if self.form is None:
            self.form = format_of(self._stream, frame)
        self._frames.append(marks if isinstance(marks, int) else -1)

    def notes(self, packets: int, frames: int) -> PacketNotes:
        """Return the notes on the first packets and frames, for those of other parts to be joined to."""
        return PacketNotes(
            np.frombuffer(bytes(self._flags[:packets]), np.uint8),
            np.array(self._frames[:frames], np.int64),
            self._fault,
            self._fault is None and len(self._sets) > 1,
            {} if self.form is None else form_values(self.form),
        )

    @classmethod
    def of_notes(cls, stream: VideoStream, notes: PacketNotes) -> SmartPackets:
        """Return what a scan of the whole notes of a source, by the notes of its parts.

        Args:
            stream: Video stream of the source, opened, whose header alone is read.
            notes: Joined notes of all parts.
        """
        packets = cls(stream)
        packets._fault, packets.form = notes.fault, form_of_values(notes.form)
        packets._flags, packets._generations = (
            bytearray(notes.flags.tobytes()),
            array("H", bytes(2 * len(notes.flags))),
        )
        packets._frames = array("q", notes.positions.tobytes())
        return packets

    def source_fault(self, size: Geometry, deinterlaced: bool = False) -> str | None:
        """Return why no packet of the source is copied, or None.

        Args:
            size: Size of clips from this source.
            deinterlaced: True where its pictures are deinterlaced.
        """
        if self.form is None:
            return "no frame"
        if size.bits > 8:
            return "clips of 10 bits"
        # Sets may lie in the packets alone.
        fault = form_fault(replace(self.form, header=self.form.header or b"\0"), size, deinterlaced)
        return fault or self._fault

    def facts(self, frame: int, shown: int = 1) -> FrameFacts:
        """Return the facts of a frame; see `FrameFacts`."""
        position = self._frames[frame]
        if position < 0:
            return FrameFacts(-1, False, False, False, -1, shown)
        flags, generation = self._flags[position], self._generations[position]
        usable = bool(flags & _WHOLE) and self.sets_of(generation).fault is None
        return FrameFacts(position, bool(flags & _IDR), bool(flags & _KEY), usable, generation, shown)

    def sets_at(self, frame: int) -> SetsOf | None:
        """Return the parameter sets at the packet of a frame, or None where that is not known."""
        position = self._frames[frame]
        return None if position < 0 else self.sets_of(self._generations[position])

    def sets_of(self, generation: int) -> SetsOf:
        """Return the parameter sets of a generation."""
        if generation not in self._known:
            self._known[generation] = _look_at(self._sets[generation])
        return self._known[generation]

    def plan(self, span: Span, line: FrameTimes, size: Geometry) -> Plan:
        """Return the plan of a clip, once the whole source is noted."""
        fault = self.span_fault(span, line, size)
        if fault is not None:
            return Plan((), fault)
        slots = line.clip_frames(span.first, span.last) - span.first
        shown = np.bincount(slots, minlength=span.last - span.first).tolist()
        return plan(self.facts(frame, times) for frame, times in enumerate(shown, span.first))

    def span_fault(self, span: Span, line: FrameTimes, size: Geometry) -> str | None:
        """Return why nothing of a span is copied whatever its packets are, or None."""
        if line.shapes and shape_at(line.shapes, span.first).first > 0:
            return "its pictures change their shape before it"
        return self.begin_fault(span.first, size, line.deinterlace)

    def begin_fault(self, first: int, size: Geometry, deinterlaced: bool = False) -> str | None:
        """Return why nothing can be copied into a clip that begins with a frame, or None; see `source_fault`."""
        if fault := self.source_fault(size, deinterlaced):
            return fault
        sets = self.sets_at(first)
        return DAMAGED if sets is None else sets.fault

    def position_of(self, frame: int) -> int:
        """Return the number of the packet of a frame; -1 where it is not known."""
        return self._frames[frame]

    def data(self, position: int) -> bytes | None:
        """Return the bytes of a packet that is kept."""
        return self._bytes.get(position)

    def drop_before(self, position: int) -> None:
        """Drop the bytes of earlier packets."""
        for earlier in range(self._kept_from, position):
            self.kept_bytes -= len(self._bytes.pop(earlier, b""))
        self._kept_from = max(self._kept_from, position)

    def drop_all(self) -> None:
        """Drop the bytes of all packets, and keep no more."""
        self.keeps = False
        self._bytes.clear()
        self.kept_bytes = 0

    def _take_header(self, header: bytes) -> None:
        try:
            sets, self.prefix = header_sets(header)
        except ParameterError as error:
            self._fault = str(error)
        else:
            self._take_sets(sets)

    def _take_sets(self, units: list[bytes]) -> bool:
        """Take the parameter sets among NAL units; return whether one of them is new."""
        is_new = False
        for unit in units:
            if (kind := kind_of(unit)) not in (SPS, PPS):
                continue
            try:
                set_id = sequence_set(unit).id if kind == SPS else picture_set_ids(unit)[0]
            except ParameterError as error:
                self._fault = str(error)
                return False
            is_new |= self._current.get((kind, set_id)) != unit
            self._current[kind, set_id] = unit
        return is_new


def _look_at(sets: tuple[bytes, ...]) -> SetsOf:
    try:
        sequences = [sequence_set(unit) for unit in sets if kind_of(unit) == SPS]
        encoder_id = free_id(sets)
    except ParameterError as error:
        return SetsOf(sets, 0, str(error))
    return SetsOf(sets, encoder_id or 0, next(_faults(sets, sequences, encoder_id), None))


def _faults(sets: tuple[bytes, ...], sequences: list[SequenceSet], encoder_id: int | None) -> Iterator[str]:
    if not sequences or all(kind_of(unit) == SPS for unit in sets):
        yield "no parameter sets"
    if not fit_record(sets):
        yield "too many parameter sets"
    if encoder_id is None:
        yield "all ids of parameter sets are used"
    for sequence in sequences:
        if sequence.chroma != 1 or max(sequence.luma_bits, sequence.chroma_bits) > 8:
            yield "not 8-bit 4:2:0"
        if not sequence.frames_only:
            yield "field pictures"
        if sequence.lossless:
            yield "lossless coding"
        if sequence.crop_left:  # which FFmpeg cuts off or not by its memory's alignment
            yield "parameter sets that crop at the left"
