"""Builder of one clip by smart cut, from its frames in shown order and the packets behind them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from reelweave.curate.cut.clip import CutError
from reelweave.curate.cut.config import CutConfig
from reelweave.curate.cut.encode import TOO_LARGE, ClipEncoder, codec_name
from reelweave.curate.cut.smart.bits import units_of
from reelweave.curate.cut.smart.check import (
    MOST_CHECKED,
    Expected,
    SeamError,
    check,
    checksum,
    colours_of,
    small_luma,
)
from reelweave.curate.cut.smart.edges import EdgeEncoder, Sample
from reelweave.curate.cut.smart.file import write
from reelweave.curate.cut.smart.packets import SmartPackets
from reelweave.curate.cut.smart.plan import Plan, Seams, Segment
from reelweave.curate.frames.picture import Geometry
from reelweave.loader.base.operations import charged


class SmartClip:
    """Clip in the making. Frames wait until it is known whether their packets are copied, 41 at most.

    Args:
        stream: Video stream of the source, opened.
        packets: Notes on its packets.
        packet: Function from the number of a packet to its bytes.
        first: First frame of the clip in the source.
        size: Size of the pictures.
        rate: Frames per second.
        config: Settings of clips.
        max_bytes: Maximum size of the file.

    Attributes:
        plan: Plan of the clip, once it is finished.
    """

    @charged("encode")
    def __init__(
        self,
        stream: VideoStream,
        packets: SmartPackets,
        packet: Callable[[int], bytes | None],
        first: int,
        size: Geometry,
        rate: Fraction,
        config: CutConfig,
        max_bytes: float,
    ) -> None:
        sets = packets.sets_at(first)
        assert sets is not None
        assert packets.form is not None
        assert packets.coding is not None
        self._stream, self._packets, self._packet = stream, packets, packet
        self._size, self._rate, self._config, self._left_bytes = size, rate, config, max_bytes
        self._coding, self._sets, self._reorders = packets.coding, sets, packets.form.reorders
        self._colours: set[tuple[int, ...]] = set()
        self._plain: ClipEncoder | None = None  # of a clip of which nothing is copied
        self._first = self._next = first
        self._seams = Seams(packets.most_before(size))
        self._waiting: deque[tuple[VideoFrame, int]] = deque()
        self._passed = 0  # frames of the source that left the queue
        self._slot = 0  # frames of the clip that they fill
        self._kept_until = 0  # frame of the clip to which copies are compared
        self._segment = -1  # of the frame that left it last
        self._encoder: EdgeEncoder | None = None
        self._encoder_sets: list[bytes] = []
        self._samples: list[Sample] = []
        self._copied: list[tuple[int, Sample]] = []  # of the segment in work, by their packets
        self._parts: list[Segment] = []  # in frames of the clip
        self._expected: dict[int, Expected | None] = {}
        self.plan: Plan | None = None

    @charged("encode")
    def show(self, picture: VideoFrame, times: int) -> None:
        """Take the next finished picture of the clip, which is shown so many times.

        Raises:
            CutError: It could not be encoded, or the clip is too large.
        """
        self._colours.add(colours_of(picture))
        self._seams.push(self._packets.facts(self._next, times))
        self._next += 1
        self._waiting.append((picture, times))
        self._release()

    @property
    def needed(self) -> int | None:
        """Number of the first packet that undecided frames may need; see `Seams.needed`."""
        return self._seams.needed

    @charged("encode")
    def finish(self) -> bytes:
        """Return the MP4 file, with its index last.

        Raises:
            SeamError: The clip does not show the pictures of its source.
            CutError: It could not be written.
        """
        self.plan = self._seams.finish()
        if not self.plan.segments:
            return self._encode_plain().finish()
        if len(self._colours) > 1:
            raise SeamError("its colours change")
        self._release()
        self._end_segment()
        sets = [*(self._sets.sets if self.plan.copied else ()), *self._encoder_sets]
        data = write(self._stream, self._coding, sets, self._samples, self._rate)
        if self.plan.copied:
            parts = [part for part in self._parts if part.first < part.last]
            (colours,) = self._colours
            check(data, parts, self._expected, colours, self._config.crf, self._config.verify)
        return data

    def abandon(self) -> None:
        """Drop what a failed clip holds."""
        self._waiting.clear()
        self._encoder = None
        if self._plain is not None:
            self._plain.abandon()

    def _encode_plain(self) -> ClipEncoder:
        """Encode the waiting frames as in clips of which nothing is copied, and return their encoder."""
        if self._plain is None:
            codec = codec_name(self._config.encoder, self._size.bits)
            self._plain = ClipEncoder(codec, self._size, self._rate, self._config, self._left_bytes)
        while self._waiting:
            self._plain.show(*self._waiting.popleft())
        return self._plain

    def _release(self) -> None:
        if self._seams.refused:
            self._encode_plain()
            return
        while self._passed < self._seams.decided:
            index = max(self._segment, 0)
            while self._seams.segments[index].last <= self._passed:
                index += 1
            segment, is_new = self._seams.segments[index], index != self._segment
            if is_new:
                self._begin(segment)
                self._segment = index
            picture, times = self._waiting.popleft()
            if segment.copied:
                self._copy(picture, self._first + self._passed, is_new)
            else:
                self._encode(picture, times)
            self._passed += 1
            self._slot += times
            self._parts[-1] = replace(self._parts[-1], last=self._slot)

    def _begin(self, segment: Segment) -> None:
        self._end_segment()
        self._parts.append(replace(segment, first=self._slot, last=self._slot))
        if not segment.copied:
            self._encoder = EdgeEncoder(
                self._coding, self._size, self._rate, self._config, self._sets, reorders=self._reorders
            )

    def _copy(self, picture: VideoFrame, frame: int, is_first: bool) -> None:
        facts = self._packets.facts(frame)
        data = self._packet(facts.position)
        if data is None:
            raise CutError("its packets could not be read a second time")
        units = units_of(data, self._packets.prefix)
        is_key = is_first or self._packets.is_reset(facts.position) or (facts.entry and not facts.leading)
        if is_first:
            stored, self._kept_until = self._coding.first_sample(units, self._packets.beside), self._slot
            self._kept_until += MOST_CHECKED if facts.leading else 1
        else:
            stored = self._coding.sample(units)
        self._copied.append((facts.position, Sample(stored, self._slot, is_key)))
        if self._slot < self._kept_until or self._config.verify == "whole":
            self._expected[self._slot] = checksum(picture)

    def _encode(self, picture: VideoFrame, times: int) -> None:
        assert self._encoder is not None
        luma = small_luma(picture) if times else None
        for slot in range(self._slot, self._slot + times):
            self._encoder.show(picture, slot)
            self._expected[slot] = luma

    def _end_segment(self) -> None:
        encoder, self._encoder = self._encoder, None
        samples = [sample_of for _, sample_of in sorted(self._copied, key=lambda numbered: numbered[0])]
        self._copied.clear()
        if encoder is not None and self._parts[-1].last > self._parts[-1].first:
            samples = encoder.finish()
            self._encoder_sets = encoder.sets
        for frame in samples:
            self._add(frame)

    def _add(self, frame: Sample) -> None:
        self._samples.append(frame)
        self._left_bytes -= len(frame.data)
        if self._left_bytes < 0:
            raise CutError(TOO_LARGE)
