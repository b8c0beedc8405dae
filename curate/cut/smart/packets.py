"""Packets of a source, noted in the decode of the whole source: what can be copied, and of which frames."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from reelweave.curate.cut.copy import SourceFormat, form_fault, format_of, has_new_header, is_sound
from reelweave.curate.cut.smart.bits import units_of
from reelweave.curate.cut.smart.coding import Coding, PacketFacts, SetsOf
from reelweave.curate.cut.smart.h264.coding import H264
from reelweave.curate.cut.smart.hevc.coding import Hevc
from reelweave.curate.cut.smart.noted import PacketNotes, form_of_values, form_values
from reelweave.curate.cut.smart.plan import CHANGED, DAMAGED, MOST_BEFORE, FrameFacts, Plan, plan
from reelweave.curate.frames.frame_times import FrameTimes
from reelweave.curate.frames.picture import Geometry, shape_at
from reelweave.curate.shots.spans import Span
from reelweave.loader.dataset.samples.frames.bits import ParameterError

_LOOKED_AT = 3  # packets by which an encoder is known
_MOST_GENERATIONS = 1000
_ENTRY, _KEY, _WHOLE, _LEADING, _END, _RESET = 1, 2, 4, 8, 16, 32

CODINGS: tuple[Coding, ...] = (H264(), Hevc())
"""Codecs whose packets are copied."""


class SmartPackets:
    """Notes on the packets of a source's pictures in decoding order, and on the packet of each frame.

    Memory is six bytes a packet and eight a frame. The bytes of packets are kept only while `keeps` is true.

    Args:
        stream: Video stream of the source, used until the source is closed.
        max_bits: Maximum bits per sample of clips; those of 8 bits are H.264.
        fault: Reason why nothing of the source is copied, where one is known before.
        is_begin: False where the packets are those of a later part of the source.

    Attributes:
        kept_bytes: Size of the packets that are kept.
        keeps: True to keep the bytes of packets until they are dropped.
        form: Form of the source, once a frame was decoded.
        prefix: Bytes of the length prefixes of packets; None for start codes.
        coding: Codec of the source; None where its packets are not copied.
        beside: NAL units of its container's header that describe all pictures.
    """

    def __init__(
        self,
        stream: VideoStream,
        *,
        keeps: bool = False,
        max_bits: int = 8,
        fault: str | None = None,
        is_begin: bool = True,
    ) -> None:
        self._stream, self.keeps = stream, keeps
        self._looked_at = _LOOKED_AT if is_begin else 0
        header = bytes(stream.codec_context.extradata or b"")
        codec = stream.codec_context.codec.canonical_name
        self.coding = next((coding for coding in CODINGS if coding.name == codec), None)
        self._max_bits = max_bits
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
        self.beside: tuple[bytes, ...] = ()
        if self.coding is not None:
            self._take_header(header)
        self._sets.append(tuple(self._current.values()))

    def take(self, packet: Packet[VideoStream]) -> None:
        """Note a packet, before it is decoded; it is marked with its number."""
        position = len(self._flags)
        packet.opaque = position
        if self.coding is None or self._fault:
            self._flags.append(0)
            self._generations.append(0)
            return
        # What its units are, as its coding tells them.
        data = bytes(packet)
        try:
            units = units_of(data, self.prefix)
        except ParameterError as error:
            units, self._fault = [], str(error)
        facts = self.coding.look(units)
        # Parameter sets that come with a packet hold from it on: a generation of their own.
        if has_new_header(packet) and not self._has_changed:
            self._has_changed = True
            self._known[len(self._sets)] = SetsOf((), fault=CHANGED)
            self._sets.append(())
        if not self._has_changed and facts.has_sets and self._take_sets(units):
            if len(self._sets) > _MOST_GENERATIONS:
                self._fault = "its parameter sets change too often"
            else:
                self._sets.append(tuple(self._current.values()))
        # Streams whose packets cannot be copied as they are.
        if position < self._looked_at and (fault := self.coding.origin_fault(data)):
            self._fault = fault
        self._fault = facts.fault or self._fault
        # Notes on every packet; its bytes only where clips may copy them.
        self._flags.append(_flags_of(packet, facts))
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
    def of_notes(cls, stream: VideoStream, notes: PacketNotes, max_bits: int) -> SmartPackets:
        """Return what a scan of the whole notes of a source, by the notes of its parts.

        Args:
            stream: Video stream of the source, opened, whose header alone is read.
            notes: Joined notes of all parts.
            max_bits: As of `SmartPackets`.
        """
        packets = cls(stream, max_bits=max_bits)
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
        if size.bits > 8 and self.form.codec == "h264":
            return "10-bit H.264, whose clips are HEVC"
        # Sets may lie in the packets alone.
        form = replace(self.form, header=self.form.header or b"\0")
        return form_fault(form, size, deinterlaced, self._max_bits) or self._fault

    def facts(self, frame: int, shown: int = 1) -> FrameFacts:
        """Return the facts of a frame; see `FrameFacts`."""
        position = self._frames[frame]
        if position < 0:
            return FrameFacts(-1, False, False, False, -1, shown)
        flags, generation = self._flags[position], self._generations[position]
        usable = bool(flags & _WHOLE) and self.sets_of(generation).fault is None
        if position and self._flags[position - 1] & _END and not flags & _RESET:
            usable = False  # its order of showing counts anew
        is_entry = bool(flags & _ENTRY)
        leading = self._leading_behind(position) if is_entry else 0
        return FrameFacts(position, is_entry, bool(flags & _KEY), usable, generation, shown, leading)

    def _leading_behind(self, position: int) -> int:
        """Return the number of packets directly behind an entry whose pictures are shown before it."""
        end = position + 1
        while end < len(self._flags) and self._flags[end] & _LEADING:
            end += 1
        return end - position - 1

    def is_reset(self, position: int) -> bool:
        """Return whether a packet ends all references, of packets behind it too."""
        return bool(self._flags[position] & _RESET)

    def sets_at(self, frame: int) -> SetsOf | None:
        """Return the parameter sets at the packet of a frame, or None where that is not known."""
        position = self._frames[frame]
        return None if position < 0 else self.sets_of(self._generations[position])

    def sets_of(self, generation: int) -> SetsOf:
        """Return the parameter sets of a generation."""
        if generation not in self._known:
            assert self.coding is not None
            self._known[generation] = self.coding.sets_of(self._sets[generation])
        return self._known[generation]

    def plan(self, span: Span, line: FrameTimes, size: Geometry) -> Plan:
        """Return the plan of a clip, once the whole source is noted."""
        fault = self.span_fault(span, line, size)
        if fault is not None:
            return Plan((), fault)
        slots = line.clip_frames(span.first, span.last) - span.first
        shown = np.bincount(slots, minlength=span.last - span.first).tolist()
        facts = (self.facts(frame, times) for frame, times in enumerate(shown, span.first))
        return plan(facts, self.most_before(size))

    def most_before(self, size: Geometry) -> int | None:
        """Return how many frames before its first run a clip may have, or None without a limit."""
        return (
            MOST_BEFORE if size.bits == 8 and self.coding is not None and self.coding.name == "hevc" else None
        )

    def span_fault(self, span: Span, line: FrameTimes, size: Geometry) -> str | None:
        """Return why nothing of a span is copied whatever its packets are, or None."""
        if line.shapes and shape_at(line.shapes, span.first).first > 0:
            return "its pictures change their shape before it"
        if line.is_lowered(span.first, span.last):
            return "cut.fps lowers its rate"
        return self.begin_fault(span.first, size, line.deinterlace)

    def begin_fault(self, first: int, size: Geometry, deinterlaced: bool = False) -> str | None:
        """Return why nothing can be copied into a clip that begins with a frame, or None; see `source_fault`."""
        if fault := self.source_fault(size, deinterlaced):
            return fault
        sets = self.sets_at(first)
        if sets is None:
            return DAMAGED
        return sets.fault or (None if sets.bits == size.bits else f"not {size.bits}-bit 4:2:0")

    def position_of(self, frame: int) -> int:
        """Return the number of the packet of a frame; -1 where it is not known."""
        return self._frames[frame]

    def needed_behind(self, frame: int) -> int:
        """Return the number of the first packet that frames shown later may need."""
        position = self._frames[frame]
        if position < 0 or not self._flags[position] & _LEADING:
            return position + 1
        while position and self._flags[position] & _LEADING:
            position -= 1
        return position  # of the entry, which is shown behind

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
        assert self.coding is not None
        try:
            stated = self.coding.header(header)
        except ParameterError as error:
            self._fault = str(error)
        else:
            self.prefix, self.beside = stated.prefix, stated.beside
            self._fault = self._fault or stated.fault
            self._take_sets(stated.sets)

    def _take_sets(self, units: Sequence[bytes]) -> bool:
        """Take the parameter sets among NAL units; return whether one of them is new."""
        assert self.coding is not None
        is_new = False
        for unit in units:
            try:
                key = self.coding.set_key(unit)
            except ParameterError as error:
                self._fault = str(error)
                return False
            if key is not None:
                is_new |= self._current.get(key) != unit
                self._current[key] = unit
        return is_new


def _flags_of(packet: Packet[VideoStream], facts: PacketFacts) -> int:
    marks = (
        (_ENTRY, facts.is_entry),
        (_KEY, packet.is_keyframe),
        (_WHOLE, facts.is_whole and is_sound(packet)),
        (_LEADING, facts.is_leading),
        (_END, facts.ends),
        (_RESET, facts.is_reset),
    )
    return sum(mark for mark, is_set in marks if is_set)
