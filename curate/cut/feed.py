"""Read-ahead over a source's packets, shared by decoder, copier and sound."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import zip_longest

import av
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.packet import Packet
from av.video.stream import VideoStream

from reelweave.curate.cut.copy import has_new_header
from reelweave.curate.cut.sound_state import FROM_THE_BEGIN, WholeBlocks
from reelweave.curate.frames.clocks.packet_stamps import mended_stamps
from reelweave.curate.frames.sound_clock import SoundClock, is_heard
from reelweave.loader.dataset.samples.frames.packets import read_packets

_MAX_AHEAD_BYTES = 1 << 28
_MAX_SOUND_BYTES = 1 << 28


class Feed:
    """Packet source of a `Decoder` (`reelweave.curate.frames.frame_times`) that keeps packets for copies and sound.

    Sound never lies exactly next to its pictures, and only the end of a span decides whether it can be
    copied. So a feed reads ahead. Packets are compressed, and their number in memory is bounded.

    Args:
        container: Opened container, at its start.
        video: Video stream of the container.
        sound: Sound stream of the container, or None without sound.
        keep_video: True to keep video packets for copying.
        sound_clock: Repaired clock of the sound, or None where its stamps are right.

    Attributes:
        video: Kept video packets with their positions in the file's order.
        sound: Kept sound packets.
        overflow: True when sound was dropped because it exceeded the memory limit.
        ended: True after the file's end, or after an error that ends it.
        changed_from: Position of the first video packet with other parameter sets than the film's first ones.
    """

    def __init__(
        self,
        container: InputContainer,
        video: VideoStream,
        sound: AudioStream | None,
        *,
        keep_video: bool,
        sound_clock: SoundClock | None = None,
    ) -> None:
        streams = [video] if sound is None else [video, sound]
        self._packets = mended_stamps(read_packets(container, *streams), video)
        self._video_index = video.index
        self._keep_video = keep_video
        self._waiting: deque[Packet[VideoStream]] | None = deque()
        self._waiting_bytes = self._video_bytes = self._sound_bytes = self._read = 0
        self._whole = 0  # video packets with data
        self._fault: av.error.FFmpegError | OSError | None = None
        self._video_from = self._sound_from = -(1 << 63)
        self._video_dts = self._sound_pts = -(1 << 63)
        codec = sound.codec_context.codec.canonical_name if sound is not None else ""
        self._keeps_sound = codec in FROM_THE_BEGIN
        self._blocks = WholeBlocks() if codec == "pcm_dvd" else None
        self._shifts = deque(sound_clock.shifts if sound_clock is not None else ())
        self._heard = self._later = 0  # sound packets with a stamp, and the shift of the last one
        self.video: list[tuple[int, Packet[VideoStream]]] = []
        self.sound: list[Packet[AudioStream]] = []
        self.overflow = self.ended = False
        self.changed_from = math.inf
        self._wanted: deque[range] = deque()
        self._numbered: dict[int, bytes] = {}

    def want(self, runs: Iterable[range], first: int = 0) -> None:
        """Keep the bytes of video packets with these numbers in the container's order until they are taken.

        Args:
            runs: Rising, disjoint ranges; packets without data do not count.
            first: Number of the first packet that is read.
        """
        self._wanted, self._whole = deque(runs), first

    def take_packet(self, number: int) -> bytes | None:
        """Return, once, the bytes of a wanted packet; None where it was not read."""
        return self._numbered.pop(number, None)

    def demux(self, _: VideoStream) -> Iterator[Packet[VideoStream]]:
        """Yield the video packets, in the container's order."""
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
        """Drop the packets for the decoder and end ``demux``."""
        self._waiting = None

    def keep_from(self, video_pts: int, sound_pts: int) -> None:
        """Drop pictures shown and sound over before these times, in ticks of their streams."""
        self._video_from = video_pts
        if not self._keeps_sound:
            self._sound_from = sound_pts
        self.video = [(index, packet) for index, packet in self.video if (packet.pts or 0) >= video_pts]
        self._video_bytes = sum(packet.size for _, packet in self.video)
        self.sound = [
            packet
            for packet, following in zip_longest(self.sound, self.sound[1:])
            if following is None or not self._is_over(packet, following)
        ]
        self._sound_bytes = sum(packet.size for packet in self.sound)
        self.overflow = False

    def read_video(self, until_pts: int) -> None:
        """Read ahead until every picture before a time has been read."""
        while not self.ended and self._video_dts < until_pts and not self._full():
            self._next()

    def read_sound(self, until_pts: int, video_pts: float, pictures: float) -> None:
        """Read ahead until the sound before a time has been read, or enough pictures.

        Args:
            until_pts: End of the sound, in its ticks.
            video_pts: Time at which pictures are enough, in their ticks.
            pictures: Number of video packets that are enough.
        """
        while not self.ended and self._sound_pts < until_pts:
            if self._video_dts >= video_pts or self._read >= pictures:
                break
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
            # The end-of-stream packet has a stream, but no index.
            if packet.stream.index == self._video_index:
                self._take_video(packet)
            elif packet.size:
                self._take_sound(packet)

    def _take_video(self, packet: Packet[VideoStream]) -> None:
        if packet.dts is not None:
            self._video_dts = packet.dts
        self._read += 1
        if has_new_header(packet):
            self.changed_from = min(self.changed_from, self._read)
        if packet.size:
            while self._wanted and self._wanted[0].stop <= self._whole:
                self._wanted.popleft()
            if self._wanted and self._whole >= self._wanted[0].start:
                self._numbered[self._whole] = bytes(packet)
            self._whole += 1
        if self._waiting is not None:
            self._waiting.append(packet)
            self._waiting_bytes += packet.size
        if self._keep_video and packet.size and packet.pts is not None and packet.pts >= self._video_from:
            self.video.append((self._read, packet))
            self._video_bytes += packet.size

    def _take_sound(self, packet: Packet[AudioStream]) -> None:
        if packet.pts is None:
            return
        if is_heard(packet):
            if self._shifts and self._heard >= self._shifts[0][0]:
                self._later = self._shifts.popleft()[1]
            self._heard += 1
        packet.pts += self._later
        if self._blocks is not None:
            packet = self._blocks.join(packet)
        if self.overflow:
            return
        if self.sound and self._is_over(self.sound[-1], packet):
            self._sound_bytes -= self.sound.pop().size
        self._sound_pts = max(self._sound_pts, packet.pts or 0)
        self.sound.append(packet)
        self._sound_bytes += packet.size
        if self._sound_bytes > _MAX_SOUND_BYTES:
            self.overflow = True
            self.sound.clear()

    def _is_over(self, packet: Packet[AudioStream], following: Packet[AudioStream]) -> bool:
        """Return whether a packet is over before the sound to keep; without a duration it lasts until the next one."""
        end = (packet.pts or 0) + packet.duration if packet.duration else following.pts or 0
        return end < self._sound_from
