"""Pieces of Ogg by `ffmpeg -ss T -c copy`: their stamps begin below 0, which FFmpeg reads without a sign."""

import io
from pathlib import Path

import av
import numpy as np
import pytest

from reelweave.curate.frames.clocks.packet_stamps import mended_stamps
from tests.cutting import curated, sound
from tests.player import ffmpeg

CODECS = {"VP8": "libvpx -deadline realtime -cpu-used 8 -b:v 1M", "Theora": "libtheora -q:v 7"}

WHOLE = {"shots": {"detector": "fixed", "fixed": {"stride_s": 9}}, "stitch": {"enabled": False}}


def film(path: Path, encoder: str) -> Path:
    """Write a film of 7 s whose pictures are dark in odd seconds, and which sounds in the others."""
    ffmpeg(
        "-f lavfi -i testsrc2=s=160x128:r=25:d=7,lutyuv=y=val/4:enable='mod(floor(t)\\,2)' -f lavfi -i"
        f" aevalsrc=0.5*sin(2500*t)*(1-mod(floor(t)\\,2)):s=48000:d=7 -c:v {encoder} -g 20 -c:a libvorbis -q:a 5"
        f" -y {path}".split()
    )
    return path


def brightnesses(clip: bytes) -> list[float]:
    """Return the mean of each picture of a clip."""
    with av.open(io.BytesIO(clip)) as container:
        return [float(frame.to_ndarray(format="gray").mean()) for frame in container.decode(video=0)]


@pytest.mark.parametrize("codec", CODECS)
def test_sound_of_a_piece_lies_beside_its_pictures(codec: str, tmp_path: Path) -> None:
    piece = tmp_path / "piece.ogv"
    ffmpeg(f"-ss 2.3 -i {film(tmp_path / 'film.ogv', CODECS[codec])} -c copy -y {piece}".split())
    ((record, clip),) = curated(piece, tmp_path / "out", **WHOLE)
    assert (record.state, record.audio, record.reason) == ("kept", "aac", "")
    samples, rate, begin = sound(clip)
    bright = np.array(brightnesses(clip))
    is_bright = bright > (bright.max() + bright.min()) / 2
    assert 0.3 < is_bright.mean() < 0.8
    different = 0
    for number in range(3, len(bright) - 3):
        at = round((number + 0.5) / 25 * rate) - begin
        near = samples[0, at - rate // 50 : at + rate // 50]
        different += bool((float(np.sqrt((near**2).mean())) > 0.15) != is_bright[number])
    assert different <= 6  # one picture at each change


def test_what_lies_before_an_error_of_the_container_is_read(tmp_path: Path) -> None:
    """FFmpeg writes pieces with Opus that it does not read beyond the first page."""
    whole, piece = tmp_path / "film.ogv", tmp_path / "piece.ogv"
    words = "-f lavfi -i testsrc2=s=160x128:r=25:d=4 -f lavfi -i sine=d=4 -c:v libtheora -c:a libopus -y"
    ffmpeg([*words.split(), str(whole)])
    ffmpeg(f"-ss 2.3 -i {whole} -c copy -y {piece}".split())
    assert "reading ends before the end of the file" in curated(piece, tmp_path / "out")[-1][0].reason


def test_sound_of_flac_lies_beside_its_pictures_from_the_first_page_on(tmp_path: Path) -> None:
    """The first two pages have wrong stamps, so that sound of the first second lay elsewhere."""
    whole, piece = tmp_path / "film.ogv", tmp_path / "piece.ogv"
    chirp = "aevalsrc=sin(2*PI*(200+200*t)*t):s=48000:d=7"  # 200 Hz, and 400 more each second
    words = f"-f lavfi -i testsrc2=s=160x128:r=25:d=7 -f lavfi -i {chirp} -c:v libtheora -c:a flac -y {whole}"
    ffmpeg(words.split())
    ffmpeg(f"-ss 2.3 -i {whole} -c copy -y {piece}".split())
    ((record, clip),) = curated(piece, tmp_path / "out")
    assert record.state == "kept"
    first = 7 * 25 - record.frames
    samples, rate, begin = sound(clip)
    for second in (0.2, 0.5, 0.8, 1.2, 1.8, 3):
        at = round(second * rate) - begin
        spectrum = np.abs(np.fft.rfft(samples[0, at - 1024 : at + 1024] * np.hanning(2048), 1 << 17))
        source_s = (spectrum.argmax() * rate / (1 << 17) - 200) / 400
        assert source_s == pytest.approx(first / 25 + second, abs=0.03)


@pytest.mark.parametrize("start_s", [1, 2])
def test_sound_of_flac_in_a_piece_from_a_key_frame_on_lies_beside_its_pictures(
    start_s: int, tmp_path: Path
) -> None:
    """FFmpeg lets its first page begin with the pictures, and it begins up to a packet later."""
    whole, piece = tmp_path / "film.mkv", tmp_path / "piece.ogv"
    chirp = "aevalsrc=sin(2*PI*(200+200*t)*t):s=48000:d=5"  # 200 Hz, and 400 more each second
    codecs = "-c:v libtheora -g 25 -c:a flac -frame_size 4608"
    ffmpeg(f"-f lavfi -i testsrc2=s=160x128:r=25:d=5 -f lavfi -i {chirp} {codecs} -y {whole}".split())
    ffmpeg(f"-ss {start_s} -i {whole} -c copy -y {piece}".split())
    ((record, clip),) = curated(piece, tmp_path / "out", **WHOLE)
    assert (record.state, record.frames) == ("kept", 25 * (5 - start_s))
    samples, rate, begin = sound(clip)
    for second in (0.2, 0.5, 0.8, 1.2, 1.8):
        at = round(second * rate) - begin
        spectrum = np.abs(np.fft.rfft(samples[0, at - 1024 : at + 1024] * np.hanning(2048), 1 << 17))
        source_s = (spectrum.argmax() * rate / (1 << 17) - 200) / 400
        assert source_s == pytest.approx(start_s + second, abs=0.01)


def test_pages_of_flac_follow_one_another_in_a_whole_film(tmp_path: Path) -> None:
    path = tmp_path / "film.ogv"
    ffmpeg(
        f"-f lavfi -i testsrc2=s=64x64:d=2 -f lavfi -i sine=d=2 -c:v libtheora -c:a flac -y {path}".split()
    )
    with av.open(str(path)) as container:
        stored = [packet.pts for packet in container.demux(audio=0) if packet.size]
    with av.open(str(path)) as container:
        packets = mended_stamps(container.demux(), container.streams.video[0])
        assert [packet.pts for packet in packets if packet.size and packet.stream.type == "audio"] == stored
