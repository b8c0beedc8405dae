"""Films whose clocks step, in file order as captured or as a remuxer sorts it, with sound that tells its own time."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
from av.packet import Packet

from tests.cutting import sound
from tests.media import numbered_frame, read_numbers

RATE, SOUND_RATE = 25, 44100
_MS = Fraction(1, 1000)
_SCENES = (150, 75)  # a clip begins behind the step, too
_TS_PACKET, _TS_TICKS = 188, 90000


@dataclass(frozen=True)
class _Stored:
    """One packet: its stream (0: pictures, 1: sound), true time and stamp in the file."""

    stream: int
    true_s: float
    data: bytes
    key: bool
    stamp_s: float = 0.0


def noise(seconds: float) -> np.ndarray:
    """Noise that is like itself at no other time."""
    return (np.random.default_rng(5).standard_normal(round(seconds * SOUND_RATE)) * 0.15).astype(np.float32)


@lru_cache(maxsize=4)
def _film(suffix: str, b_frames: int) -> tuple[list[_Stored], bytes]:
    """Return the packets of a film, and a file of it that tells a muxer of its streams."""
    buffer = io.BytesIO()
    seconds = sum(_SCENES) / RATE
    form = {".ts": "mpegts", ".mkv": "matroska", ".mp4": "mp4"}[suffix]
    with av.open(buffer, "w", format=form) as container:
        video = container.add_stream("libx264", rate=RATE)
        video.width, video.height, video.pix_fmt = 160, 128, "yuv420p"
        video.options = {"crf": "12", "mbtree": "0", "bf": str(b_frames), "g": "25"}
        video.codec_context.thread_count = 1
        heard = container.add_stream("aac", rate=SOUND_RATE, layout="mono")
        heard.bit_rate = 192000
        numbers = iter(range(sum(_SCENES)))
        for scene, frames in enumerate(_SCENES):
            for number in (next(numbers) for _ in range(frames)):
                picture = av.VideoFrame.from_ndarray(numbered_frame(number, 160, 128, scene), "rgb24")
                container.mux(video.encode(picture.reformat(format="yuv420p")))
        container.mux(video.encode(None))
        samples = noise(seconds)
        for at in range(0, len(samples), 1024):
            chunk = av.AudioFrame.from_ndarray(samples[None, at : at + 1024], "fltp", "mono")
            chunk.sample_rate, chunk.pts, chunk.time_base = SOUND_RATE, at, Fraction(1, SOUND_RATE)
            container.mux(heard.encode(chunk))
        container.mux(heard.encode(None))
    with av.open(io.BytesIO(buffer.getvalue())) as container:
        begin_s = float(container.streams.video[0].start_time * container.streams.video[0].time_base)
        packets = [
            _Stored(
                packet.stream.index,
                float(packet.pts * packet.time_base) - begin_s,
                bytes(packet),
                packet.is_keyframe,
            )
            for packet in container.demux()
            if packet.size and packet.pts is not None
        ]
    # As captured: pictures in decoding order, each sound packet beside the picture of its time.
    queues = [[one for one in packets if one.stream == stream] for stream in (0, 1)]
    due_s = [[number / RATE for number in range(len(queues[0]))], [one.true_s for one in queues[1]]]
    order = sorted(
        (due_s[stream][place], stream, place) for stream in (0, 1) for place in range(len(queues[stream]))
    )
    return [queues[stream][place] for _, stream, place in order], buffer.getvalue()


def stepping(
    path: Path,
    back_s: Sequence[float],
    *,
    at_s: float = 4.0,
    resorted: bool = False,
    b_frames: int = 0,
    start_s: float = 0.5,
) -> Path:
    """Write a film of 9 s whose stamps step back.

    Args:
        path: File; its suffix is one of .ts, .mkv and .mp4 (there only pictures can step).
        back_s: Step back of pictures and of sound.
        at_s: True time of the step.
        resorted: Whether the file's order follows the stamps, as a remuxer leaves it.
        b_frames: B-frames in a row.
        start_s: Stamp of the first picture.
    """
    packets, whole = _film(path.suffix, b_frames)
    stamped = [
        _Stored(
            one.stream,
            one.true_s,
            one.data,
            one.key,
            start_s + one.true_s - back_s[one.stream] * (one.true_s >= at_s - 1e-9),
        )
        for one in packets
    ]
    if resorted:
        stamped = _sorted_by_stamps(stamped)
    {".ts": _write_ts, ".mkv": _write_mkv, ".mp4": _write_mp4}[path.suffix](path, stamped, whole)
    return path


def _sorted_by_stamps(packets: list[_Stored]) -> list[_Stored]:
    """Return packets as an interleaving muxer writes them: the earlier one of the two that wait."""
    waiting = [[one for one in packets if one.stream == stream][::-1] for stream in (0, 1)]
    found = []
    while any(waiting):
        queue = min((queue for queue in waiting if queue), key=lambda queue: queue[-1].stamp_s)
        found.append(queue.pop())
    return found


def _streams(container, whole: bytes):  # type: ignore[no-untyped-def]
    with av.open(io.BytesIO(whole)) as source:
        return [container.add_stream_from_template(stream) for stream in source.streams]


def _write_mkv(path: Path, packets: list[_Stored], whole: bytes) -> None:
    """Matroska stores one stamp a packet, so decoding times only order the packets here."""
    with av.open(str(path), "w", options={"avoid_negative_ts": "disabled"}) as container:
        streams = _streams(container, whole)
        for place, one in enumerate(packets):
            packet = Packet(one.data)
            packet.stream, packet.time_base, packet.is_keyframe = streams[one.stream], _MS, one.key
            packet.pts, packet.dts = round(one.stamp_s * 1000), place - 100000
            container.mux_one(packet)


def _write_mp4(path: Path, packets: list[_Stored], whole: bytes) -> None:
    """Decoding times rise in MP4, so pictures alone can step, by their composition offsets."""
    tick = Fraction(1, 12800)
    with av.open(str(path), "w", options={"video_track_timescale": "12800"}) as container:
        streams = _streams(container, whole)
        number = 0
        pictures = [one for one in packets if one.stream == 0]
        first_s = min(one.stamp_s - place / RATE for place, one in enumerate(pictures))
        for one in packets:
            packet = Packet(one.data)
            packet.stream, packet.time_base, packet.is_keyframe = streams[one.stream], tick, one.key
            packet.pts = packet.dts = round(one.stamp_s / tick)
            if one.stream == 0:
                packet.dts = round((first_s + number / RATE) / tick)
                number += 1
            container.mux_one(packet)


def _write_ts(path: Path, packets: list[_Stored], whole: bytes) -> None:
    """Transport streams store any stamp, but FFmpeg writes none that steps back: they are put in afterwards."""
    tick = Fraction(1, _TS_TICKS)
    with av.open(str(path), "w", options={"pes_payload_size": "0"}) as container:
        streams = _streams(container, whole)
        for place, one in enumerate(packets):
            packet = Packet(one.data)
            packet.stream, packet.time_base, packet.is_keyframe = streams[one.stream], tick, one.key
            packet.pts = packet.dts = 100 * (place + 1)
            container.mux_one(packet)
    data = bytearray(path.read_bytes())
    stamps = [iter([one.stamp_s for one in packets if one.stream == stream]) for stream in (0, 1)]
    for at in range(0, len(data), _TS_PACKET):
        begins, fields = data[at + 1] & 0x40, data[at + 3] >> 4 & 3
        pes = at + 4 + (1 + data[at + 4] if fields & 2 else 0)
        if begins and fields & 1 and data[pes : pes + 3] == b"\x00\x00\x01" and data[pes + 3] >= 0xC0:
            ticks = round(next(stamps[data[pes + 3] < 0xE0]) * _TS_TICKS)
            _put_stamp(data, pes + 9, ticks)
    path.write_bytes(data)


def _put_stamp(data: bytearray, at: int, ticks: int) -> None:
    """Write 33 bits of ISO/IEC 13818-1, 2.4.3.6, keeping the marker bits."""
    parts = (ticks >> 29 & 0xE, ticks >> 22, ticks >> 14 & 0xFE, ticks >> 7, ticks << 1 & 0xFE)
    for place, (part, keep) in enumerate(zip(parts, (0xF1, 0, 1, 0, 1), strict=True)):
        data[at + place] = data[at + place] & keep | part & 0xFF & ~keep


def errors_s(clip: bytes, window_s: float = 0.3) -> list[tuple[float, float]]:
    """Return (true time, seconds by which the sound comes late) over a clip, where the sound is whole."""
    numbers = read_numbers(clip)
    heard, rate, first = sound(clip)
    assert rate == SOUND_RATE
    track = np.concatenate([np.zeros(max(first, 0), np.float32), heard[0][max(0, -first) :]])
    truth = noise(sum(_SCENES) / RATE)
    length = round(window_s * rate)
    size = 1 << (len(truth) + length).bit_length()
    whole = np.fft.rfft(truth, size)
    found = []
    for begin in range(0, len(numbers) - round(window_s * RATE), 10):
        piece = track[begin * rate // RATE :][:length]
        run = numbers[begin : begin + round(window_s * RATE) + 1]
        if len(piece) < length or any(after != before + 1 for before, after in pairwise(run)):
            continue
        alike = np.fft.irfft(whole * np.conj(np.fft.rfft(piece, size)), size)[: len(truth)]
        place = int(np.argmax(alike))
        if alike[place] > 0.5 * np.sqrt((piece**2).sum() * (truth[place : place + length] ** 2).sum()):
            found.append((run[0] / RATE, run[0] / RATE - place / rate))
        else:
            found.append((run[0] / RATE, float("nan")))
    return found
