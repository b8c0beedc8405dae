"""Sound of a span: packets copied where MP4 can hold them in sync, else decoded and encoded as AAC."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import floor

import av
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.packet import Packet

from reelweave.curate.cut import aac
from reelweave.curate.cut.config import CutConfig
from reelweave.curate.cut.mp4 import Mp4
from reelweave.curate.cut.sound_state import SoundDecoder, is_own, reservoir_begin
from reelweave.curate.frames.container.channel_order import channel_order, reorder
from reelweave.curate.frames.container.stream_choice import learn_rate
from reelweave.loader.errors import refuse_shortage
from reelweave.loader.text import pluralize

COPIED = frozenset({"aac", "mp3", "ac3", "eac3", "opus"})
"""Codecs that MP4 and its readers support, by their names in FFmpeg."""

# Pre-roll of copied sound: one overlapping block, 80 ms of Opus (RFC 7845, 4.6), or the bit reservoir of MP3.
_BEFORE_S = {"opus": Fraction(80, 1000)}
_BEFORE_PACKETS = 1
_OF_ONE_SIZE = frozenset({"aac", "mp3", "ac3"})  # codecs whose packets hold equally many samples
_STRETCHED = 1.5  # share of most packets' duration above which one covers a gap
_SQUEEZED = 0.9  # share of a packet that the next one covers
_PROBED_PACKETS, _LEARNT_PACKETS = 4, 64
NO_SOUND = "no sound of its source lies beside it, by its time stamps"
LAST_PACKET = "the last packet of its sound is damaged, and left out"
_MOST_DAMAGED = 0.05
"""Share of a clip's packets of sound that may be damaged, and silent; one always may."""

READ_BEFORE_S = Fraction(1, 2)
"""Sound that is read before a clip; a decoder has settled by then (WMA, TrueHD, codecs of speech)."""


@dataclass(frozen=True)
class Sound:
    """Sound track of one clip.

    Attributes:
        name: Value for ``Clip.audio``.
        data: MP4 file with one audio stream that begins with the clip; empty without sound.
        fault: Reason why the source's sound is left out, or None.
        remark: Words on what is lost of sound that is kept, or why a clip has none; "" for nothing.
        mended: Function that returns the sound encoded, silent where it is damaged, for copied sound; else None.
    """

    name: str = "none"
    data: bytes = b""
    fault: str | None = None
    remark: str = ""
    mended: Callable[[], Sound] | None = None


@dataclass(frozen=True)
class SoundSlice:
    """One sound packet on the clip's time axis, in samples.

    Attributes:
        begin: First decoded sample; negative before the clip.
        samples: Number of decoded samples.
    """

    begin: int
    samples: int


def sound_of(
    stream: AudioStream,
    packets: Sequence[Packet[AudioStream]],
    start_s: Fraction,
    duration_s: Fraction,
    config: CutConfig,
) -> Sound:
    """Return the sound of a clip; faults of the source never raise.

    Args:
        stream: Audio stream of the source; its decoder is used.
        packets: Packets of the stream, in order, from at least `READ_BEFORE_S` before the clip to its end;
            left unchanged.
        start_s: Start of the clip on the stream's clock.
        duration_s: Duration of the clip.
        config: Bit rate of encoded sound, and the limit of the sample rate.
    """
    if not learn_rate(stream, packets[:_LEARNT_PACKETS]):
        return Sound(fault="its sound states no sample rate, as one that begins late or is encrypted")
    if not packets:
        return Sound(remark=NO_SOUND)
    rate = stream.codec_context.sample_rate
    if rate * (channels := stream.codec_context.channels) > config.max_sound_rate:
        return Sound(fault=f"{channels} channels of {rate} Hz are more than cut.max_sound_rate")
    codec = stream.codec_context.codec.canonical_name
    frame_size = _frame_size(stream, packets)
    slices = slices_of(
        [(packet.pts or 0, packet.duration or 0) for packet in packets],
        packets[0].time_base,
        start_s,
        rate,
        frame_size,
        holds=codec in _OF_ONE_SIZE,
    )
    end = round(duration_s * rate)
    begin, stop = covering(slices, end, round(_BEFORE_S.get(codec, Fraction(0)) * rate))
    if begin == stop:
        return Sound(remark=NO_SOUND)
    lead = begin  # packets that are over before the clip, decoded for what the decoder carries on alone
    if codec == "mp3":
        begin = reservoir_begin([bytes(packet) for packet in packets[:stop]], begin)
    chosen = packets[begin:stop]

    def encoded() -> Sound:
        return _encoded(stream, packets[:stop], lead, start_s, duration_s, config)

    try:
        laid = joined_lead(slices[begin:stop], frame_size)
        if _copyable(stream, laid, chosen):  # whether it decodes is verified in the clip
            with contextlib.suppress(av.error.FFmpegError):  # MP4 has no MP3 below 16 kHz
                return Sound(f"copy:{codec}", _copy(stream, chosen, laid, rate), mended=encoded)
    except ValueError as error:
        return damaged_sound(codec, str(error))
    return encoded()


def damaged_sound(codec: str, how: str) -> Sound:
    """Return no sound for a clip, since that of its source is damaged."""
    return Sound(
        fault=f"its {codec} sound is damaged: {how}", remark=f"its {codec} sound is damaged, and left out"
    )


def _encoded(
    stream: AudioStream,
    packets: Sequence[Packet[AudioStream]],
    lead: int,
    start_s: Fraction,
    duration_s: Fraction,
    config: CutConfig,
) -> Sound:
    """Return the sound of a clip, decoded and encoded; silent where a few packets behind the lead are damaged."""
    codec = stream.codec_context.codec.canonical_name
    damaged: list[int] = []
    try:
        track = aac.samples(_decode_packets(stream, packets, lead, damaged), start_s, duration_s)
        if len(damaged) > max(1, _MOST_DAMAGED * (len(packets) - lead)):
            return damaged_sound(codec, f"{len(damaged)} of {len(packets) - lead} packets")
        if track is None:
            return damaged_sound(codec, "its only packet") if damaged else Sound(remark=NO_SOUND)
        remarks: list[str] = []
        if track.mixed_from:
            mix = "mono" if len(track.samples) == 1 else "stereo"
            remarks.append(f"its sound of {track.mixed_from} channels is mixed down to {mix}")
        if damaged == [len(packets) - 1]:  # as in a file that is cut off within a packet
            remarks.append(LAST_PACKET)
        elif damaged:
            much = pluralize(len(damaged), "damaged packet")
            remarks.append(f"{much} of its sound {'is' if len(damaged) == 1 else 'are'} silent")
        return Sound("aac", aac.encode(track, config.audio_bitrate_kbps), remark="; ".join(remarks))
    except (av.error.FFmpegError, ValueError) as error:
        refuse_shortage(error)
        return damaged_sound(codec, "it cannot be encoded")


def slices_of(
    times: Sequence[tuple[int, int]],
    time_base: Fraction,
    start_s: Fraction,
    rate: int,
    frame_size: int,
    *,
    holds: bool = False,
) -> list[SoundSlice]:
    """Place packets on the clip's time axis.

    Coarse ticks (1 ms in Matroska) are replaced by the codec's own frame length wherever they agree with it. So is a
    duration below half of it, which a muxer that squeezes stamps leaves; the last packet may be cut short. So is one
    above that of most packets, where all of a codec hold as much: MP4 has gaps as packets that last until the next one.

    Args:
        times: (pts, duration) of each packet in ticks; duration 0 when unknown.
        time_base: Seconds per tick.
        start_s: Start of the clip.
        rate: Samples per second.
        frame_size: Samples per packet by the codec, or 0.
        holds: True if all packets hold equally many samples.
    """
    tick = time_base * rate
    tolerance = floor(max(Fraction(1), tick))
    # Whole numbers: a packet's fractions would take longer than its copy.
    step, unit = time_base.numerator * start_s.denominator * rate, time_base.denominator * start_s.denominator
    origin = start_s.numerator * time_base.denominator * rate
    lasting = {
        duration: frame_size
        if frame_size and (not duration or abs(duration * tick - frame_size) <= tick)
        else round(duration * tick)
        for duration in {duration for _, duration in times}
    }
    most = sorted(lasting[duration] for _, duration in times)[(len(times) - 1) // 2] if times and holds else 0
    slices: list[SoundSlice] = []
    expected: int | None = None
    for pts, duration in times:
        begin = _nearest(pts * step - origin, unit)
        if expected is not None and abs(begin - expected) <= tolerance:
            begin = expected
        samples = lasting[duration]
        if 2 * samples < frame_size and len(slices) + 1 < len(times):
            samples = frame_size
        if most and samples > _STRETCHED * most:
            samples = most
        slices.append(SoundSlice(begin, samples))
        expected = begin + samples
    return slices


def _nearest(numerator: int, denominator: int) -> int:
    """Return the whole number nearest to a fraction, the even one of two, as `round` does."""
    below, rest = divmod(numerator, denominator)
    return below + (2 * rest > denominator or (2 * rest == denominator and below % 2))


def covering(slices: Sequence[SoundSlice], end: int, before: int) -> tuple[int, int]:
    """Return the packets for a clip: those that sound in samples ``[0, end)`` and their pre-roll.

    Returns:
        ``(first, stop)``; equal without sound.
    """
    # A packet that does not say how long it lasts goes on until the next one. How long the last one does (WavPack in
    # Matroska: up to seconds), its decoder tells.
    ends = [
        sound_slice.begin + sound_slice.samples if sound_slice.samples else following
        for sound_slice, following in zip(
            slices, [*(following.begin for following in slices[1:]), end], strict=True
        )
    ]
    heard = [at for at, sound_slice in enumerate(slices) if sound_slice.begin < end and ends[at] > 0]
    if not heard:
        return 0, 0
    first = max(0, heard[0] - _BEFORE_PACKETS)
    while first > 0 and slices[first].begin > -before:
        first -= 1
    return first, heard[-1] + 1


def joined_lead(slices: Sequence[SoundSlice], frame_size: int) -> list[SoundSlice]:
    """Return packets with those that end before the clip laid end to end, up to the first one that is heard.

    Only the decoder hears them, and players skip the samples that it makes: with a gap among them they would skip
    sound of the clip instead. A fragmented MP4 without edit lists has one behind its first packet.
    """
    laid = list(slices)
    heard = next((at for at, each in enumerate(laid) if each.begin + each.samples > 0), 0)
    # What begins late leaves silence, and no sound from before.
    ends = min(laid[heard].begin, 0) if laid else 0
    for at in reversed(range(heard)):
        samples = laid[at].samples or frame_size
        ends -= samples
        laid[at] = SoundSlice(ends, samples)
    return laid


def out_of_sync(slices: Sequence[SoundSlice]) -> str | None:
    """Return why packets cannot follow one another in an MP4 file that begins with the clip, or None."""
    if any(sound_slice.samples <= 0 for sound_slice in slices):
        return "a packet does not say how long it lasts"
    for sound_slice, following in pairwise(slices):
        off = following.begin - sound_slice.begin - sound_slice.samples
        if off > sound_slice.samples:
            return "there is a gap"
        # A muxer squeezes the stamps of packets before a join; players that count samples play them all.
        if -off > _SQUEEZED * sound_slice.samples:
            return "two packets sound at a time"
    if slices[0].begin > slices[0].samples:
        return "it begins more than a frame after the pictures"
    return None


def _copyable(
    stream: AudioStream, slices: Sequence[SoundSlice], packets: Sequence[Packet[AudioStream]]
) -> bool:
    codec = stream.codec_context.codec.canonical_name
    if codec not in COPIED or any(packet.has_sidedata("param_change") for packet in packets):
        return False
    if not all(is_own(stream, packet) for packet in packets):
        return False
    # Decoders of browsers and of Apple do not guess the configuration of AAC, as FFmpeg does (ISO/IEC 14496-14, 5.6).
    if codec == "aac" and not stream.codec_context.extradata and not _is_adts(bytes(packets[0])):
        return False
    # MP4 has one header for all packets: of others, players would play the wrong rate.
    return len({_form(codec, bytes(packet)[:7]) for packet in packets}) == 1 and out_of_sync(slices) is None


def _form(codec: str, header: bytes) -> tuple[int, ...]:
    """Return what the header of a packet says of its sample rate and channels, as far as it has one."""
    if len(header) < 7:
        return ()
    if codec == "aac" and _is_adts(header):
        return header[2], header[3] & 0xC0
    if codec == "mp3":  # ISO/IEC 11172-3, 2.4.1.3; stereo and joint stereo take turns
        return header[1] & 0x18, header[2] & 0x0C, header[3] >> 6 == 3
    if codec == "ac3":  # ETSI TS 102 366, 4.3.1 and 4.3.2
        return header[4] & 0xC0, header[6] >> 5
    if codec == "eac3":  # the same, E.1.2.2; further substreams have channels of their own
        return (header[4] & 0xC0,)
    return ()


def _is_adts(packet: bytes) -> bool:
    """Return whether a packet of AAC states its configuration itself: ISO/IEC 13818-7, 6.2."""
    return len(packet) > 1 and packet[0] == 0xFF and packet[1] & 0xF0 == 0xF0


def _frame_size(stream: AudioStream, packets: Sequence[Packet[AudioStream]]) -> int:
    """Return the samples per packet by the codec, or 0: a decoder knows them once it has decoded.

    It looks at the clip's own packets, so that no clip's sound hangs on what was decoded before it.
    """
    context = stream.codec_context
    context.flush_buffers()
    for packet in packets[:_PROBED_PACKETS]:
        with contextlib.suppress(av.error.FFmpegError, ValueError):
            if context.decode(packet):
                break
    return context.frame_size


def _decode_packets(
    stream: AudioStream, packets: Sequence[Packet[AudioStream]], lead: int, damaged: list[int]
) -> Iterator[AudioFrame]:
    """Decode packets after a flush, and note those behind the first ``lead`` that do not decode whole."""
    decoder, order = SoundDecoder(stream), channel_order(stream)
    for index, packet in enumerate(packets):
        try:
            decoded = decoder.decode(packet)
        except av.error.FFmpegError as error:
            refuse_shortage(error)
            if index >= lead:
                damaged.append(index)
            continue
        whole = [frame for frame in decoded if not frame.is_corrupt or index < lead]
        if len(whole) < len(decoded):
            damaged.append(index)
        for frame in whole:
            yield reorder(frame, order)


def _copy(
    stream: AudioStream, packets: Sequence[Packet[AudioStream]], slices: Sequence[SoundSlice], rate: int
) -> bytes:
    """Copy packets to an MP4 file whose edit list skips the pre-roll, to the sample."""
    file = Mp4()
    target = file.container.add_stream_from_template(stream)
    for packet, sound_slice in zip(packets, slices, strict=True):
        twin = Packet(bytes(packet))
        twin.stream, twin.time_base = target, Fraction(1, rate)
        twin.pts = twin.dts = sound_slice.begin
        twin.duration, twin.is_keyframe = sound_slice.samples, True
        file.container.mux_one(twin)
    return file.close()
