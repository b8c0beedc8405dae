"""FLV whose clock begins anew between key frames: laps of 2^31 and 2^24 ms, and restarts."""

import struct
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from tests.cutting import curated, sound
from tests.media import read_numbers, write_video
from tests.player import ffmpeg
from tests.thorough import but

LAP_S = 2**31 // 1000
BEFORE_S = (2, 3.2)


@pytest.mark.parametrize("before_s", but((2,), BEFORE_S))
def test_sound_and_pictures_go_on_behind_a_lap_of_the_clock(before_s: float, tmp_path: Path) -> None:
    film = write_video(tmp_path / "film.mp4", (100,), audio=True)
    path = tmp_path / "server.flv"
    ffmpeg(f"-i {film} -c copy -output_ts_offset {LAP_S - before_s} -y {path}".split())
    (record, clip), *others = curated(path, tmp_path / "out")
    assert not others
    assert (record.state, record.frames, record.fps) == ("kept", 100, 25.0)
    assert read_numbers(clip) == list(range(100))
    assert record.audio == "copy:aac"
    samples, rate, begin = sound(clip)
    assert Fraction(begin + samples.shape[1], rate) > Fraction(39, 10)
    loudness = np.abs(samples[0, 4096 : 3 * rate + 4096]).reshape(-1, 300).max(1)
    assert loudness.min() > 0.5  # nowhere silent


@pytest.mark.parametrize(
    ("lap", "from_ms"), but(((0, 2200),), ((0, 2200), (2**24, 2200), (2**24, 3120))), ids=str
)
def test_pictures_and_sound_stay_together_where_a_clock_begins_anew_between_key_frames(
    lap: int, from_ms: int, tmp_path: Path
) -> None:
    film = write_video(tmp_path / "film.mp4", (100,), audio=True)
    path = tmp_path / "camera.flv"
    ffmpeg(f"-i {film} -c copy -y {path}".split())
    if lap:
        path.write_bytes(restamp(path.read_bytes(), lambda ms: (ms - from_ms) % lap))
    else:
        path.write_bytes(restamp(path.read_bytes(), lambda ms: ms - from_ms if ms >= from_ms else ms))
    (record, clip), *others = curated(path, tmp_path / "out")
    assert not others
    assert (record.state, record.frames, record.reason) == ("kept", 100, "")
    assert read_numbers(clip) == list(range(100))
    samples, rate, begin = sound(clip)
    assert Fraction(begin + samples.shape[1], rate) > Fraction(39, 10)


def restamp(media: bytes, stamp: Callable[[int], int]) -> bytes:
    """Give all tags of pictures and sound in an FLV another stamp, milliseconds."""
    tags, at = bytearray(media), 13
    while at + 11 <= len(tags):
        if tags[at] in (8, 9):
            (low, high) = struct.unpack_from(">3sB", tags, at + 4)
            ms = stamp(high << 24 | int.from_bytes(low, "big"))
            struct.pack_into(">3sB", tags, at + 4, (ms & 0xFFFFFF).to_bytes(3, "big"), ms >> 24)
        at += 15 + int.from_bytes(tags[at + 1 : at + 4], "big")
    return bytes(tags)


def test_sound_that_ends_before_the_pictures_is_said(tmp_path: Path) -> None:
    path = tmp_path / "short.mp4"
    words = "-f lavfi -i testsrc2=s=160x128:r=25:d=4 -f lavfi -i sine=d=2.5 -c:v libx264 -pix_fmt yuv420p -y"
    ffmpeg([*words.split(), str(path)])
    ((record, _),) = curated(path, tmp_path / "out", stitch={"enabled": False})
    assert (record.state, record.reason) == ("kept", "the sound of its source ends before the pictures")


def test_sound_that_goes_on_behind_the_pictures_is_said(tmp_path: Path) -> None:
    path = tmp_path / "long.mp4"
    words = "-f lavfi -i testsrc2=s=160x128:r=25:d=2.5 -f lavfi -i sine=d=4 -c:v libx264 -pix_fmt yuv420p -y"
    ffmpeg([*words.split(), str(path)])
    ((record, _),) = curated(path, tmp_path / "out", stitch={"enabled": False})
    assert (record.state, record.frames) == ("kept", 63)
    assert record.reason == "the sound of its source goes on behind the pictures, which clips leave out"


@pytest.mark.parametrize(
    ("name", "words"), [("a.asf", "-c:v wmv2 -c:a wmav2"), ("a.mkv", "-frames:v 1 -c:v libx264 -c:a ac3")]
)
def test_a_film_whose_sound_is_longer_is_not_cut_off(name: str, words: str, tmp_path: Path) -> None:
    """ASF states one duration, and FFmpeg gives it to the single picture of a film in Matroska."""
    path = tmp_path / name
    ffmpeg(f"-f lavfi -i testsrc2=s=160x128:r=25:d=3 -f lavfi -i sine=d=5 {words} -y {path}".split())
    records = [record for record, _ in curated(path, tmp_path / "out", stitch={"enabled": False})]
    assert [record.state for record in records] == [records[0].state] != ["failed"]
