"""Frame rate and duration of a sample's media, from the time stamps of its frames and packets."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from av.packet import Packet
from av.video.stream import VideoStream
from numpy.typing import NDArray

from reelweave.curate.frames.clocks.clock import JUMP_S, repair_clock
from reelweave.curate.frames.clocks.rates import snap_rate
from reelweave.curate.frames.source import SourceError
from reelweave.loader.dataset.samples.frames.shown_frames import has_variable_rate, times_of

IMAGE_FPS = 25.0
"""A picture counts as one frame of a video of this rate, so that frames = seconds x rate holds for it too."""

_RATE_TOLERANCE = 0.05

_HELD = 1.5
"""Usual gaps between frames for which the last one is shown, above which it is held."""


class Pace(NamedTuple):
    """Frame rate of media, their duration, and whether frames last unequally long."""

    fps: float
    duration_s: float
    variable: bool


def pace_of_image(frames: int) -> Pace:
    """Return the pace that a picture counts with."""
    return Pace(IMAGE_FPS, frames / IMAGE_FPS, False)


def pace_of(
    stamps: Sequence[int | None], tick_s: float, times: "PacketTimes", stated: Fraction | None
) -> Pace:
    """Return the pace of frames in display order.

    Args:
        stamps: Time stamp of each frame in ticks.
        tick_s: Seconds per tick.
        times: Times of all packets.
        stated: Frame rate in the container, frames per second.

    Raises:
        SourceError: the clock starts anew, and frames last unequally long; or all frames have one stamp.
    """
    if len(stamps) > 1 and stamps[0] is not None and len(set(stamps)) == 1 and not times.counts_ticks:
        raise SourceError(
            "states one time for all of its frames, which tells no rate; `reelweave curate` guesses one, and says so"
        )
    times_s = times_of(list(stamps), tick_s)
    if times_s is None:
        joined_s = None if times.counts_ticks else _joined_times(stamps, tick_s)
        if joined_s is not None:
            return _pace_of_joined(joined_s)
        fps = times.rate(stated, len(stamps))
        return Pace(fps, len(stamps) / fps, False)
    fps, is_variable = times.rate(stated, len(stamps)), has_variable_rate(times_s)
    if len(times_s) > 1 and not times.counts_ticks:
        held_s = times.last_s - float(stamps[-1] or 0) * tick_s
        of_gaps = (len(times_s) - 1) / float(times_s[-1])
        is_held = held_s > _HELD * float(np.median(np.diff(times_s)))
        if is_held and not (is_variable and abs(fps / of_gaps - 1) <= _RATE_TOLERANCE):
            rate = of_gaps if is_variable else float(snap_rate(Fraction(of_gaps)))
            return Pace(rate, float(times_s[-1]) + held_s, True)
    return Pace(fps, len(stamps) / fps, is_variable)


def _joined_times(stamps: Sequence[int | None], tick_s: float) -> NDArray[np.float64] | None:
    """Return when each frame begins, seconds after the first, where a clock starts anew; None elsewhere."""
    if None in stamps:
        return None
    clock = repair_clock(stamps, tick_s)
    return None if clock is None or not clock.breaks else (clock.ticks - clock.ticks[0]) * tick_s


def _pace_of_joined(times_s: NDArray[np.float64]) -> Pace:
    if has_variable_rate(times_s):
        raise SourceError(
            "is several recordings joined, each with a clock that starts anew, whose frames last unequally long;"
            " `reelweave curate` makes clips of each"
        )
    fps = float(snap_rate(Fraction((len(times_s) - 1) / float(times_s[-1]))))
    return Pace(fps, len(times_s) / fps, False)


@dataclass
class PacketTimes:
    """Number of packets, and the span they cover in seconds.

    Attributes:
        promised: Frames by the header.
        packets: Packets with content.
        first_s: Earliest time of a packet.
        lasts_as_coded: True for MP4, whose durations are steps from a packet to the next one in coding order: with
            B-frames that is none to the next picture.
        counts_ticks: True for AVI, which has no times of display and promises ticks; a frame may take several.
        ticks: End of the last packet in coding order, in ticks.
        coded: Time of the last packet in coding order, in ticks.
        discarded: True if an edit list cuts off packets.
        ends_cut: True if the bytes of the last packet in coding order are not all there.
        last_packet: Offset and size in bytes of the packet that was read last; -1 and 0 where they are not known.
        until_s: Time at which the last fragment of MP4 ends, where it tells it, seconds.
        edited_s: Time at which the edit list of MP4 ends, seconds; a last picture is held to it at most.
    """

    promised: int
    packets: int = 0
    first_s: float | None = None
    counts_ticks: bool = False
    lasts_as_coded: bool = False
    ticks: int = 0
    coded: int = 0
    discarded: bool = False
    ends_cut: bool = False
    last_packet: tuple[int, int] = (-1, 0)
    edited_s: float = math.inf
    until_s: float = math.inf
    _end_s: float = 0.0
    _latest_s: float = -math.inf
    _steps: Counter[float] = field(default_factory=Counter)

    def add(self, packet: "Packet[VideoStream]") -> None:
        self.packets += 1
        self.ends_cut = packet.is_corrupt
        self.last_packet = (-1, 0) if packet.pos is None else (packet.pos, packet.size)
        if packet.is_discard:
            self.discarded = True
            return
        begin, lasting = packet.pts, packet.duration or 0
        if self.counts_ticks:
            begin, lasting = packet.dts, max(lasting, (packet.dts or 0) - self.coded)
            self.coded, self.ticks = packet.dts or 0, (packet.dts or 0) + lasting
        if begin is not None and packet.time_base is not None:
            begin_s = float(begin * packet.time_base)
            lasting_s = float(lasting * packet.time_base)
            end_s = begin_s + lasting_s
            self.first_s = begin_s if self.first_s is None else min(self.first_s, begin_s)
            self._end_s = end_s if self.lasts_as_coded else max(self._end_s, end_s)
            self._latest_s = max(self._latest_s, begin_s)
            self._steps[lasting_s] += 1

    def hold(self, slots: int) -> None:
        """Hold the last picture of AVI over the empty slots behind it, which are no packets."""
        self.ticks += slots

    @property
    def last_s(self) -> float:
        """Time at which the last picture ends, seconds."""
        if not self.lasts_as_coded or not self._steps:
            return self._end_s
        usual_s = self._steps.most_common(1)[0][0]
        # The last packet in coding order states its own end; the latest picture may be another one.
        end_s = max(self._end_s, self._latest_s + usual_s)
        if end_s > max(self.until_s, self._latest_s + JUMP_S):  # a clock that stepped
            return self._latest_s + usual_s
        return end_s if end_s <= self.edited_s + usual_s else max(self.edited_s, self._latest_s)

    def rate(self, stated: Fraction | None, frames: int) -> float:
        """Return the stated rate where the time stamps agree with it, else shown frames over the span they cover."""
        span_s = 0.0 if self.first_s is None else self.last_s - self.first_s
        counted = frames / span_s if span_s > 0 else 0.0
        if self.discarded:  # the stated rate counts frames that an edit list cuts off
            return counted or IMAGE_FPS
        if stated and (not counted or abs(float(stated) / counted - 1) <= _RATE_TOLERANCE):
            return float(stated)
        return counted or IMAGE_FPS
