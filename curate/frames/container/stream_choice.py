"""Choice of the sound that belongs to a film's pictures: of their own programme, and the main track of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import BinaryIO

import av
from av.audio.codeccontext import AudioCodecContext
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.packet import Packet
from av.stream import Disposition
from av.video.stream import VideoStream

from reelweave.curate.frames.container.channel_order import settle_layout
from reelweave.curate.frames.container.description import count_pictures, programmes_of
from reelweave.curate.frames.container.edit_list import edit_faults
from reelweave.loader.dataset.samples.frames.video_stream import has_decoder, pictures_of
from reelweave.loader.errors import refuse_shortage

_ASIDE = (
    (Disposition.visual_impaired | Disposition.descriptions, "audio description"),
    (Disposition.hearing_impaired | Disposition.clean_effects, "sound for the hard of hearing"),
    (Disposition.comment, "a commentary"),
    (Disposition.karaoke, "karaoke"),
    (Disposition.dependent, "sound to be mixed with another track"),
)
_RECORDED = ("mpegts", "mpeg")
"""Containers of recordings, in whose middle a stream may take the place of another."""

_BEHIND = 0.1
"""Share of a file behind the last picture of its stream from which on others are said to go on."""

_UNKNOWN = "its sound has a codec that is not known here"
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


@dataclass(frozen=True)
class SoundChoice:
    """Sound track that clips take, and the reason.

    Attributes:
        stream: Stream that clips take, or None for none.
        fault: Reason why the sound of the file is left out, or None.
        remark: Words on a choice among several tracks, or on a track that is not the usual sound; "" without.
    """

    stream: AudioStream | None = None
    fault: str | None = None
    remark: str = ""

    @property
    def is_unknown(self) -> bool:
        """True where FFmpeg has no decoder for the sound."""
        return self.fault == _UNKNOWN


def choose_sound(container: InputContainer, video: VideoStream, file: BinaryIO) -> SoundChoice:
    """Choose the sound that players play with a stream of pictures.

    It is of the same programme, where the container has programmes. Tracks marked as no main sound are passed over if
    there is another one. Then the default one comes first, then the original, then the first in the file.

    Args:
        container: Opened container.
        video: Its pictures.
        file: The file that it reads.
    """
    if not container.streams.audio:
        return SoundChoice()
    together = _together(container, video)
    if not together:
        return SoundChoice(fault="the sound in the file belongs to other programmes")
    for stream in together:
        settle_layout(stream)
    known = [stream for stream in together if _is_known(stream)]
    if not known:
        return SoundChoice(fault=_UNKNOWN)
    chosen = max(known, key=_rank)
    if fault := edit_faults(container, file).get(chosen.id):
        return SoundChoice(fault=f"the edit list of its sound {fault}")
    return SoundChoice(chosen, remark=_remark(chosen, known, together))


def learn_rate(stream: AudioStream, packets: Iterable[Packet[AudioStream]]) -> bool:
    """Decode first packets of sound that states no sample rate, and return whether the decoder knows one then.

    Of sound that begins behind what FFmpeg reads ahead, or that a later program map of TS names, a header tells none.
    """
    context = stream.codec_context
    for packet in packets:
        if context.sample_rate > 0:
            break
        try:
            context.decode(packet)
        except (av.error.FFmpegError, ValueError) as error:
            refuse_shortage(error)
    return context.sample_rate > 0


def other_pictures(container: InputContainer, last_packet: tuple[int, int]) -> str | None:
    """Return words for pictures that go on in another stream, as where a recorder's PIDs change, or None.

    Args:
        container: Container that was read to its end.
        last_packet: Offset and size of the last packet of its pictures, bytes; the offset is negative where it is not
            known.
    """
    offset, size = last_packet
    end = offset + size
    if (
        container.format.name not in _RECORDED
        or offset < 0
        or container.size - end < _BEHIND * container.size
    ):
        return None
    if count_pictures(container) < 2:
        return None
    return (
        f"from byte {end} on its pictures are in another stream (of other PIDs); split the file there, as by"
        f" `tail -c +{end + 1} FILE`"
    )


def left_out(container: InputContainer, sound: SoundChoice, *, goes_on: bool = False) -> str:
    """Return in words what is chosen among several streams of pictures or sound, "" where nothing is.

    Args:
        container: Opened container.
        sound: What was chosen of its sound.
        goes_on: True where its pictures go on in another stream, which is said elsewhere.
    """
    pictures = 1 if goes_on else sum(map(has_decoder, pictures_of(container)))
    remarks = (
        [f"one of {pictures} streams of pictures is kept, the one that players show"] if pictures > 1 else []
    )
    return "; ".join([*remarks, *([sound.remark] if sound.remark else [])])


def _together(container: InputContainer, video: VideoStream) -> list[AudioStream]:
    """Return the sound streams that no programme, or a programme of the pictures, holds."""
    own = [members for members in programmes_of(container) if video.index in members]
    if not own:
        return list(container.streams.audio)
    return [stream for stream in container.streams.audio if any(stream.index in members for members in own)]


def _is_known(stream: AudioStream) -> bool:
    # None where FFmpeg knows no decoder; that of pictures where a PID of TS had these before.
    return isinstance(stream.codec_context, AudioCodecContext)


def _rank(stream: AudioStream) -> tuple[bool, bool, bool, bool, bool, int]:
    marks = stream.disposition
    return (
        stream.codec_context.sample_rate > 0,  # else the file announces it and holds none of it
        not _aside(stream),
        bool(marks & Disposition.default),
        bool(marks & Disposition.original),
        not marks & Disposition.dub,
        -stream.index,
    )


def _aside(stream: AudioStream) -> str:
    """Return in words what a track is that is no main sound, "" for others."""
    return next((words for marks, words in _ASIDE if stream.disposition & marks), "")


def _remark(chosen: AudioStream, known: list[AudioStream], together: list[AudioStream]) -> str:
    aside = _aside(chosen)
    if len(together) == 1:
        return f"its only sound is marked as {aside}" if aside else ""
    index = together.index(chosen)
    ordinal = _ORDINALS[index] if index < len(_ORDINALS) else f"{index + 1}th"
    others = sorted({words for stream in known if stream is not chosen and (words := _aside(stream))})
    reasons = [f"marked as {aside}"] if aside else []
    if chosen.disposition & Disposition.default and not all(
        stream.disposition & Disposition.default for stream in known
    ):
        reasons.append("the default one")
    reasons += [f"another is {words}" for words in others]
    reasons += ["another has a codec that is not known here"] if len(known) < len(together) else []
    return f"the {ordinal} of {len(together)} sound tracks is kept" + (
        f" ({'; '.join(reasons)})" if reasons else ""
    )
