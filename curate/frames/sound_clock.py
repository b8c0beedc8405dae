"""Repair of a source's sound stamps that step, so that sound stays with its pictures over a broken clock.

A step of the sound beside a step of its pictures of like size is the same step. Where only one of them steps,
the order of the file decides. Packets lie beside those of their time, unless a remuxer sorted them by wrong
stamps. Then the ends decide, if it is the only step: streams of one recording end together.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.packet import Packet
from av.video.stream import VideoStream
from numpy.typing import NDArray

from reelweave.curate.frames.clocks.packet_stamps import mended_stamps
from reelweave.curate.frames.clocks.rates import FLEETING_S
from reelweave.curate.frames.clocks.sound_stamps import SoundStamps
from reelweave.curate.frames.container.stream_choice import learn_rate
from reelweave.curate.frames.decode.hidden_packets import HiddenPackets
from reelweave.curate.frames.decode.repeated_packets import RepeatedPackets
from reelweave.curate.frames.decode.turn_to_sound import TurnToSound
from reelweave.curate.frames.frame_times import FrameTimes
from reelweave.loader.dataset.samples.frames.packets import read_packets

_LEAST_STEP_S = 0.06
_AROUND = 5  # packets on each side of a step; a single wrong stamp is no step
_LEAST_AROUND = 3
_LEAST_STILL = 2  # steps back to one time at which it stood still
_STILL_S = 1.0  # maximum sound of one packet of a container, whose frames share a stamp
_SAID_S = 0.02  # step of one clock alone above which words say so
_LEARNT_PACKETS = 64  # of sound that states no rate, which may tell it
_STEPS_S = 0.04  # change of the distance of sound from its pictures that a clip may not hold
_MOST_STEPS = 0.02  # share of packets that step back above which stamps say nothing
_NEAR_S = 5.0  # maximum distance of sound from its pictures in a file
_COMPARED_S = 10.0  # file order before and after a step
_AGREES, _AGREES_S = 0.4, 1.0  # share of a step, and seconds, by which the order of the file may differ
_ENDS, _ENDS_S = 0.25, 0.5  # share of a step, and seconds, by which sound and pictures may end apart

Seconds = NDArray[np.float64]


class NotingDemuxer:
    """Packet source for `reelweave.curate.frames.decode.decoder.Decoder` that notes the stamps of the sound on the way.

    Args:
        container: Opened container, at its start.
        sound: Sound stream of the container, or None without sound.
        note: Function called with every packet of the pictures.

    Attributes:
        size: Size of the container in bytes.
        sound: Stamps so far.
        coded: Times of coding of the pictures so far, in ticks, of AVI, which has no others.
        hidden: Pictures in its middle that are not shown.
        repeated: Packets of pictures that come twice.
        turn: Place at which the stream of pictures goes on with sound.
    """

    def __init__(
        self,
        container: InputContainer,
        sound: AudioStream | None,
        note: Callable[[Packet[VideoStream]], None] | None = None,
    ) -> None:
        self._container, self._sound, self._note = container, sound, note
        self.size = container.size
        self.coded = array("q")
        self.hidden, self.repeated = HiddenPackets(), RepeatedPackets()
        self.turn = TurnToSound()
        self._notes_coded = container.format.name == "avi"
        self._is_recorded = container.format.name == "mpegts"
        self.sound = SoundStamps(float(sound.time_base or 0) if sound is not None else 0.0)

    def demux(self, video: VideoStream) -> Iterator[Packet[VideoStream]]:
        """Yield the video packets, in the container's order."""
        packets = self._demux(video)
        for packet in self.turn.before(packets) if self._is_recorded else packets:
            if packet.size:
                self.hidden.take(packet)
                self.repeated.take(packet)
                if self._note is not None:
                    self._note(packet)
            if self._notes_coded and packet.size and packet.dts is not None:
                self.coded.append(packet.dts)
            yield packet

    def _demux(self, video: VideoStream) -> Iterator[Packet[VideoStream]]:
        if self._sound is None:
            yield from mended_stamps(read_packets(self._container, video), video)
            return
        noted = self.sound
        packets = read_packets(self._container, video, self._sound)
        for packet in mended_stamps(packets, video):
            if packet.stream.index == video.index:
                noted.pictures += packet.size > 0
                yield cast("Packet[VideoStream]", packet)
            elif packet.pts is not None and is_heard(packet):
                noted.pts.append(packet.pts)
                noted.durations.append(packet.duration or 0)
                noted.pictures_before.append(noted.pictures)
                if len(noted.pts) <= _LEARNT_PACKETS:
                    learn_rate(self._sound, [packet])

    def heard(self) -> SoundStamps:
        """Return the stamps of the sound; none where its decoder knows no rate, and so reads nothing."""
        if self._sound is None or self._sound.codec_context.sample_rate > 0:
            return self.sound
        return SoundStamps(self.sound.tick_s)


def is_heard(packet: Packet[Any]) -> bool:
    """Return whether a packet of sound counts for its clock: it has a stamp, and no edit list hides it.

    Of a second edit FFmpeg hands out up to a second of hidden sound before, for the decoder alone.
    """
    return packet.size > 0 and packet.pts is not None and not packet.is_discard


@dataclass(frozen=True)
class SoundClock:
    """Repaired clock of a source's sound, on the axis of its pictures' repaired times.

    Attributes:
        shifts: (packet, ticks): stamps from this packet on are later by so many ticks.
        offsets: (frame, seconds): from this frame on, the sound of a frame lies at its repaired time plus so
            many seconds; None where nothing tells.
        pictures: Number of video packets.
        remark: Words on steps of one clock alone, behind which players show pictures and sound apart; "" without.
    """

    shifts: tuple[tuple[int, int], ...]
    offsets: tuple[tuple[int, float | None], ...]
    pictures: int
    remark: str = ""

    @property
    def steps(self) -> tuple[int, ...]:
        """Frames from which on sound lies otherwise beside its pictures, where both distances are known."""
        befores_s = [0.0, *(offset_s for _, offset_s in self.offsets)]
        return tuple(
            frame
            for (frame, after_s), before_s in zip(self.offsets, befores_s, strict=False)
            if after_s is not None and before_s is not None and abs(after_s - before_s) > _STEPS_S
        )

    def offset_s(self, frame: int) -> float | None:
        """Return the offset of the sound that belongs to a frame, or None when it is unknown."""
        index = bisect_right(self.offsets, frame, key=lambda offset: offset[0])
        return self.offsets[index - 1][1] if index else 0.0


@dataclass(frozen=True)
class _Step:
    """Step of a clock: first frame or packet behind it, and the seconds that join what follows to what precedes."""

    place: int
    joins_s: float


def repaired_sound(stamps: SoundStamps, line: FrameTimes, begin_s: float) -> SoundClock | None:
    """Return the repaired clock of the sound, or None when neither pictures nor sound step.

    Args:
        stamps: Stamps of the sound, noted in a whole pass.
        line: Timeline of the pictures.
        begin_s: Stamp of the first frame in seconds.
    """
    if not len(stamps.pts):
        return None
    sound = _Sound(stamps, line, begin_s)
    pictures = list(_picture_steps(line))
    if not pictures and not sound.steps_back():
        return None
    alone = len(pictures) + len(sound.steps) == 1
    shifts: list[tuple[int, float]] = []
    # For each step of the pictures, whether the sound's own stamps agree with the pictures' behind it.
    together: dict[int, bool] = {}
    shift_s, joined_s = 0.0, 0.0
    for step in sound.steps:
        match = _same_step(step, pictures[max(together, default=-1) + 1 :], sound, line, shift_s)
        if match is not None:
            index = pictures.index(match[0])
            later_s, together[index] = match[1] - shift_s, match[2]
        elif step.joins_s > 0 and sound.fits(step.place, step.joins_s, step.joins_s, alone):
            later_s = step.joins_s
            joined_s = max(joined_s, later_s)
        else:
            continue
        shift_s += later_s
        shifts.append((step.place, shift_s))
        sound.delay(step.place, later_s)
    offsets = tuple(_offsets(pictures, together, sound, line, alone))
    ticks = tuple((packet, round(seconds / stamps.tick_s)) for packet, seconds in shifts)
    own = [step for index, step in enumerate(pictures) if index not in together]
    moved_s = max((step.joins_s for step in own if sound.stays(step, alone)), default=0.0)
    return SoundClock(ticks, offsets, stamps.pictures, _words_apart(joined_s, moved_s))


def _words_apart(sound_s: float, pictures_s: float) -> str:
    """Return words for the largest steps back of the clock of sound alone, and of pictures alone."""
    steps = [("sound", sound_s), ("pictures", pictures_s)]
    return "; ".join(
        f"the clock of its {name} alone steps back by {step_s:.2f} s, and is joined there, as the order of the file"
        " tells; players show pictures and sound apart behind it"
        for name, step_s in steps
        if step_s > _SAID_S
    )


def _picture_steps(line: FrameTimes) -> Iterator[_Step]:
    if line.shifts_s is not None:
        later_s = np.diff(line.shifts_s[:-1])
        for frame in np.flatnonzero(np.abs(later_s) > 1e-3).tolist():
            yield _Step(frame + 1, float(later_s[frame]))


def _same_step(
    step: _Step, pictures: list[_Step], sound: _Sound, line: FrameTimes, shift_s: float
) -> tuple[_Step, float, bool] | None:
    """Return the pictures' step that a step of the sound is, the sound's shift behind it, and whether it agrees.

    Behind joined recordings the stamps of pictures and sound agree anew, whatever was before; a clock that steps
    for both moves both by the same.
    """
    best, match = abs(step.joins_s) / 2, None
    for other in pictures:
        if abs(line.times_s[other.place] - sound.shown_s[step.place]) > _NEAR_S:
            continue
        anew_s = float(line.shifts_s[other.place]) if line.shifts_s is not None else 0.0
        for candidate_s, agrees in ((anew_s, True), (shift_s + other.joins_s, False)):
            gap_s = abs(candidate_s - shift_s - step.joins_s)
            if gap_s < best - 1e-3:
                best, match = gap_s, (other, candidate_s, agrees)
    return match


def _offsets(
    pictures: list[_Step], together: dict[int, bool], sound: _Sound, line: FrameTimes, alone: bool
) -> Iterator[tuple[int, float | None]]:
    offset_s: float | None = 0.0
    for index, step in enumerate(pictures):
        before_s = offset_s
        if index in together:
            offset_s = 0.0 if together[index] else offset_s
        elif not sound.stays(step, alone):
            is_known = offset_s is not None and step.place not in line.breaks
            offset_s = offset_s - step.joins_s if is_known and offset_s is not None else None
        if offset_s != before_s:
            yield step.place, offset_s


class _Sound:
    """Sound packets of a source, on the axis of its pictures' repaired times.

    Attributes:
        shown_s: Repaired time of the picture beside each packet in the file.
        steps: Steps of the sound's clock.
    """

    def __init__(self, stamps: SoundStamps, line: FrameTimes, begin_s: float) -> None:
        own_s = np.array(stamps.pts, np.float64) * stamps.tick_s - begin_s
        lasting_s = np.array(stamps.durations, np.float64) * stamps.tick_s
        gaps_s = np.diff(own_s)
        usual_s = float(np.median(gaps_s[gaps_s > 0])) if (gaps_s > 0).any() else 0.0
        lasting_s[lasting_s <= 0] = usual_s
        # Packets and frames are as many but for damage.
        frames = np.array(stamps.pictures_before) * line.frames // max(stamps.pictures, 1)
        self._frames = np.minimum(frames, line.frames - 1)
        self.shown_s: Seconds = line.times_s[self._frames]
        self._behind_s = own_s - self.shown_s  # with the shifts so far
        self._compared = round(_COMPARED_S / max(usual_s, 1e-3))
        self.steps = list(_sound_steps(own_s, lasting_s))
        self._ends_behind_s = float(own_s[-1] + lasting_s[-1] - line.times_s[-1])

    def steps_back(self) -> bool:
        """Return whether any stamps step back; those of a sound that pauses do not."""
        return any(step.joins_s > 0 for step in self.steps)

    def beside(self, frame: int) -> int:
        """Return the first packet behind a frame in the file."""
        return int(np.searchsorted(self._frames, frame))

    def delay(self, packet: int, later_s: float) -> None:
        """Move all packets from one on to a later time."""
        self._behind_s[packet:] += later_s

    def fits(self, packet: int, later_s: float, step_s: float, alone: bool) -> bool:
        """Return whether the order of the file, or its ends if the step is alone, say that sound is right behind it.

        Args:
            packet: First packet behind a step of pictures or sound.
            later_s: Time by which packets behind the step would be later than now.
            step_s: Size of the step.
            alone: True if nothing else steps in the film.
        """
        if self._agrees(packet, later_s, step_s):
            return True
        return alone and abs(self._ends_behind_s + later_s) < min(_ENDS * abs(step_s), _ENDS_S)

    def stays(self, step: _Step, alone: bool) -> bool:
        """Return whether sound is right beside pictures whose clock alone steps; see `fits`."""
        return self.fits(self.beside(step.place), 0.0, step.joins_s, alone)

    def _agrees(self, packet: int, later_s: float, step_s: float) -> bool:
        """Return whether sound lies equally far behind its pictures before and after a packet, in the file.

        Args:
            packet: First packet behind a step.
            later_s: Time by which packets behind the step would be later than now.
            step_s: Size of the step.
        """
        other_packets = [
            step.place for step in self.steps if step.place != packet and not -_NEAR_S < step.joins_s < 0
        ]
        begin = max((packet_index for packet_index in other_packets if packet_index < packet), default=0)
        end = min(
            (packet_index for packet_index in other_packets if packet_index > packet),
            default=len(self._behind_s),
        )
        before = self._behind_s[max(begin, packet - self._compared) : packet]
        after = self._behind_s[packet : min(end, packet + self._compared)]
        if min(len(before), len(after)) < _LEAST_AROUND:
            return False
        off_s = abs(float(after.mean()) + later_s - float(before.mean()))
        return off_s < min(_AGREES * abs(step_s), _AGREES_S)


def _sound_steps(own_s: Seconds, lasting_s: Seconds) -> Iterator[_Step]:
    """Yield the places at which stamps step away from the end of the packet before, for good."""
    begun_s = own_s - np.concatenate([[0.0], np.cumsum(lasting_s[:-1])])
    away_s = np.diff(begun_s)
    suspects = np.flatnonzero(np.abs(away_s) > np.maximum(_LEAST_STEP_S, 1.5 * lasting_s[:-1])) + 1
    if (away_s[suspects - 1] < 0).sum() > max(1, _MOST_STEPS * len(own_s)):
        return
    squeezed = _squeezed_mask(own_s, suspects)
    for packet in suspects[~squeezed].tolist():
        before, after = begun_s[max(0, packet - _AROUND) : packet], begun_s[packet : packet + _AROUND]
        if min(len(before), len(after)) < _LEAST_AROUND:
            continue
        step_s = float(np.median(after) - np.median(before))
        if abs(step_s - away_s[packet - 1]) < abs(away_s[packet - 1]) / 2:
            yield _Step(packet, -float(away_s[packet - 1]))


def _squeezed_mask(own_s: Seconds, suspects: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Return a mask of the steps back at which a muxer let time stand still, and of the step that ends each such run.

    Each packet of MPEG-TS holds several of sound, so the stamps begin at the same time over and over. Behind the run
    they are right. Joined recordings whose clocks restart at the same time last longer than such a packet.
    """
    if len(suspects) < _LEAST_STILL:
        return np.zeros(len(suspects), bool)
    begins_s = own_s[suspects]
    lasted_s = own_s[suspects[1:] - 1] - begins_s[:-1]
    still = (np.abs(np.diff(begins_s)) <= FLEETING_S) & (lasted_s < _STILL_S)
    squeezed: NDArray[np.bool_] = np.append(still, False) | np.append(False, still)
    ends = np.flatnonzero(squeezed[:-1] & ~squeezed[1:] & (np.diff(begins_s) >= 0)) + 1
    back = suspects[ends]
    squeezed[ends] = own_s[back] < own_s[back - 1]
    return squeezed
