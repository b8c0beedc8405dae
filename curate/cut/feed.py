"""One pass over a source's packets for everyone who needs them: the decoder, the copier, the sound."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import av
from av.audio.codeccontext import AudioCodecContext
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.packet import Packet
from av.stream import Disposition, Stream
from av.video.stream import VideoStream

_MAX_AHEAD_BYTES = 1 << 28
_MAX_SOUND_BYTES = 1 << 28


@dataclass(frozen=True)
class StepBack:
    """A place where the clock of a source starts anew, in all its streams.

    Attributes:
        back_s: By how much it steps back in the pictures.
        later_s: What is added to times behind it, so that clocks rise.
    """

    back_s: Fraction
    later_s: Fraction


class _Clock:
    """The rising clock of one stream, in its own ticks; packets come in the order of the file."""

    def __init__(self, stream: Stream | None, steps: Sequence[StepBack]) -> None:
        tick_s = stream.time_base if stream is not None and stream.time_base else Fraction(1, 1000)
        self._steps = [(int(step.back_s / tick_s), round(step.later_s / tick_s)) for step in steps]
        self._last = -(1 << 63)
        self._later = 0
        self.steps = 0  # that were met

    def rising(self, ticks: int) -> int:
        if self.steps < len(self._steps) and self._last - ticks > self._steps[self.steps][0] // 2:
            self._later += self._steps[self.steps][1]
            self.steps += 1
        self._last = ticks
        return ticks + self._later


class Feed:
    """Stands in for the container towards `curate.frames.frame_times.Decoder` and keeps what others want on the way.

    Sound never lies exactly beside its pictures, and whether a span can be copied is known only at its end; so
    a feed reads ahead. Packets are compressed, and how many of them it may hold is bounded.

    Args:
        container: opened, at its start.
        video: its picture stream.
        sound: its sound stream, or None when that is not wanted.
        keep_video: whether picture packets are kept for copying.
        steps: Where the clock of the source starts anew; times of packets that are kept rise over them.

    Attributes:
        video: kept picture packets with their place in the file's order.
        sound: kept sound packets.
        overflow: whether sound was let go because it was too much.
        ended: whether the file's end, or an error that ends it, has been read.
    """

    def __init__(
        self,
        container: InputContainer,
        video: VideoStream,
        sound: AudioStream | None,
        *,
        keep_video: bool,
        steps: Sequence[StepBack] = (),
    ) -> None:
        streams = [video] if sound is None else [video, sound]
        self._packets: Iterator[Packet[Any]] = container.demux(*streams)
        self._video_index = video.index
        self._keep_video = keep_video
        self._waiting: deque[Packet[VideoStream]] | None = deque()
        self._waiting_bytes = self._video_bytes = self._sound_bytes = self._read = 0
        self._fault: av.error.FFmpegError | OSError | None = None
        self._video_from = self._sound_from = -(1 << 63)
        self._video_dts = self._sound_pts = -(1 << 63)
        self._video_clock, self._sound_clock = _Clock(video, steps), _Clock(sound, steps)
        self.video: list[tuple[int, Packet[VideoStream]]] = []
        self.sound: list[Packet[AudioStream]] = []
        self.overflow = self.ended = False

    def demux(self, _: VideoStream) -> Iterator[Packet[VideoStream]]:
        """The picture packets, as the container gives them."""
        while self._waiting is not None:
            while self._waiting:
                packet = self._waiting.popleft()
                self._waiting_bytes -= packet.size
                yield packet
            if self.ended:
                if self._fault is not None:
                    raise self._fault
                return
            self._next()

    def stop_decoding(self) -> None:
        """Holds no more packets for the decoder; ``demux`` ends."""
        self._waiting = None

    def keep_from(self, video_pts: int, sound_pts: int) -> None:
        """Lets go of pictures shown and sound over before these times, in ticks of their streams."""
        self._video_from, self._sound_from = video_pts, sound_pts
        self.video = [(place, packet) for place, packet in self.video if (packet.pts or 0) >= video_pts]
        self._video_bytes = sum(packet.size for _, packet in self.video)
        self.sound = [packet for packet in self.sound if _end(packet) >= sound_pts]
        self._sound_bytes = sum(packet.size for packet in self.sound)
        self.overflow = False

    @property
    def sound_steps(self) -> int:
        """How many of the steps back the sound read up to now has made."""
        return self._sound_clock.steps

    def read_video(self, until_pts: int) -> None:
        """Reads ahead until every picture before this time has been read."""
        while not self.ended and self._video_dts < until_pts and not self._full():
            self._next()

    def read_sound(self, until_pts: int, video_pts: int) -> None:
        """Reads ahead until the sound before a time has been read, or the pictures are past ``video_pts``."""
        while not self.ended and self._sound_pts < until_pts and self._video_dts < video_pts:
            if self._full() or self.overflow:
                break
            self._next()

    def _full(self) -> bool:
        return max(self._waiting_bytes, self._video_bytes) >= _MAX_AHEAD_BYTES

    def _next(self) -> None:
        try:
            packet = next(self._packets)
        except StopIteration:
            self.ended = True
        except (av.error.FFmpegError, OSError) as error:
            self.ended, self._fault = True, error
        else:
            # The packet that says the end bears its stream, and no index.
            if packet.stream.index == self._video_index:
                self._take_video(packet)
            elif packet.size:
                self._take_sound(packet)

    def _take_video(self, packet: Packet[VideoStream]) -> None:
        if packet.dts is not None:
            self._video_dts = self._video_clock.rising(packet.dts)
        self._read += 1
        if self._waiting is not None:
            self._waiting.append(packet)
            self._waiting_bytes += packet.size
        if self._keep_video and packet.size and packet.pts is not None and packet.pts >= self._video_from:
            self.video.append((self._read, packet))
            self._video_bytes += packet.size

    def _take_sound(self, packet: Packet[AudioStream]) -> None:
        if packet.pts is None:
            return
        packet.pts = self._sound_clock.rising(packet.pts)
        if _end(packet) < self._sound_from or self.overflow:
            return
        self._sound_pts = max(self._sound_pts, packet.pts)
        self.sound.append(packet)
        self._sound_bytes += packet.size
        if self._sound_bytes > _MAX_SOUND_BYTES:
            self.overflow = True
            self.sound.clear()


def _end(packet: Packet[AudioStream]) -> int:
    return (packet.pts or 0) + (packet.duration or 0)


def choose_sound(container: InputContainer) -> AudioStream | None:
    """The sound stream a viewer hears: the default one, or the first."""
    candidates = []
    for stream in container.streams.audio:
        context: AudioCodecContext | None = stream.codec_context  # None where FFmpeg knows no decoder
        if context is not None:
            candidates.append(stream)
    return max(
        candidates,
        key=lambda stream: (bool(stream.disposition & Disposition.default), -stream.index),
        default=None,
    )
