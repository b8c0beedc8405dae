"""Clips are exact: real files in many shapes, cut and decoded again."""

import io
import itertools
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from curate.config import CurateConfig
from curate.cut import Clip, CutConfig, cut
from curate.spans import Span
from curate.stages import scan
from tests.media import CORPUS, NO_CORPUS, read_numbers, write_video


def cut_all(path: Path, bounds: list[tuple[int, int]] | None = None) -> tuple[list[Clip], object]:
    with path.open("rb") as file:
        seen = scan(file, CurateConfig())
        times_s = seen.timeline.times_s
        spans = [
            Span(first, last, float(times_s[first]), float(times_s[last]))
            for first, last in bounds or [(0, seen.timeline.frames)]
        ]
        clips = list(cut(file, seen.timeline, spans, seen.size, CutConfig()))
    assert all(isinstance(clip, Clip) for clip in clips), clips
    return clips, seen


def describe(data: bytes) -> dict[str, object]:
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0]
        times = [frame.pts * stream.time_base for frame in container.decode(stream)]
        return {
            "codec": stream.codec_context.name,
            "pix_fmt": stream.codec_context.pix_fmt,
            "size": (stream.codec_context.width, stream.codec_context.height),
            "frames": len(times),
            "gaps": {b - a for a, b in itertools.pairwise(times)},
            "first": times[0],
        }


CONSTANT = {
    "mp4": ("a.mp4", {}),
    "10-bit": ("a.mp4", {"pix_fmt": "yuv420p10le"}),
    "4:4:4": ("a.mp4", {"pix_fmt": "yuv444p"}),
    "4:4:4 odd size": ("a.mp4", {"pix_fmt": "yuv444p", "size": (161, 127)}),
    "matroska 29.97 with millisecond ticks": ("a.mkv", {"rate": Fraction(30000, 1001)}),
    "B-frames in AVI": ("a.avi", {"options": {"bf": "2"}}),
    "mpeg4 in AVI": ("a.avi", {"codec": "mpeg4"}),
    "vp9 in webm": ("a.webm", {"codec": "libvpx-vp9", "options": {"cpu-used": "8", "deadline": "realtime"}}),
    "transport stream starting late": ("a.ts", {"start_s": 77.0}),
    "mp4 starting late": ("a.mp4", {"start_s": 3.3}),
    "with sound": ("a.mp4", {"audio": True}),
    "full range": ("a.mp4", {"pix_fmt": "yuvj420p"}),
}


@pytest.mark.parametrize("kind", CONSTANT)
def test_constant_rate_sources_keep_their_frames_one_for_one(kind: str, tmp_path: Path) -> None:
    name, options = CONSTANT[kind]
    path = write_video(tmp_path / name, (40, 35), **options)
    clips, _ = cut_all(path, [(0, 13), (13, 40), (41, 75)])
    assert [read_numbers(clip.data) for clip in clips] == [
        list(range(13)),
        list(range(13, 40)),
        list(range(41, 75)),
    ]
    width, height = options.get("size", (160, 128))
    for clip in clips:
        seen = describe(clip.data)
        assert seen["codec"] == "h264"
        assert seen["pix_fmt"] == "yuv420p"
        assert (
            seen["size"]
            == (width - width % 2, height - height % 2)
            == (clip.geometry.width, clip.geometry.height)
        )
        assert seen["frames"] == clip.frames
        assert clip.rate == options.get("rate", 25)
        assert abs(clip.frames / clip.rate - (clip.span.end_s - clip.span.start_s)) <= 0.5 / clip.rate


def test_variable_rate_becomes_constant_with_the_same_duration(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    times_s = np.cumsum(rng.choice([1 / 30, 1 / 30, 1 / 30, 5 / 30], 60)).tolist()
    path = write_video(tmp_path / "vfr.mp4", (60,), times_s=times_s)
    (clip,), seen = cut_all(path)
    assert not seen.timeline.constant
    assert clip.rate == 30
    described = describe(clip.data)
    assert described["gaps"] == {Fraction(1, 30)}
    assert abs(described["frames"] / 30 - (clip.span.end_s - clip.span.start_s)) <= 0.5 / 30
    numbers = read_numbers(clip.data)
    assert sorted(set(numbers)) == list(range(60))
    shown_s = {number: numbers.index(number) / 30 for number in set(numbers)}
    assert all(abs(shown_s[number] - (times_s[number] - times_s[0])) <= 0.5 / 30 + 1e-3 for number in shown_s)


def test_the_same_span_gives_the_same_bytes(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", (50,))
    assert cut_all(path, [(5, 30)])[0][0].data == cut_all(path, [(5, 30)])[0][0].data


def test_anamorphic_pixels_become_square(tmp_path: Path) -> None:
    path = write_video(tmp_path / "wide.mp4", (12,), options={"aspect": "2:1"}, size=(160, 128))
    with av.open(str(path)) as container:
        aspect = container.streams.video[0].codec_context.sample_aspect_ratio
    if not aspect or aspect == 1:
        pytest.skip("this encoder build does not store a pixel aspect")
    clips, seen = cut_all(path)
    assert seen.size.width == round(160 * aspect) // 2 * 2
    assert describe(clips[0].data)["size"] == (seen.size.width, 128)


def test_a_clip_opens_from_its_first_bytes(tmp_path: Path) -> None:
    clips, _ = cut_all(write_video(tmp_path / "a.mp4", (30,)))
    data = clips[0].data
    assert data.index(b"moov") < data.index(b"mdat")


corpus = pytest.mark.skipif(not CORPUS.is_dir(), reason=NO_CORPUS)


def middle_pictures(data: bytes, path: Path, number: int) -> tuple[np.ndarray, np.ndarray]:
    def frame(source: object) -> np.ndarray:
        with av.open(source) as container:
            for at, picture in enumerate(container.decode(video=0)):
                if at == number:
                    return picture.to_ndarray(format="rgb24").astype(int)
        raise AssertionError

    return frame(io.BytesIO(data)), frame(str(path))


@corpus
def test_a_phone_video_stands_upright() -> None:
    path = CORPUS / "originals/desk_lamp_rotated.mov"
    (clip,), _ = cut_all(path)
    assert describe(clip.data)["size"] == (720, 1280)
    ours, stored = middle_pictures(clip.data, path, 20)
    turned = np.rot90(stored, -1)
    assert np.abs(ours - turned).mean() < 4
    assert np.abs(ours - np.rot90(stored, 1)).mean() > 20


@corpus
@pytest.mark.parametrize("name", ["originals/nasa_telescope_hdr.mp4", "originals/misty_valley_hdr10.mp4"])
def test_hdr_becomes_sdr(name: str) -> None:
    clips, seen = cut_all(CORPUS / name, [(0, 20)])
    described = describe(clips[0].data)
    assert (described["pix_fmt"], described["frames"]) == ("yuv420p", 20)
    with av.open(io.BytesIO(clips[0].data)) as container:
        frame = next(container.decode(video=0))
        assert frame.color_trc not in (16, 18)
        brightness = frame.to_ndarray(format="gray").mean()
    assert 4 < brightness < 200
    assert seen.size.height in (180, 1080)


@corpus
@pytest.mark.parametrize(
    ("name", "frames"),
    [("highway_bridge.avi", 748), ("earth_at_night.avi", 901), ("parking_lane_cars.mp4", 377)],
)
def test_real_sources_give_all_their_frames(name: str, frames: int) -> None:
    clips, seen = cut_all(CORPUS / "originals" / name, [(0, 50), (frames - 40, frames)])
    assert seen.timeline.frames == frames
    assert seen.timeline.constant
    assert [clip.frames for clip in clips] == [50, 40]
    ours, stored = middle_pictures(clips[0].data, CORPUS / "originals" / name, 25)
    assert np.abs(ours - stored).mean() < 6
