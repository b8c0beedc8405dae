"""Copied clips are the source's own pictures, bit for bit, or no copies at all."""

import io
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, permutations
from pathlib import Path

import av
import numpy as np
import pytest

from reelweave.curate.cut import CutClip, CutConfig, FailedClip, trim
from reelweave.curate.cut.copy import PacketInfo, SourceFormat, copyable, decoding_times
from reelweave.curate.frames.decode_entry import holds_idr
from reelweave.curate.frames.frame_times import FrameTimes
from reelweave.curate.frames.picture import Geometry
from reelweave.loader.dataset.colour.light import light_of
from tests.curate.frames.test_probe import edited
from tests.cutting import clips_of, curated, cut_file, describe, pictures, sound
from tests.media import CORPUS, NO_CORPUS, read_numbers, write_video
from tests.thorough import beyond, but


def replaced(config: CutConfig, **changes: object) -> CutConfig:
    return config.model_copy(update=changes)


COPY, AUTO = CutConfig(mode="copy"), CutConfig(mode="auto")
GROUPS = {"g": "10", "bf": "3", "x264-params": "b-pyramid=normal:scenecut=0:keyint_min=10"}
_X265 = "keyint=10:min-keyint=10:scenecut=0:open-gop=0:bframes=3:pools=1:log-level=none"
HEVC_GROUPS = {"x265-params": _X265}
HDR_GROUPS = {
    "x265-params": f"{_X265}:colorprim=bt2020:transfer=smpte2084:colormatrix=bt2020nc:max-cll=1000,400"
}
BOUNDS = [(0, 10), (20, 40), (40, 60)]

SOURCES = {
    "mp4": ("a.mp4", {}),
    "mov starting late": ("a.mov", {"start_s": 3.3}),
    "matroska with millisecond ticks": ("a.mkv", {"rate": Fraction(30000, 1001)}),
    "transport stream": ("a.ts", {"start_s": 77.0}),
    "flash video": ("a.flv", {}),
    "with sound": ("a.mp4", {"audio": True}),
    "HEVC": ("a.mp4", {"codec": "libx265", "options": HEVC_GROUPS}),
    "HEVC of 10 bits in a transport stream": (
        "a.ts",
        {"codec": "libx265", "pix_fmt": "yuv420p10le", "options": HEVC_GROUPS},
    ),
    "HDR in Matroska with sound": (
        "a.mkv",
        {"codec": "libx265", "pix_fmt": "yuv420p10le", "options": HDR_GROUPS, "audio": True},
    ),
}


@pytest.mark.parametrize("kind", but(("mp4", "with sound", "HDR in Matroska with sound"), SOURCES))
def test_copied_frames_equal_the_source(kind: str, tmp_path: Path) -> None:
    name, options = SOURCES[kind]
    path = write_video(tmp_path / name, (60,), **{"options": GROUPS, **options})
    whole = pictures(path)
    config = replaced(COPY, max_bits=10) if "codec" in options else COPY
    for clip, (first, last) in zip(clips_of(path, BOUNDS, config), BOUNDS, strict=True):
        assert clip.codec_mode == "copy"
        ours = pictures(clip.data)
        assert len(ours) == clip.frames == last - first
        assert all(np.array_equal(a, b) for a, b in zip(ours, whole[first:last], strict=True))
        described = describe(clip.data)
        assert (described["first"], described["gaps"]) == (0, {1 / Fraction(options.get("rate", 25))})
        assert clip.data.index(b"moov") < clip.data.index(b"mdat")


def test_an_edit_list_hides_frames_from_copies_too(tmp_path: Path) -> None:
    # The first key frame inside the edit is frame 10 of the file, number 3 of the source.
    data = edited(write_video(tmp_path / "a.mp4", (60,), options=GROUPS).read_bytes(), 7, 45)
    path = tmp_path / "edited.mp4"
    path.write_bytes(data)
    hidden, whole = cut_file(path, [(0, 3), (3, 23)], COPY)
    assert isinstance(hidden, FailedClip)
    assert isinstance(whole, CutClip)
    assert read_numbers(whole.data) == list(range(10, 30))


def test_an_observer_sees_copied_frames_and_changes_nothing(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", (60,), options=GROUPS)
    seen: list[int] = []
    watched = clips_of(path, BOUNDS, COPY, lambda span, number, decoded, finished: seen.append(number))
    assert seen == [number for first, last in BOUNDS for number in range(first, last)]
    assert [clip.data for clip in watched] == [clip.data for clip in clips_of(path, BOUNDS, COPY)]


def test_a_span_off_the_key_frames_is_encoded_or_fails_in_words(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", (60,), options=GROUPS)
    bounds = [(0, 10), (12, 20), (20, 30)]
    modes = [(clip.codec_mode, read_numbers(clip.data)) for clip in clips_of(path, bounds, AUTO)]
    assert modes == [
        ("copy", list(range(10))),
        ("encode", list(range(12, 20))),
        ("copy", list(range(20, 30))),
    ]
    good, failed, again = cut_file(path, bounds, COPY)
    assert isinstance(good, CutClip)
    assert isinstance(again, CutClip)
    assert isinstance(failed, FailedClip)
    assert failed.reason == "cannot be copied: it does not begin on a key frame that closes what was before"


def test_hevc_is_copied_only_where_clips_may_be_hevc(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", (60,), codec="libx265", options=HEVC_GROUPS)
    failed, *_ = cut_file(path, BOUNDS, COPY)
    assert isinstance(failed, FailedClip)
    assert failed.reason == "cannot be copied: its codec is hevc, not h264"
    open_groups = {"x265-params": _X265.replace("open-gop=0", "open-gop=1")}
    path = write_video(tmp_path / "open.mp4", (60,), codec="libx265", options=open_groups)
    results = cut_file(path, BOUNDS, replaced(COPY, max_bits=10))
    assert [isinstance(result, FailedClip) for result in results[1:]] == [True, True]


def test_hdr_is_copied_with_its_light(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", (60,), codec="libx265", pix_fmt="yuv420p10le", options=HDR_GROUPS)
    copied, encoded = clips_of(path, [(10, 20), (21, 30)], replaced(AUTO, max_bits=10))
    assert (copied.codec_mode, encoded.codec_mode) == ("copy", "encode")
    for clip in (copied, encoded):
        with av.open(io.BytesIO(clip.data)) as container:
            assert container.streams.video[0].codec_context.codec_tag == "hvc1"
            frame = next(container.decode(video=0))
        assert (frame.color_trc, frame.colorspace, frame.color_primaries) == (16, 9, 9)
        light = light_of(frame)
        assert light is not None
        assert light.levels == (1000, 400)


@pytest.mark.parametrize(("mode", "trim_s"), beyond(1, [("auto", 0.25), ("copy", 1.0)]))
def test_clips_lose_a_little_to_be_copied(mode: str, trim_s: float, tmp_path: Path) -> None:
    # Key frames: 0, 20, 40 ...; the second shot begins at 65, so that 15 frames are lost before 80.
    groups = {"g": "20", "bf": "3", "x264-params": "scenecut=0:keyint_min=20"}
    path = write_video(tmp_path / "a.mp4", (65, 85), audio=True, options=groups)
    whole = pictures(path)
    found = curated(path, tmp_path / "out", cut={"mode": mode, "trim_s": trim_s}, spans={"min_clip_s": 1.5})
    kept = [(record, data) for record, data in found if record.state == "kept"]
    lost = [record for record, _ in found if record.state == "filtered"]
    edges = [(record.start_s, record.end_s) for record, _ in found]
    assert edges[0][0] == 0
    assert edges[-1][1] == 6
    assert all(one[1] == following[0] for one, following in pairwise(edges))
    starts = [round(record.start_s * 25) for record, _ in kept]
    if mode == "copy":
        assert starts == [0, 80]
        assert sum(record.end_s - record.start_s for record in lost) == pytest.approx(0.6, abs=0.17)
        assert {record.reason for record in lost} == {trim._LEFT_OUT}
    else:
        assert starts == [0, 65]
    for (record, data), first in zip(kept, starts, strict=True):
        ours = pictures(data)
        assert len(ours) == record.frames
        same = all(np.array_equal(a, b) for a, b in zip(ours, whole[first:], strict=False))
        assert same == (first % 20 == 0)
        samples, rate, begin = sound(data)
        assert record.audio == "copy:aac"
        assert abs(samples.shape[1] / rate - record.frames / 25) < 0.05
        # The tone of the source, sample for sample where it was in the source.
        at = np.arange(4096, 8192) + begin + first * rate // 25
        assert np.corrcoef(samples[0, 4096:8192], np.sin(at * 0.06))[0, 1] > 0.98


def test_a_span_may_end_wherever_decoding_may(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", (60,), options={"g": "30", "bf": "0"})
    whole = pictures(path)
    (clip,) = clips_of(path, [(30, 47)], COPY)
    assert all(np.array_equal(a, b) for a, b in zip(pictures(clip.data), whole[30:47], strict=True))


def test_an_open_group_is_not_copied(tmp_path: Path) -> None:
    params = "open-gop=1:keyint=10:min-keyint=10:scenecut=0:b-adapt=0:bframes=3"
    path = write_video(tmp_path / "a.mkv", (60,), options={"x264-params": params})
    results = cut_file(path, [(first, first + 10) for first in range(0, 60, 10)], COPY)
    assert any(isinstance(result, FailedClip) for result in results)
    for first, result in zip(range(0, 60, 10), results, strict=True):
        if isinstance(result, CutClip):
            assert read_numbers(result.data) == list(range(first, first + 10))
    encoded = clips_of(path, [(first, first + 10) for first in range(0, 60, 10)], AUTO)
    assert [read_numbers(clip.data)[0] for clip in encoded] == list(range(0, 60, 10))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("a.mp4", {"codec": "mpeg4"}, "its codec is mpeg4"),
        ("a.mp4", {"pix_fmt": "yuv420p10le"}, "its pictures are yuv420p10le"),
        ("a.mp4", {"pix_fmt": "yuvj420p"}, "its pictures are yuv"),
        ("a.mp4", {"times_s": np.cumsum(np.tile([0.03, 0.03, 0.09], 20)).tolist()}, "not constant"),
        ("a.avi", {"options": {"bf": "2", "g": "12"}}, "its container stores no times of showing"),
    ],
)
def test_what_is_not_as_clips_are_is_not_copied(
    name: str, options: dict[str, object], words: str, tmp_path: Path
) -> None:
    (failed,) = cut_file(write_video(tmp_path / name, (60,), **options), None, COPY)
    assert isinstance(failed, FailedClip)
    assert words in failed.reason


FORM = SourceFormat("h264", "yuv420p", 640, 360, False, False, True, True, False, 1, b"\x01", True)
SIZE = Geometry(640, 360)
LINE = FrameTimes(np.arange(9) / 25, Fraction(25), True, ())
UNITS = [PacketInfo(place, number, place == 4, True) for place, number in enumerate((2, 4, 3, 5), start=4)]


def test_a_span_on_a_closed_run_of_packets_is_copyable() -> None:
    assert copyable(FORM, SIZE, LINE, UNITS, 2, 6) is None
    assert copyable(FORM, SIZE, LINE, [*UNITS, PacketInfo(8, 6, False, True)], 2, 6) is None


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"codec": "hevc"}, "codec is hevc"),
        ({"pixel_format": "yuv422p"}, "yuv422p"),
        ({"full_range": True}, "limited range"),
        ({"progressive": False}, "interlaced"),
        ({"turned": True}, "turned"),
        ({"cropped": True}, "container crops"),
        ({"square": False}, "square"),
        ({"transfer": 16}, "HDR"),
        ({"transfer": 18}, "HDR"),
        ({"width": 641}, "641x360"),
        ({"header": b""}, "parameter sets"),
    ],
)
def test_a_source_of_another_form_is_not_copyable(changed: dict[str, object], words: str) -> None:
    assert words in str(copyable(replace(FORM, **changed), SIZE, LINE, UNITS, 2, 6))


@pytest.mark.parametrize(
    ("units", "words"),
    [
        ([], "key frame"),
        (UNITS[1:], "key frame"),
        ([replace(UNITS[0], idr=False), *UNITS[1:]], "key frame"),
        (UNITS[:3], "decoded only after"),
        ([*UNITS[:2], replace(UNITS[2], number=-1), UNITS[3]], "decoded only after"),
        ([*UNITS[:3], replace(UNITS[3], place=9)], "one run"),
        ([*UNITS[:3], replace(UNITS[3], sound=False)], "damaged"),
        (
            [replace(unit, number=at) for at, unit in enumerate(UNITS, 2)],
            "in the order in which they are shown",
        ),
    ],
)
def test_packets_that_do_not_make_the_span_are_not_copyable(units: list[PacketInfo], words: str) -> None:
    assert words in str(copyable(FORM, SIZE, LINE, units, 2, 6))


def test_deinterlaced_sources_are_not_copyable() -> None:
    assert copyable(FORM, SIZE, replace(LINE, deinterlace=True), UNITS, 2, 6) == "it is interlaced"


def test_packets_are_decoded_one_after_the_other_and_never_after_they_are_shown() -> None:
    for shown in permutations(range(5)):
        times = decoding_times(shown)
        assert [b - a for a, b in pairwise(times)] == [1] * 4
        assert all(decoded <= at for decoded, at in zip(times, shown, strict=True))
        assert any(decoded == at for decoded, at in zip(times, shown, strict=True))


def test_idr_pictures_are_told_in_both_spellings() -> None:
    parameters, other, idr = b"\x67\x64", b"\x61\x9a\x00\x00\x01\x65", b"\x65\x88\x84"
    header = b"\x01\x64\x00\x1f\xff"

    def prefixed(*units: bytes) -> bytes:
        return b"".join(len(unit).to_bytes(4, "big") + unit for unit in units)

    assert holds_idr(prefixed(parameters, idr), header)
    assert not holds_idr(prefixed(parameters, other), header)
    assert holds_idr(b"\x00\x00\x00\x01" + parameters + b"\x00\x00\x01" + idr, b"\x00\x00\x00\x01\x67")
    assert not holds_idr(b"\x00\x00\x00\x01" + parameters + b"\x00\x00\x01\x61\x9a", b"")


@pytest.mark.skipif(not CORPUS.is_dir(), reason=NO_CORPUS)
@pytest.mark.parametrize("name", beyond(1, ["duplicates/pair2_a.mp4", "originals/chaplin_policeman.mp4"]))
def test_real_films_are_copied_exactly(name: str) -> None:
    path = CORPUS / name
    with av.open(str(path)) as container:
        shown = sorted((packet.pts, packet.is_keyframe) for packet in container.demux(video=0) if packet.size)
    keys = [number for number, (_, key) in enumerate(shown) if key] + [len(shown)]
    bounds = [(first, last) for first, last in pairwise(keys)][-2:]
    whole = pictures(path)
    for clip, (first, last) in zip(clips_of(path, bounds, COPY), bounds, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(pictures(clip.data), whole[first:last], strict=True))
