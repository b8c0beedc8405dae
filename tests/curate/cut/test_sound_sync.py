"""Sound of any shape stays beside its pictures, whether pictures and sound are encoded or copied."""

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from reelweave.curate.cut import CutConfig
from tests.cutting import clips_of, sound
from tests.media import write_video
from tests.player import ffmpeg
from tests.thorough import but

RATE = 48000
GROUPS = {"g": "10", "bf": "3", "x264-params": "scenecut=0:keyint_min=10"}
BOUNDS = [(10, 30), (30, 60)]

# Suffix, codec, layout, start of the sound in seconds, what the clips say of it, their channels; its rate if not RATE.
SOURCES = {
    "stereo AAC": (".mp4", "aac", "stereo", 0.0, "copy:aac", 2),
    "5.1 AAC": (".mp4", "aac", "5.1", 0.0, "copy:aac", 6),
    "5.1 AC-3": (".mkv", "ac3", "5.1(side)", 0.0, "copy:ac3", 6),
    "5.1 FLAC": (".mkv", "flac", "5.1", 0.0, "aac", 2),
    "5.1 PCM": (".mov", "pcm_s16le", "5.1", 0.0, "aac", 2),
    "mono Opus": (".mkv", "libopus", "mono", 0.0, "copy:opus", 1),
    "late AAC": (".mkv", "aac", "stereo", 1.3, "aac", 2),
    "late PCM": (".mov", "pcm_s16le", "mono", 1.3, "aac", 1),
    "MP3 below what MP4 takes": (".mkv", "mp3", "mono", 0.0, "aac", 1, 11025),
}


def signal(times_s: np.ndarray) -> np.ndarray:
    """Rising tone, which sounds otherwise at every moment; silent before 0."""
    return np.where(times_s < 0, 0, 0.4 * np.sin(2 * np.pi * (150 * times_s + 120 * times_s**2)))


def write(path: Path, codec: str, layout: str, begin_s: float, rate: int = RATE) -> Path:
    """Write numbered frames of 2.4 s and a rising tone that begins with them, without its first ``begin_s`` seconds."""
    pictures = write_video(path.with_name("pictures.mp4"), (60,), options=GROUPS)
    with av.open(str(pictures)) as source, av.open(str(path), "w", options={"fflags": "+bitexact"}) as target:
        video = target.add_stream_from_template(source.streams.video[0])
        stream = target.add_stream(codec, rate=rate, layout=layout)
        kind = stream.codec_context.codec.audio_formats[0].name
        resampler = av.AudioResampler(kind, layout, rate)
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = video
                target.mux(packet)
        channels = av.AudioLayout(layout).nb_channels
        step = stream.codec_context.frame_size or 960
        for begin in range(round(begin_s * rate), round(2.4 * rate), step):
            tone = signal(np.arange(begin, begin + step) / rate).astype(np.float32)
            frame = av.AudioFrame.from_ndarray(np.tile(tone, (channels, 1)), "fltp", layout)
            frame.sample_rate, frame.pts, frame.time_base = rate, begin, Fraction(1, rate)
            for piece in resampler.resample(frame):
                target.mux(stream.encode(piece))
        target.mux(stream.encode(None))
    return path


@pytest.mark.parametrize("mode", ["encode", "copy"])
@pytest.mark.parametrize(
    "kind", but(("5.1 AAC", "late AAC", "5.1 FLAC", "MP3 below what MP4 takes"), SOURCES)
)
def test_sound_lies_beside_its_pictures(kind: str, mode: str, tmp_path: Path) -> None:
    suffix, codec, layout, begin_s, said, channels, *other = SOURCES[kind]
    path = write(tmp_path / f"a{suffix}", codec, layout, begin_s, *other)
    expected, *_ = *other, RATE
    ms = expected // 1000
    clips = clips_of(path, BOUNDS, CutConfig(mode=mode))
    assert [clip.codec_mode for clip in clips] == [mode, mode]
    assert [clip.audio for clip in clips] == [said if begin_s < 1 else "none", said]
    for clip, (first, last) in zip(clips, BOUNDS, strict=True):
        if clip.audio == "none":
            continue
        samples, rate, begin = sound(clip.data)
        assert (rate, len(samples)) == (expected, channels)
        assert abs((begin + samples.shape[1]) / rate - (last - first) / 25) < 0.05
        # 300 ms from where there is sound for sure.
        at = max(begin, 0) + round(max(0.1, begin_s - first / 25 + 0.1) * rate)
        ours = samples[0, at - begin : at - begin + 300 * ms]
        lags = range(-40 * ms, 40 * ms, ms // 4)
        likeness = [
            np.dot(ours, signal((at + lag + np.arange(len(ours))) / rate + first / 25)) for lag in lags
        ]
        assert abs(lags[int(np.argmax(likeness))]) <= ms
        if begin_s > first / 25:  # silence until it begins
            assert np.abs(samples[0, : round((begin_s - first / 25 - 0.03) * rate)]).max() < 0.05


def test_a_source_without_sound_gives_clips_without(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", (60,), options=GROUPS)
    assert [clip.audio for clip in clips_of(path, BOUNDS, CutConfig(mode="copy"))] == ["none", "none"]


def played(path: Path) -> np.ndarray:
    """Five seconds of mono sound from the first picture on, as FFmpeg's program plays it, by its stamps."""
    # At a constant rate the program would move the pictures to a grid, but not the sound.
    target = path.with_name("played.nut")
    words = f"-i {path} -fps_mode passthrough -enc_time_base:v 1:90000 -c:v rawvideo -c:a pcm_f32le -ac 1 -ar {RATE}"
    ffmpeg([*words.split(), "-y", str(target)])
    track, begin_s = np.zeros(5 * RATE), None
    pieces = []
    with av.open(str(target)) as container:
        for packet in container.demux():
            if not packet.size:
                continue
            time_s = packet.pts * packet.time_base
            if packet.stream.type == "audio":
                pieces.append((time_s, np.frombuffer(bytes(packet), "<f4")))
            elif begin_s is None or time_s < begin_s:
                begin_s = time_s
    for time_s, samples in pieces:
        at = round((time_s - begin_s) * RATE)
        heard, at = samples[max(0, -at) :], max(0, at)
        track[at : at + len(heard)] = heard
    return track


OPUS = {
    "mp4": "a.mp4",
    "mkv": "a.mkv",
    "fragmented": "a.mp4 -movflags delay_moov+frag_keyframe",
    "ts": "a.ts",
}


@pytest.mark.parametrize("kind", but(("mkv", "fragmented", "ts"), OPUS))
def test_opus_sounds_where_ffmpegs_program_plays_it(kind: str, tmp_path: Path) -> None:
    """Its first 6.5 ms are skipped: pictures and sound may begin as far apart in a file."""
    name, *options = OPUS[kind].split()
    noise = np.random.default_rng(0).normal(0, 0.1, 3 * RATE) * (np.arange(3 * RATE) // 2400 % 5 == 0)
    (tmp_path / "noise.raw").write_bytes(noise.astype("<f4").tobytes())
    pictures = write_video(tmp_path / "pictures.mp4", (75,), options={"g": "25"})
    path = tmp_path / name
    sources = f"-i {pictures} -f f32le -ar {RATE} -ac 1 -i {tmp_path / 'noise.raw'}"
    words = f"{sources} -c:v libx264 -c:a libopus -b:a 128k {' '.join(options)} -y {path}"
    ffmpeg(words.split())
    expected = played(path)
    for clip, first in zip(clips_of(path, [(0, 40), (40, 75)]), (0, 40), strict=True):
        clipped = tmp_path / "clip.mp4"
        clipped.write_bytes(clip.data)
        ours, theirs = played(clipped)[: RATE * 5 // 4], expected[first * RATE // 25 :][: RATE * 5 // 4]
        likeness = np.fft.irfft(np.fft.rfft(ours, 1 << 17) * np.conj(np.fft.rfft(theirs, 1 << 17)))
        late = int(likeness.argmax())
        assert abs(late - (1 << 17) * (late > 1 << 16)) <= RATE // 1000  # a tick of Matroska


@pytest.mark.parametrize("codec", but(("mp2", "aac"), ("mp2", "aac", "ac3", "libmp3lame")))
@pytest.mark.parametrize("second", but(("-ar 32000 -ac 2",), ("-ar 32000 -ac 2", "-ar 32000", "-ac 2")))
def test_sound_goes_on_where_its_rate_or_channels_change(codec: str, second: str, tmp_path: Path) -> None:
    for name, options in (("a", "-ar 48000 -ac 1"), ("b", second)):
        source = "-f lavfi -i color=gray:s=64x64:r=25:d=2 -f lavfi -i sine=500:d=2"
        words = f"{source} -c:v libx264 -c:a {codec} -ar 48000 -ac 1 {options} -y {tmp_path / name}.ts"
        ffmpeg(words.split())
    (tmp_path / "list").write_text("file a.ts\nfile b.ts\n")
    path = tmp_path / "joined.ts"
    ffmpeg(f"-f concat -i {tmp_path / 'list'} -c copy -y {path}".split())
    over, behind = clips_of(path, [(0, 75), (75, 100)])
    for clip in (over, behind):
        assert clip.audio_fault is None
        samples, rate, _ = sound(clip.data)
        assert samples.shape[1] / rate == pytest.approx(float(clip.frames / clip.rate), abs=0.06)
        for begin in np.arange(0.2, samples.shape[1] / rate - 0.4, 0.2):
            heard = samples[0, round(begin * rate) : round((begin + 0.2) * rate)]
            loudest = np.abs(np.fft.rfft(heard * np.hanning(len(heard)))).argmax() * rate / len(heard)
            assert loudest == pytest.approx(500, abs=6), (begin, rate)
            assert np.abs(heard).max() > 0.02
