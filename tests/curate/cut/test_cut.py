"""Clips are exact: real files in many shapes, cut and decoded again."""

import io
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from reelweave.curate.cut import CutClip, CutConfig, FailedClip, cut
from reelweave.curate.cut.clip import CutError
from reelweave.curate.cut.encode import nvenc_fault
from reelweave.curate.cut.verify import verify
from reelweave.curate.frames.picture import Geometry
from reelweave.curate.shots.spans import Span
from tests.cutting import clips_of, cut_file, describe, look
from tests.media import CORPUS, NO_CORPUS, read_number, read_numbers, sound_first, write_video
from tests.thorough import beyond, but

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


@pytest.mark.parametrize(
    "kind",
    but(("B-frames in AVI", "matroska 29.97 with millisecond ticks", "10-bit"), CONSTANT),
)
def test_constant_rate_sources_keep_their_frames_one_for_one(kind: str, tmp_path: Path) -> None:
    name, options = CONSTANT[kind]
    path = write_video(tmp_path / name, (40, 35), **options)
    clips = clips_of(path, [(0, 13), (13, 40), (41, 75)])
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
        assert clip.codec_mode == "encode"


@pytest.mark.parametrize("b_frames", beyond(1, ["2", "0"]))
def test_an_avi_whose_ticks_are_half_a_frame_keeps_its_speed(b_frames: str, tmp_path: Path) -> None:
    """FFmpeg leaves such files where it copies H.264 into AVI, with empty packets in between."""
    source = write_video(tmp_path / "a.ts", (40, 35), options={"bf": b_frames})
    with av.open(str(source)) as film, av.open(str(tmp_path / "a.avi"), "w") as copy:
        stream = copy.add_stream_from_template(film.streams.video[0])
        stream.time_base = Fraction(1, 50)
        for packet in film.demux(video=0):
            if packet.size:
                packet.stream = stream
                copy.mux(packet)
    (clip,) = clips_of(tmp_path / "a.avi")
    assert (clip.rate, read_numbers(clip.data)) == (25, list(range(75)))


def test_pictures_behind_the_sound_are_cut_to_the_last_frame(tmp_path: Path) -> None:
    path = sound_first(write_video(tmp_path / "a.mp4", (40, 35), audio=True, options={"bf": "2"}))
    first, second = clips_of(path, [(0, 40), (40, 75)])
    assert read_numbers(first.data) == list(range(40))
    assert read_numbers(second.data) == list(range(40, 75))


def test_variable_rate_becomes_constant_with_the_same_duration(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    times_s = np.cumsum(rng.choice([1 / 30, 1 / 30, 1 / 30, 5 / 30], 60)).tolist()
    path = write_video(tmp_path / "vfr.mp4", (60,), times_s=times_s)
    assert not look(path).timeline.constant
    (clip,) = clips_of(path)
    assert clip.rate == 30
    described = describe(clip.data)
    assert described["gaps"] == {Fraction(1, 30)}
    assert abs(described["frames"] / 30 - (clip.span.end_s - clip.span.start_s)) <= 0.5 / 30
    numbers = read_numbers(clip.data)
    assert sorted(set(numbers)) == list(range(60))
    shown_s = {number: numbers.index(number) / 30 for number in set(numbers)}
    assert all(abs(shown_s[number] - (times_s[number] - times_s[0])) <= 0.5 / 30 + 1e-3 for number in shown_s)


def test_the_same_span_gives_the_same_bytes(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", (50,), audio=True)
    first, second = (clips_of(path, [(5, 30)])[0] for _ in range(2))
    assert first.audio == "copy:aac"
    assert first.data == second.data


def test_anamorphic_pixels_become_square(tmp_path: Path) -> None:
    path = write_video(tmp_path / "wide.mp4", (12,), options={"aspect": "2:1"}, size=(160, 128))
    with av.open(str(path)) as container:
        aspect = container.streams.video[0].codec_context.sample_aspect_ratio
    if not aspect or aspect == 1:
        pytest.skip("this encoder build does not store a pixel aspect")
    (clip,) = clips_of(path)
    assert clip.geometry.width == round(160 * aspect) // 2 * 2
    assert describe(clip.data)["size"] == (clip.geometry.width, 128)


def test_a_clip_opens_from_its_first_bytes(tmp_path: Path) -> None:
    for audio in (False, True):
        (clip,) = clips_of(write_video(tmp_path / "a.mp4", (30,), audio=audio))
        assert clip.data.index(b"moov") < clip.data.index(b"mdat")
        assert read_numbers(clip.data) == list(range(30))


def test_every_frame_of_the_spans_is_observed_once_before_its_clip(tmp_path: Path) -> None:
    path = write_video(tmp_path / "odd.mp4", (40,), pix_fmt="yuv444p", size=(161, 127))
    seen = look(path)
    wanted = seen.spans([(3, 10), (12, 20)])
    events: list[tuple[int, int]] = []
    shapes = set()

    def observe(span: Span, number: int, decoded: av.VideoFrame, finished: av.VideoFrame) -> None:
        events.append((span.first, number))
        shapes.add((decoded.format.name, decoded.width, finished.format.name, finished.width))
        assert read_number(decoded.to_ndarray(format="rgb24")) == number

    with path.open("rb") as file:
        for clip in cut(file, seen.timeline, wanted, seen.size, CutConfig(), observe):
            events.append((clip.span.first, -1))
    assert events == [
        *((3, number) for number in range(3, 10)),
        (3, -1),
        *((12, number) for number in range(12, 20)),
        (12, -1),
    ]
    assert shapes == {("yuv444p", 161, "yuv420p", 160)}


def test_an_observer_changes_nothing_and_sees_frames_as_decoded(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", (60,), start_s=2.0)
    stamps: list[tuple[int | None, object]] = []

    def observe(span: Span, number: int, decoded: av.VideoFrame, finished: av.VideoFrame) -> None:
        stamps.append((decoded.pts, decoded.pict_type))
        finished.pts, finished.pict_type = 7, 1
        decoded.time_base = Fraction(1, 3)

    plain, watched = clips_of(path, [(20, 45)]), clips_of(path, [(20, 45)], observe=observe)
    assert [clip.data for clip in plain] == [clip.data for clip in watched]
    with av.open(str(path)) as container:
        decoded = [(frame.pts, frame.pict_type) for frame in container.decode(video=0)]
    assert stamps == decoded[20:45]


def test_one_bad_span_does_not_cost_its_neighbours(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", (40,))
    seen = look(path)
    times_s = np.arange(91) / 25  # more frames than there are
    longer = replace(seen.timeline, times_s=times_s)
    wanted = [Span(first, last, first / 25, last / 25) for first, last in ((2, 12), (30, 50), (60, 70))]
    with path.open("rb") as file:
        good, cut_off, missing = cut(file, longer, wanted, seen.size, CutConfig())
    assert isinstance(good, CutClip)
    assert read_numbers(good.data) == list(range(2, 12))
    for failed in (cut_off, missing):
        assert isinstance(failed, FailedClip)
        assert failed.reason == "its frames could not be decoded a second time"


def test_an_encoder_that_cannot_work_fails_each_span_in_words(tmp_path: Path) -> None:
    if nvenc_fault() is None:
        pytest.skip("this machine has NVENC")
    path = write_video(tmp_path / "a.mp4", (40,))
    results = cut_file(path, [(0, 10), (10, 20)], CutConfig(encoder="nvenc"))
    assert [type(result) for result in results] == [FailedClip, FailedClip]
    assert all("h264_nvenc does not work on this machine" in result.reason for result in results)


def test_the_encoder_is_chosen_by_what_works(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", (12,))
    (clip,) = clips_of(path, config=CutConfig(encoder="auto"))
    assert read_numbers(clip.data) == list(range(12))
    if nvenc_fault() is not None:
        assert clip.data == clips_of(path)[0].data


def spoilt(data: bytes, packet: int, kind: str = "video") -> bytes:
    """A clip one packet of which, counted from the end, is noise."""
    with av.open(io.BytesIO(data)) as container:
        packets = [found for found in container.demux(**{kind: 0}) if found.size]
    place, size = packets[packet].pos, packets[packet].size
    noise = np.random.default_rng(3).integers(0, 256, size, np.uint8).tobytes()
    return data[:place] + noise + data[place + size :]


@pytest.mark.parametrize("packet", [0, -1, -3])
def test_verification_finds_damage_at_both_ends(packet: int, tmp_path: Path) -> None:
    config = CutConfig(keyframe_every=12)
    (clip,) = clips_of(write_video(tmp_path / "a.mp4", (40,)), config=config)
    verify(clip.data, 40, clip.rate, clip.geometry, sound=False)
    with pytest.raises(CutError):
        verify(spoilt(clip.data, packet), 40, clip.rate, clip.geometry, sound=False)


def test_verification_of_the_whole_finds_damage_in_the_middle(tmp_path: Path) -> None:
    config = CutConfig(keyframe_every=12)
    (clip,) = clips_of(write_video(tmp_path / "a.mp4", (60,)), config=config)
    with pytest.raises(CutError):
        verify(spoilt(clip.data, 24), 60, clip.rate, clip.geometry, sound=False, extent="whole")


@pytest.mark.parametrize(
    ("frames", "rate", "size", "sound"),
    [
        (39, Fraction(25), Geometry(160, 128), False),
        (40, Fraction(24), Geometry(160, 128), False),
        (40, Fraction(25), Geometry(128, 160), False),
        (40, Fraction(25), Geometry(160, 128), True),
    ],
)
def test_verification_compares_what_the_index_promises(
    frames: int, rate: Fraction, size: Geometry, sound: bool, tmp_path: Path
) -> None:
    (clip,) = clips_of(write_video(tmp_path / "a.mp4", (40,)))
    with pytest.raises(CutError):
        verify(clip.data, frames, rate, size, sound=sound)


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
    (clip,) = clips_of(path, [(0, 24)])
    assert describe(clip.data)["size"] == (720, 1280)
    ours, stored = middle_pictures(clip.data, path, 20)
    turned = np.rot90(stored, -1)
    assert np.abs(ours - turned).mean() < 4
    assert np.abs(ours - np.rot90(stored, 1)).mean() > 20


@corpus
@pytest.mark.parametrize(
    "name", beyond(1, ["originals/nasa_telescope_hdr.mp4", "originals/misty_valley_hdr10.mp4"])
)
def test_hdr_becomes_sdr(name: str) -> None:
    (clip,) = clips_of(CORPUS / name, [(0, 12)])
    described = describe(clip.data)
    assert (described["pix_fmt"], described["frames"]) == ("yuv420p", 12)
    with av.open(io.BytesIO(clip.data)) as container:
        frame = next(container.decode(video=0))
        assert frame.color_trc not in (16, 18)
        brightness = frame.to_ndarray(format="gray").mean()
    assert 4 < brightness < 200
    assert clip.geometry.height in (180, 1080)


REAL = [("highway_bridge.avi", 748), ("earth_at_night.avi", 901), ("parking_lane_cars.mp4", 377)]


@corpus
@pytest.mark.parametrize(
    ("name", "frames"),
    but(REAL[:1], REAL, ()),
)
def test_real_sources_give_all_their_frames(name: str, frames: int) -> None:
    path = CORPUS / "originals" / name
    clips = clips_of(path, [(0, 50), (frames - 40, frames)])
    assert look(path).timeline.frames == frames
    assert look(path).timeline.constant
    assert [clip.frames for clip in clips] == [50, 40]
    ours, stored = middle_pictures(clips[0].data, path, 25)
    assert np.abs(ours - stored).mean() < 6
