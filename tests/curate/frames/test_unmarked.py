"""Frames of two fields that no flag marks: found in the pictures, deinterlaced, and said."""

import io
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from av.video.frame import VideoFrame

from reelweave.curate.frames.interlace import CombMeter
from tests.cutting import curated, pictures
from tests.media import numbered_frame
from tests.player import SIZE, ffmpeg
from tests.thorough import but

FRAMES = 36
MARKED = "-vf setfield=tff -flags +ildct"
TEST_SOURCES = ("s=192x128:r=25:d=6", "s=128x96:r=50:d=6", "s=320x240:r=25:d=2", "s=640x360:r=30:d=6")
CASES = {
    "utvideo.mov": f"-c:v utvideo -pix_fmt yuv422p {MARKED}",  # the container states the order
    "huffyuv.mkv": f"-c:v huffyuv -pix_fmt yuv422p {MARKED}",
    "huffyuv.avi": f"-c:v huffyuv -pix_fmt yuv422p {MARKED}",  # nothing states it
    "raw.avi": "-c:v rawvideo -pix_fmt yuv420p",
    "qtrle.mov": "-c:v qtrle -pix_fmt rgb24",
    "h264.mp4": "-c:v libx264 -crf 8 -pix_fmt yuv420p",  # marked as progressive by a careless conversion
    "vp9.webm": "-c:v libvpx-vp9 -crf 8 -b:v 0 -pix_fmt yuv420p -deadline realtime -cpu-used 8",
}


def moving(time: int) -> np.ndarray:
    """A bright bar that moves with time, four pixels for each field."""
    width, height = SIZE
    picture = np.full((height, width, 3), 60, np.uint8)
    picture[:, 4 * time % width :][:, :30] = 200
    return picture


def woven(path: Path, encoder: str, order: str = "tff", fields: int = 2, frames: int = FRAMES) -> Path:
    """Frames of a film with so many fields for each frame, one below the other in time, encoded by FFmpeg's program."""
    raw = []
    for frame in range(frames):
        first, second = moving(fields * frame), moving(fields * frame + fields - 1)
        upper, lower = (first, second) if order == "tff" else (second, first)
        picture = upper.copy()
        picture[1::2] = lower[1::2]
        raw.append(picture.tobytes())
    words = f"-f rawvideo -pix_fmt rgb24 -s {SIZE[0]}x{SIZE[1]} -r 25 -i - {encoder} -y {path}"
    ffmpeg(words.split(), b"".join(raw))
    return path


def comb(data: bytes | Path) -> float:
    """How much more neighbouring lines differ than those two apart, grey levels."""
    with av.open(io.BytesIO(data) if isinstance(data, bytes) else str(data)) as container:
        grey = [frame.to_ndarray(format="gray").astype(float) for frame in container.decode(video=0)]
    return float(
        np.mean([np.abs(one[1:-1] - one[2:]).mean() - np.abs(one[:-2] - one[2:]).mean() for one in grey])
    )


@pytest.mark.parametrize("name", CASES)
def test_interlaced_films_without_a_mark_have_no_comb(name: str, tmp_path: Path) -> None:
    path = woven(tmp_path / name, CASES[name])
    assert comb(path) > 2
    ((record, clip),) = curated(path, tmp_path / "out", spans={"min_clip_s": 0.5})
    assert (record.state, record.frames, record.fps) == ("kept", FRAMES, 25.0)
    assert comb(clip) < 0.3
    assert record.reason == "interlaced without a mark; deinterlaced"


@pytest.mark.parametrize("order", ["tff", "bff"])
def test_the_pictures_are_those_of_ffmpegs_deinterlacer(order: str, tmp_path: Path) -> None:
    path = woven(tmp_path / "film.avi", "-c:v rawvideo -pix_fmt yuv420p", order)
    ((_, clip),) = curated(path, tmp_path / "out", spans={"min_clip_s": 0.5}, cut={"crf": 8})
    other = tmp_path / "other.avi"
    words = f"-i {path} -vf setfield={order},bwdif=send_frame -c:v rawvideo -y {other}"
    ffmpeg(words.split())
    ours, theirs = (np.array(pictures(one), float) for one in (clip, other))
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).mean() < 1


def test_progressive_films_stay_as_they_are(tmp_path: Path) -> None:
    path = woven(tmp_path / "film.mov", CASES["utvideo.mov"], fields=1)  # marked, though not interlaced
    ((record, clip),) = curated(path, tmp_path / "out", spans={"min_clip_s": 0.5})
    kept = curated(path, tmp_path / "kept", spans={"min_clip_s": 0.5}, probe={"interlaced": "keep"})
    assert record.reason == ""
    assert clip == kept[0][1]


def test_a_film_of_which_a_part_is_interlaced_says_so(tmp_path: Path) -> None:
    parts = [
        woven(tmp_path / f"{fields}.avi", "-c:v rawvideo -pix_fmt yuv420p", fields=fields, frames=60)
        for fields in (1, 2)
    ]
    listed = tmp_path / "list.txt"
    listed.write_text("".join(f"file '{part}'\n" for part in parts))
    ffmpeg(f"-f concat -safe 0 -i {listed} -c copy -y {tmp_path / 'film.avi'}".split())
    records = curated(tmp_path / "film.avi", tmp_path / "out", spans={"min_clip_s": 0.5})
    assert {record.reason for record, _ in records if record.state == "kept"} == {
        "parts of its source are interlaced without a mark; left as they are"
    }


def test_films_that_are_to_be_rejected_are_rejected_without_a_mark_too(tmp_path: Path) -> None:
    path = woven(tmp_path / "film.mkv", CASES["huffyuv.mkv"])
    ((record, _),) = curated(path, tmp_path / "out", probe={"interlaced": "reject"})
    assert record.state == "failed"
    assert record.reason == "is interlaced without a mark; probe.interlaced is set to reject it"


def _hard_pictures(kind: str, number: int) -> np.ndarray:
    width, height = SIZE
    noise = np.random.default_rng(0).integers(0, 255, (height, width, 3), np.uint8)
    if kind == "noise":
        return np.random.default_rng(number).integers(0, 255, (height, width, 3), np.uint8)
    if kind == "lines":  # of one row each, which change places with every frame
        picture = np.full((height, width, 3), 200, np.uint8)
        picture[number % 2 :: 2] = 50
        return picture
    if kind == "dots":  # of a dithered animation that moves sideways
        return (
            np.roll(np.indices((height, width)).sum(0) % 2 * 200, number, 1)[..., None]
            .repeat(3, 2)
            .astype(np.uint8)
        )
    steps = {"up by one": 1, "up by two": 2, "up by three": 3, "down by one": -1}
    return np.roll(noise, -steps[kind] * number, 0)


@pytest.mark.parametrize(
    "kind", ["noise", "lines", "dots", "up by one", "up by two", "up by three", "down by one"]
)
def test_fine_lines_noise_and_credits_are_not_taken_for_fields(kind: str) -> None:
    meter = CombMeter()
    for number in range(120):
        frame = VideoFrame.from_ndarray(_hard_pictures(kind, number), "rgb24").reformat(format="yuv420p")
        frame.time_base = Fraction(1, 25)
        meter.push(frame)
    assert meter.order(stated=True) is None
    assert not meter.some()


@pytest.mark.parametrize("source", but(("s=192x128:r=25:d=6",), TEST_SOURCES, TEST_SOURCES[1:3]))
def test_ffmpegs_test_source_is_not_taken_for_fields(source: str, tmp_path: Path) -> None:
    path = tmp_path / "film.mkv"
    ffmpeg(f"-f lavfi -i testsrc2={source} -c:v ffv1 -pix_fmt yuv420p -y {path}".split())
    records = curated(path, tmp_path / "out", spans={"min_clip_s": 0.2})
    assert {record.reason for record, _ in records if record.state == "kept"} == {""}
    woven_source = f"{source.replace('d=2', 'd=8')} -vf tinterlace=interleave_top,setfield=prog"
    ffmpeg(f"-f lavfi -i testsrc2={woven_source} -c:v ffv1 -y {path}".split())
    records = curated(path, tmp_path / "woven", spans={"min_clip_s": 0.2})
    reasons = {record.reason for record, _ in records if record.state == "kept"}
    assert reasons == {"interlaced without a mark; deinterlaced"}


@pytest.mark.parametrize(
    ("name", "rate"),
    but((("a.mp4", 5), ("a.gif", 10)), [(n, r) for n in ("a.mp4", "a.gif", "a.apng") for r in (5, 10)]),
)
def test_few_frames_a_second_are_not_taken_for_fields(name: str, rate: int, tmp_path: Path) -> None:
    path = tmp_path / name
    form = {".mp4": "-c:v libx264 -pix_fmt yuv420p", ".apng": "-f apng"}.get(path.suffix, "")
    ffmpeg(f"-f lavfi -i testsrc2=s=192x128:r={rate}:d=6 {form} -y {path}".split())
    records = curated(path, tmp_path / "out", spans={"min_clip_s": 0.2})
    assert {record.reason for record, _ in records if record.state == "kept"} == {""}


@pytest.mark.parametrize("rows", [-2, -1, 1, 2, 3, 4])
def test_pictures_that_move_up_or_down_as_a_whole_are_not_taken_for_fields(rows: int) -> None:
    """By even rows the frame before and the one after fit as fields of two moments would."""
    whole, meter = numbered_frame(0, 320, 960, scene=2), CombMeter()
    for number in range(120):
        picture = np.roll(whole, rows * number, 0)[:240]
        frame = VideoFrame.from_ndarray(picture, "rgb24").reformat(format="yuv420p")
        frame.time_base = Fraction(1, 25)
        meter.push(frame)
    assert meter.order(stated=False) is None
    assert not meter.some()
