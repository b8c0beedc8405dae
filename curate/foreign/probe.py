"""Probe of a sample's media from its bytes: frames that a player shows, displayed size, duration, frame rate."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import BinaryIO

import av
from av.container import InputContainer
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from reelweave.curate.foreign.pace import PacketTimes, pace_of, pace_of_image
from reelweave.curate.foreign.size_headers import SizeHeaders
from reelweave.curate.frames.clocks.fragment_runs import fragments_until
from reelweave.curate.frames.container.avi_index import held_slots
from reelweave.curate.frames.container.cluster_checks import ClusterChecks
from reelweave.curate.frames.container.cut_off import cut_off
from reelweave.curate.frames.container.dolby_vision import without_base
from reelweave.curate.frames.container.edit_list import count_edits, edit_faults, misread_step
from reelweave.curate.frames.container.encryption import (
    encrypted_words,
    encryption,
    is_encrypted,
    is_scrambled,
)
from reelweave.curate.frames.container.further_film import further_film, unlisted_media, unread_entries
from reelweave.curate.frames.container.immersive import immersive
from reelweave.curate.frames.container.side_data import side_data
from reelweave.curate.frames.container.stills import AVIF, film_behind, has_tiles, still_of_items
from reelweave.curate.frames.container.stream_choice import SoundChoice, choose_sound, other_pictures
from reelweave.curate.frames.container.ts_file import TransportChecks
from reelweave.curate.frames.decode.codecs import bounded_packets, codec_with_alpha
from reelweave.curate.frames.interlace import fields_fault
from reelweave.curate.frames.picture import ShapeMeter
from reelweave.curate.frames.probe import ProbeConfig
from reelweave.curate.frames.source import SourceError, open_video
from reelweave.loader.dataset.colour.matrix import matrix_fault
from reelweave.loader.dataset.colour.transparency import OverBlack
from reelweave.loader.dataset.samples.frames.gif_delays import with_usual_delays
from reelweave.loader.dataset.samples.frames.lasting_turn import LastingTurn
from reelweave.loader.dataset.samples.frames.packets import read_packets
from reelweave.loader.dataset.samples.frames.reorder import FrameOrder
from reelweave.loader.dataset.samples.frames.shown_frames import PacketFrames
from reelweave.loader.dataset.samples.frames.vp9_sizes import is_left_out
from reelweave.loader.dataset.tars.media import FORMATS
from reelweave.loader.dataset.tars.orientation import orientation_of
from reelweave.loader.dataset.tars.pictures import (
    CutOffError,
    first_picture,
    has_further_picture,
    is_animated_webp,
)
from reelweave.loader.errors import refuse_shortage

PROBE_VERSION = 40
"""Revision of this code: higher when the same bytes give other values; tars probed by older code are read again."""

_MAX_SIDE = 16384


@dataclass(frozen=True)
class Media:
    """Media of a sample as decoders show it.

    Attributes:
        frames: Number of frames that are shown.
        fps: Average frame rate; that of the gaps between frames where the last one is held.
        height: Height in pixels, upright and with square pixels.
        width: Width in pixels, likewise.
        duration_s: frames / fps, or longer by the time for which the last frame is held.
        audio: Codec of the sound track that players play with the pictures, or "none".
        variable_rate: True if frames last unequally long, so that ``fps`` is only their mean, or that of all but the
            last.
        interlaced: True if a frame that was decoded is marked as two fields of different times.
        transparent: True if the first frame has a transparent pixel.
        cropped: True if the container states edges that players cut off; height and width are with them.
        rest: True if further pictures, or films, lie behind the first one, which alone is read.
        turned: True if a message of the codec itself turns pictures, which players may not do.
        immersive: Words for a panorama, or both views of 3D, as which it is marked; "" for flat pictures.
    """

    frames: int
    fps: float
    height: int
    width: int
    duration_s: float
    audio: str
    variable_rate: bool = False
    interlaced: bool = False
    transparent: bool = False
    cropped: bool = False
    rest: bool = False
    turned: bool = False
    immersive: str = ""


def probe(data: bytes | memoryview) -> Media:
    """Read all packets of a video or picture, and decode one frame; all frames where only these tell their number.

    Raises:
        SourceError: no container of ``reelweave.loader.dataset.tars.media`` can be read, no frame can be
            decoded, only Dolby Vision shows its colours, or the end is missing: of a picture, of the last frame, a
            fragment or a cluster, or frames that the header promises.
    """
    if not data:
        raise SourceError("is empty")
    further = further_film(io.BytesIO(data))
    state = None if further is None else further.state
    if state == "tangled":
        raise SourceError("is several fragmented films joined, whose frames are not told apart; split it")
    if is_animated_webp(data):
        raise SourceError("is an animated WebP, which FFmpeg does not decode; convert it to GIF or MP4")
    if fault := cut_off(data):
        raise SourceError(f"is cut off: {fault}")
    still = still_of_items(io.BytesIO(data))
    if still is not None and (still != AVIF or has_tiles(io.BytesIO(data))):
        raise SourceError(
            f"is {still}, of which FFmpeg may show a tile alone{film_behind(io.BytesIO(data))}; convert it to JPEG"
        )
    try:
        rest, data = state == "unread" or has_further_picture(data), first_picture(data)
    except CutOffError as error:
        raise SourceError(f"is cut off: {error}") from error
    file = io.BytesIO(data)
    with open_video(file, containers=FORMATS) as (container, stream), _decoding():
        if fault := edit_faults(container, file).get(stream.id):
            raise SourceError(f"has an edit list that {fault}")
        stated_data = side_data(stream)
        if (dolby_vision := stated_data.dolby_vision) and dolby_vision.fault:
            raise SourceError(dolby_vision.fault)
        if container.format.name == "mpegts" and is_scrambled(data, stream.id):
            raise SourceError(encrypted_words("scrambled TS"))
        choice = choose_sound(container, stream, file)
        packets, heads = PacketFrames(container, stream), SizeHeaders(stream.codec_context)
        times, frame = _demux(container, stream, packets, heads, io.BytesIO(data))
        left_out = unread_entries(file) if "mp4" in container.format.name else None
        if left_out is None and times.promised > _count_stored(times, stream, data):
            raise SourceError(
                f"is cut off: its header promises {times.promised} frames, {times.packets} are there"
            )
        if times.ends_cut:
            raise SourceError("is cut off: its last frame is not whole")
        turned, told, tick_s = packets.turned, packets.finish(), float(stream.time_base or 0)
        if told is not None and frame.pts != told.pts[0]:
            told = None  # frames at the beginning are lost
        codec = stream.codec_context.codec.canonical_name
        if fault := matrix_fault(frame) or fields_fault(frame, codec):
            raise SourceError(fault)
        height, width = _shown_size(frame, stream.sample_aspect_ratio)
        interlaced, transparent = bool(frame.interlaced_frame), OverBlack().is_transparent(frame)
        view = immersive(frame)
        is_picture = still is not None or container.format.name.endswith("_pipe")
        # Units that are packets of their own count there as frames.
        stated = stream.average_rate if times.promised <= times.packets else None
        unread = left_out or misread_step(container, file, stream.id)
        if "mp4" in container.format.name:
            unread = unread or unlisted_media(file)
        rest = rest or bool(unread or other_pictures(container, times.last_packet))
        audio = _sound_codec(container, choice)
    decoded, combed = _decoded_stamps(data) if told is None or heads.change or turned else ([], False)
    stamps = decoded if told is None else told.pts.tolist()
    pace = pace_of_image(len(stamps)) if is_picture else pace_of(stamps, tick_s, times, stated)
    return Media(
        len(stamps),
        pace.fps,
        height,
        width,
        pace.duration_s,
        audio,
        variable_rate=pace.variable,
        interlaced=interlaced or combed,
        transparent=transparent,
        cropped=stated_data.crop is not None,
        rest=rest,
        turned=turned,
        immersive=view,
    )


@contextmanager
def _decoding() -> Iterator[None]:
    try:
        yield
    except (av.FFmpegError, ValueError) as error:
        refuse_shortage(error)
        raise SourceError(f"cannot be decoded: {getattr(error, 'strerror', None) or error}") from error


def _decoded_stamps(data: bytes | memoryview) -> tuple[list[int | None], bool]:
    """Return the time stamp of each frame, all of which are decoded, and whether any is interlaced.

    Raises:
        SourceError: There is none, or they change their shape, of which an index has one.
    """
    with open_video(io.BytesIO(data), containers=FORMATS) as (container, stream), _decoding():
        meter = ShapeMeter(
            stream, stream.codec_context, ProbeConfig(max_width=_MAX_SIDE, max_height=_MAX_SIDE)
        )
        order, turn = FrameOrder(stream), LastingTurn(stream)
        packets = with_usual_delays(read_packets(container, stream), container.format.name)
        shown = (frame for packet in packets for frame in order.sort(meter.decode(turn(packet)), packet))
        found = [(frame.pts, bool(frame.interlaced_frame)) for frame in shown]
    if not found:
        raise SourceError("has no frame that can be decoded")
    old = meter.shapes[0]
    for new in meter.shapes:  # of colours each frame is decoded by its own
        if (new.width, new.height) != (old.width, old.height):
            raise SourceError(
                f"changes its picture {old.change_to(new)} at frame {new.first}; `reelweave curate` makes clips of each"
            )
    return [pts for pts, _ in found], any(interlaced for _, interlaced in found)


def _demux(
    container: InputContainer, stream: VideoStream, packets: PacketFrames, heads: SizeHeaders, data: BinaryIO
) -> tuple[PacketTimes, VideoFrame]:
    codec = codec_with_alpha(stream)
    bound = bounded_packets(stream, codec)
    name, frame = container.format.name, None
    times = PacketTimes(stream.frames, counts_ticks=name == "avi", lasts_as_coded="mp4" in name)
    if stream.frames and stream.duration and count_edits(container, data, stream.id):  # in no fragments
        times.edited_s = float(stream.duration * (stream.time_base or 0))
    if (until := fragments_until(container, data, stream.id)) is not None:
        times.until_s = float(until * (stream.time_base or 0))
    turn, checks, transport = LastingTurn(stream), ClusterChecks(data, stream), TransportChecks(stream)
    # Times of all packets, and one decoded frame: that is all a sample's row needs.
    for packet in with_usual_delays(read_packets(container, stream), name):
        if packet.size:
            if is_encrypted(packet):
                raise SourceError(encryption(data) or encrypted_words("unknown scheme"))
            times.add(packet)
            if checks.is_damaged(packet):
                raise SourceError("is damaged: a checksum of its Matroska is wrong")
            if transport.is_damaged(packet):
                raise SourceError("is damaged: packets of its transport stream are lost or damaged")
            heads.add(packet)
        packets.add(packet)
        if frame is None:
            if fault := without_base(packet):
                raise SourceError(fault)
            coded = turn(bound(packet))
            frames = codec.decode(coded)
            frame = None if is_left_out(packet, coded) else next(iter(frames), None)
    if frame is None:
        raise SourceError("has no frame that can be decoded")
    if times.counts_ticks:
        times.hold(held_slots(data, stream.index))
    return times, frame


def _count_stored(times: PacketTimes, stream: VideoStream, data: bytes | memoryview) -> int:
    """Return how many frames of those that the header promises are there, hidden ones too; of AVI, how many ticks."""
    if times.counts_ticks:
        return times.ticks
    if times.packets >= times.promised or not times.lasts_as_coded:
        return times.packets
    # FFmpeg gives no packet for pictures that an edit list of MP4 hides, if none shown refers to them.
    options = {"format_whitelist": FORMATS, "ignore_editlist": "1"}
    with av.open(io.BytesIO(data), "r", metadata_errors="replace", options=options) as container:
        return sum(packet.size > 0 for packet in container.demux(container.streams[stream.index]))


def _shown_size(frame: VideoFrame, pixel_aspect: Fraction | None) -> tuple[int, int]:
    height, width = frame.height, frame.width
    if pixel_aspect:
        width = max(1, round(width * pixel_aspect))
    if orientation_of(frame).transposed:
        height, width = width, height
    if max(height, width) > _MAX_SIDE:
        raise SourceError(f"is shown with {width}x{height} pixels; at most {_MAX_SIDE} a side are read")
    return height, width


def _sound_codec(container: InputContainer, choice: SoundChoice) -> str:
    """Return the codec of the sound that belongs to the pictures, "unknown" without a decoder, or "none".

    Some writers announce a track and write none of it. Where no index counts its packets, the container, which was read
    to its end, is read anew up to the first one.
    """
    sound = choice.stream
    if sound is None:
        return "unknown" if choice.is_unknown else "none"
    if not sound.frames:
        try:
            container.seek(0)
            if not any(packet.size for packet in read_packets(container, sound)):
                return "none"
        except av.FFmpegError as error:  # pictures were read, and sound is taken to be there
            refuse_shortage(error)
    return sound.codec_context.codec.canonical_name
