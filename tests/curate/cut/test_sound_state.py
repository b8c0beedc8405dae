"""A clip that begins within a film has the film's sound from its first sample, whatever its decoder carries along."""

import wave
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from reelweave.curate.cut import CutConfig
from tests.cutting import clips_of, sound
from tests.player import ffmpeg
from tests.thorough import but

RATE = 48000
BEGIN = 70  # frame of 25 a second: within a packet of WavPack, which has a second

# Container, codec of the pictures, and of the sound with its options.
SOURCES = {
    "MP3": ("mkv", "mpeg4", "libmp3lame -b:a 128k"),
    "LPCM of 24 bits": ("vob", "mpeg2video", "pcm_dvd -sample_fmt s32 -ac 2 -f dvd"),
    "MP3 of 32 kbit/s": ("avi", "mpeg4", "libmp3lame -b:a 32k"),
    "MP3 of half the rate": ("mkv", "mpeg4", "libmp3lame -b:a 16k -ar 24000"),
    "WavPack": ("mkv", "mpeg4", "wavpack -frame_size 48000"),
    "WMA": ("asf", "msmpeg4v3", "wmav1 -b:a 64k"),
    "ADPCM of Yamaha": ("mkv", "mpeg4", "adpcm_yamaha"),
}


def write(folder: Path, kind: str) -> Path:
    """Write four seconds of moving pictures and noise, which sounds otherwise at every moment."""
    suffix, codec, sound_words = SOURCES[kind]
    noise = np.random.default_rng(1).normal(0, 1, 4 * RATE)
    smooth = np.convolve(noise, np.hanning(25), "same")
    with wave.open(str(folder / "noise.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((smooth / np.abs(smooth).max() * 12000).astype("<i2").tobytes())
    pictures = f"-f lavfi -i testsrc=s=160x128:r=25:d=4 -i {folder / 'noise.wav'} -c:v {codec} -bf 0 -q:v 3"
    path = folder / f"a.{suffix}"
    ffmpeg([*f"{pictures} -c:a {sound_words} -y {path}".split()])
    return without_durations(path) if kind == "WavPack" else path


def without_durations(path: Path) -> Path:
    """Copy a film, and state the duration of no packet, as mkvmerge and older FFmpeg do."""
    target_path = path.with_name("b.mkv")
    with av.open(str(path)) as source, av.open(str(target_path), "w") as target:
        streams = [target.add_stream_from_template(stream) for stream in source.streams]
        for packet in source.demux():
            if packet.size:
                packet.stream, packet.duration = streams[packet.stream.index], 0
                target.mux(packet)
    return target_path


def first_channel(data: bytes) -> NDArray[np.float32]:
    samples, _, begin = sound(data)
    return samples[0, -begin:] if begin < 0 else np.pad(samples[0], (begin, 0))


@pytest.mark.parametrize("kind", but(("MP3", "LPCM of 24 bits", "WavPack"), SOURCES))
def test_a_clip_begins_with_the_sound_of_its_film(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path, kind)
    whole, part = clips_of(path, [(0, 100)], CutConfig()), clips_of(path, [(0, 30), (BEGIN, 98)], CutConfig())
    film, clip = first_channel(whole[0].data), first_channel(part[1].data)
    rate = sound(part[1].data)[1]
    at, size = round(BEGIN / 25 * rate), round(0.03 * rate)
    for begin in (0, size):
        errors = []
        for shift in range(
            -rate // 20, rate // 20
        ):  # stamps are coarse, and AVI has an empty frame at its begin
            expected = film[at + begin + shift :][:size]
            errors.append(
                float(np.sqrt(np.mean((clip[begin:][:size] - expected) ** 2 / np.mean(expected**2))))
            )
        assert min(errors) < 0.25
