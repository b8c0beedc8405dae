"""Builder of one clip by smart cut, from its frames in shown order and the packets behind them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from fractions import Fraction

from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from reelweave.curate.cut.clip import CutError
from reelweave.curate.cut.config import CutConfig
from reelweave.curate.cut.encode import TOO_LARGE
from reelweave.curate.cut.smart.check import Expected, check, checksum, small_luma
from reelweave.curate.cut.smart.edges import EdgeEncoder, Sample
from reelweave.curate.cut.smart.file import write
from reelweave.curate.cut.smart.packets import SmartPackets
from reelweave.curate.cut.smart.parameter_sets import IDR, kind_of, sample, units_of
from reelweave.curate.cut.smart.plan import Plan, Seams, Segment
from reelweave.curate.frames.picture import Geometry


class SmartClip:
    """Clip in the making. Frames wait until it is known whether their packets are copied, 25 at most.

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
        self._stream, self._packets, self._packet = stream, packets, packet
        self._size, self._rate, self._config, self._left_bytes = size, rate, config, max_bytes
        self._sets, self._set_id, self._reorders = sets.sets, sets.encoder_id, packets.form.reorders
        self._first = self._next = first
        self._seams = Seams()
        self._waiting: deque[tuple[VideoFrame, int]] = deque()
        self._passed = 0  # frames of the source that left the queue
        self._slot = 0  # frames of the clip that they fill
        self._segment = -1  # of the frame that left it last
        self._encoder: EdgeEncoder | None = None
        self._encoder_sets: list[bytes] = []
        self._samples: list[Sample] = []
        self._copied: list[tuple[int, Sample]] = []  # of the segment in work, by their packets
        self._parts: list[Segment] = []  # in frames of the clip
        self._expected: dict[int, Expected | None] = {}
        self.plan: Plan | None = None

    def show(self, picture: VideoFrame, times: int) -> None:
        """Take the next finished picture of the clip, which is shown so many times.

        Raises:
            CutError: It could not be encoded, or the clip is too large.
        """
        self._seams.push(self._packets.facts(self._next, times))
        self._next += 1
        self._waiting.append((picture, times))
        self._release()

    @property
    def needed(self) -> int | None:
        """Number of the first packet that undecided frames may need; see `Seams.needed`."""
        return self._seams.needed

    def finish(self) -> bytes:
        """Return the MP4 file, with its index last.

        Raises:
            SeamError: The clip does not show the pictures of its source.
            CutError: It could not be written.
        """
        self.plan = self._seams.finish()
        self._release()
        self._end_segment()
        sets = [*(self._sets if self.plan.copied else ()), *self._encoder_sets]
        data = write(self._stream, sets, self._samples, self._rate)
        if self.plan.copied:
            parts = [part for part in self._parts if part.first < part.last]
            check(data, parts, self._expected, self._config.crf, self._config.verify)
        return data

    def abandon(self) -> None:
        """Drop what a failed clip holds."""
        self._waiting.clear()
        self._encoder = None

    def _release(self) -> None:
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
            before = self._parts[-1]
            self._slot += times
            self._parts[-1] = Segment(before.copied, before.first, self._slot, before.position)

    def _begin(self, segment: Segment) -> None:
        self._end_segment()
        self._parts.append(Segment(segment.copied, self._slot, self._slot, segment.position))
        if not segment.copied:
            self._encoder = EdgeEncoder(
                self._size, self._rate, self._config, self._set_id, reorders=self._reorders
            )

    def _copy(self, picture: VideoFrame, frame: int, is_first: bool) -> None:
        position = self._packets.facts(frame).position
        data = self._packet(position)
        if data is None:
            raise CutError("its packets could not be read a second time")
        units = units_of(data, self._packets.prefix)
        is_key = any(kind_of(unit) == IDR for unit in units)
        self._copied.append((position, Sample(sample(units), self._slot, is_key)))
        if is_first or self._config.verify == "whole":
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
