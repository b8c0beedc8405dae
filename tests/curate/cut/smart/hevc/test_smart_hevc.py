"""Smart cuts of HEVC show the frames of the span: copies bit for bit, edges near, in every reader."""

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import pytest

from reelweave.curate.cut import CutClip, CutConfig
from reelweave.curate.cut.smart import builder, edges
from reelweave.curate.cut.smart.bits import units_of, with_lengths
from reelweave.curate.cut.smart.coding import SetsOf
from reelweave.curate.cut.smart.hevc.record import header_units
from reelweave.curate.cut.smart.hevc.sets import sequence_set
from reelweave.curate.cut.smart.hevc.units import (
    BLA,
    CRA,
    END_OF_SEQUENCE,
    HEADER_BYTES,
    IDR,
    SEI,
    SLICES,
    SPS,
    kind_of,
    payloads,
)
from reelweave.curate.frames.container.side_data import side_data
from reelweave.loader.dataset.colour.light import light_of
from reelweave.loader.dataset.samples.frames.reorder import is_understated
from reelweave.loader.dataset.samples.frames.video_stream import open_clip
from tests.clip_readers import READERS, faults
from tests.curate.cut.smart.test_smart_cut import BOUNDS, copied_in
from tests.curate.cut.smart.test_smart_cut import check as check_frames
from tests.curate.frames.container.test_side_data import dolby_vision, with_entry_box
from tests.cutting import (
    assert_damaged_films_have_the_spans_of_encode,
    clips_of,
    curated,
    cut_smart,
    describe,
    measured_scores,
)
from tests.media import read_numbers, write_video
from tests.reordering import understated_film
from tests.thorough import but, thorough

X265 = "log-level=none:pools=none:frame-threads=1:wpp=0"
GROUPS = "keyint=20:min-keyint=20:scenecut=0:bframes=4:b-adapt=0"
OPEN, CLOSED = f"{GROUPS}:open-gop=1", f"{GROUPS}:open-gop=0"
LIGHT = "master-display=G(13250,34500)B(7500,3000)R(34000,16000)WP(15635,16450)L(10000000,1):max-cll=1000,400"
HDR = f"colorprim=bt2020:transfer=smpte2084:colormatrix=bt2020nc:chromaloc=2:{LIGHT}"


def film(path: Path, words: str = OPEN, scenes: Sequence[int] = (65, 35), **others: Any) -> Path:
    options = {"preset": "ultrafast", "x265-params": f"{X265}:{words}"}
    values = {"codec": "libx265", "pix_fmt": "yuv420p10le", "options": options, **others}
    return write_video(path, scenes, **values)


def cut(path: Path, bounds: Sequence[tuple[int, int]] = BOUNDS, **values: Any) -> list[CutClip]:
    return cut_smart(path, bounds, max_bits=10, **values)


def check(
    path: Path,
    clips: Sequence[CutClip],
    bounds: Sequence[tuple[int, int]] = BOUNDS,
    rate: Fraction = Fraction(25),
    pixel_format: str = "yuv420p10le",
) -> None:
    """Each clip has the frames of its span in order: copies equal, edges near, times on the grid."""
    check_frames(path, clips, bounds, rate)
    for clip in clips:
        described = describe(clip.data)
        codec = "hevc" if pixel_format != "yuv420p" or copied_in(clip) else "h264"
        assert (described["codec"], described["pix_fmt"]) == (codec, pixel_format)


def kinds_in(data: bytes) -> list[int]:
    """Types of the slices of each packet of a clip."""
    with av.open(io.BytesIO(data)) as container:
        packets = [bytes(packet) for packet in container.demux(video=0) if packet.size]
    return [next(kind for unit in units_of(one, 4) if (kind := kind_of(unit)) in SLICES) for one in packets]


def keys_in(data: bytes) -> list[int]:
    with av.open(io.BytesIO(data)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
    return [at for at, packet in enumerate(packets) if packet.is_keyframe]


def test_open_groups_are_copied_from_a_broken_link_and_every_reader_shows_each_frame(tmp_path: Path) -> None:
    path = film(tmp_path / "a.mp4")
    clips = cut(path)
    check(path, clips)
    assert [clip.remark for clip in clips] == [
        "smart: 26 of 30 frames copied",
        "smart: 26 of 35 frames copied",
        "encoded: too little to copy",
    ]
    assert clips[1].codec_mode == "smart"
    kinds = kinds_in(clips[1].data)
    assert kinds[0] in IDR
    assert [kind for kind in kinds if kind in BLA or kind == CRA] == [18, CRA]
    assert [kinds[at] for at in keys_in(clips[1].data)] == [kinds[0], 18]
    for clip, (first, last) in zip(clips, BOUNDS, strict=True):
        assert read_numbers(clip.data) == list(range(first, last))
        assert {name: faults(clip.data, name, 3) for name in READERS} == {name: [] for name in READERS}


SOURCES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "closed groups": ("a.mp4", CLOSED, {}),
    "leading pictures that decode": ("a.mp4", f"{CLOSED}:radl=2", {}),
    "no B-frames": ("a.mov", f"{OPEN}:bframes=0", {}),
    "a pyramid of 8 B-frames": ("a.mp4", f"{OPEN}:bframes=8:b-pyramid=1:rc-lookahead=20:ref=5", {}),
    "slices": ("a.mp4", f"{OPEN}:ctu=16:min-cu-size=8:pools=1:wpp=1:slices=3", {"size": (160, 256)}),
    "entry points": ("a.mkv", f"{OPEN}:ctu=16:min-cu-size=8:pools=1:wpp=1", {}),
    "temporal sub-layers": ("a.mp4", f"{CLOSED}:temporal-layers=3", {}),
    "sets in band, HRD, delimiters": (
        "a.mkv",
        f"{OPEN}:repeat-headers=1:aud=1:hrd=1:vbv-maxrate=3000:vbv-bufsize=3000",
        {},
    ),
    "a transport stream": ("a.ts", f"{OPEN}:aud=1", {"start_s": 77.0}),
    "a transport stream of closed groups": ("a.ts", CLOSED, {"start_s": 7.0}),
    "cropped": ("a.mp4", OPEN, {"size": (166, 122)}),
    "lossless": ("a.mp4", f"{OPEN}:lossless=1", {}),
    "scaling lists and weights": ("a.mp4", f"{OPEN}:scaling-list=default:weightb=1:weightp=1", {}),
    "HDR": ("a.mp4", f"{OPEN}:{HDR}", {}),
    "NTSC ticks": ("a.mkv", OPEN, {"rate": Fraction(30000, 1001)}),
    "with sound": ("a.mp4", OPEN, {"audio": True}),
}  # fmt: skip


@pytest.mark.parametrize(
    "kind",
    but(
        ("closed groups", "a transport stream"),
        SOURCES,
        (
            "leading pictures that decode",
            "slices",
            "sets in band, HRD, delimiters",
            "HDR",
        ),
    ),
)
def test_sources_of_every_kind(kind: str, tmp_path: Path) -> None:
    name, words, others = SOURCES[kind]
    path = film(tmp_path / name, words, **others)
    clips = cut(path)
    check(path, clips, rate=Fraction(others.get("rate", 25)))
    assert any(clip.remark.startswith("smart: ") for clip in clips), [clip.remark for clip in clips]
    reader = sorted(READERS)[len(kind) % len(READERS)]
    assert [faults(clip.data, reader, 3) for clip in clips] == [[], [], []]


@thorough
def test_edges_by_several_threads_have_entry_points_that_hold(tmp_path: Path) -> None:
    path = film(tmp_path / "a.mp4", size=(320, 256))
    clips = cut(path, threads=3)
    check(path, clips)
    assert faults(clips[1].data, "FFmpeg", 3) == []


def test_the_hashes_that_a_film_states_of_its_pictures_hold_in_the_clip(tmp_path: Path) -> None:
    clip = cut(film(tmp_path / "a.mp4", f"{OPEN}:hash=1"), [(31, 66)])[0]
    assert clip.remark == "smart: 26 of 35 frames copied"
    with av.open(io.BytesIO(clip.data)) as container:
        stream = container.streams.video[0]
        stream.codec_context.options = {"err_detect": "crccheck+explode"}
        assert sum(1 for _ in container.decode(stream)) == 35


def test_hdr_keeps_its_light_and_colours_on_both_sides_of_a_seam(tmp_path: Path) -> None:
    path = film(tmp_path / "a.mp4", f"{OPEN}:{HDR}")
    (clip,) = cut(path, [(31, 66)])
    assert clip.remark.startswith("smart: ")
    with av.open(str(path)) as container:
        light = light_of(next(container.decode(video=0)))
    with av.open(io.BytesIO(clip.data)) as container:
        stream = container.streams.video[0]
        sets, _ = header_units(bytes(stream.codec_context.extradata))
        frames = [(frame.color_trc, light_of(frame)) for frame in container.decode(stream)]
    assert light is not None
    assert set(frames) == {(16, light)}
    assert {sequence_set(one).chroma_location for one in sets if kind_of(one) == SPS} == {2}


_NOT = "not 10-bit 4:2:0 of limited range"


@pytest.mark.parametrize(
    ("words", "others", "remark"),
    [
        (f"{OPEN}:intra-refresh=1:bframes=0", {}, "encoded: no IDR picture"),
        (f"{CLOSED}:display-window=4,4,4,4", {}, "encoded: parameter sets that state a display window"),
        (OPEN, {"pix_fmt": "yuv422p10le"}, f"encoded: its pictures are yuv422p10le, {_NOT}"),
        (OPEN, {"codec": "libx264", "options": {"g": "20"}}, "encoded: 10-bit H.264, whose clips are HEVC"),
    ],
)  # fmt: skip
def test_what_holds_nothing_to_copy_is_encoded(
    words: str, others: dict[str, Any], remark: str, tmp_path: Path
) -> None:
    path = film(tmp_path / "a.mp4", words, **others)
    (clip,) = cut(path, [(31, 66)])
    assert (clip.codec_mode, clip.remark) == ("encode", remark)
    assert read_numbers(clip.data) == list(range(31, 66))


@pytest.mark.parametrize("words", but([OPEN], [OPEN, CLOSED]))
def test_eight_bits_are_copied_where_a_group_begins_soon_and_else_have_the_bytes_of_encode(
    words: str, tmp_path: Path
) -> None:
    path = film(tmp_path / "a.mp4", words, pix_fmt="yuv420p")
    bounds = [(0, 22), (22, 56), (58, 80), (80, 93)]
    clips = cut(path, bounds)
    check(path, clips, bounds, pixel_format="yuv420p")
    assert [clip.remark.partition(" frames")[0] for clip in clips] == [
        "smart: 21 of 22",
        "encoded: more than 16",
        f"smart: {16 if words == OPEN else 20} of 22",
        "smart: 11 of 13",
    ]
    assert clips[1].data == clips_of(path, bounds, CutConfig(max_bits=10))[1].data
    little = cut(path, [(75, 87)])[0]
    assert little.remark == "encoded: too little to copy"
    assert little.data == clips_of(path, [(75, 87)], CutConfig(max_bits=10))[0].data
    assert faults(clips[2].data, "decord", 3) == faults(clips[2].data, "OpenCV", 3) == []


def test_a_film_whose_header_understates_its_order_is_encoded(tmp_path: Path) -> None:
    """FFmpeg believes the header in the clip, too, and shows frames late."""
    clip = cut(understated_film(tmp_path, "whole.mp4", "libx265"), [(0, 40)])[0]
    assert clip.remark == "encoded: a header that understates how far frames are moved"
    assert read_numbers(clip.data) == list(range(40))


def test_edges_are_moved_no_farther_in_coding_than_copies(tmp_path: Path) -> None:
    (clip,) = cut(film(tmp_path / "a.mp4", f"{OPEN}:bframes=2:b-pyramid=0"), [(31, 66)])
    assert clip.remark.startswith("smart: ")
    with open_clip(clip.data) as (container, stream):
        assert not is_understated(container, stream)
    with av.open(io.BytesIO(clip.data)) as container:
        sets, _ = header_units(bytes(container.streams.video[0].codec_context.extradata))
    assert [sequence_set(one).reordered for one in sets if kind_of(one) == SPS] == [1, 1]


def test_without_ten_bits_films_of_hevc_are_encoded_as_h264(tmp_path: Path) -> None:
    path = film(tmp_path / "a.mp4")
    clips = cut_smart(path, BOUNDS)
    assert {clip.remark for clip in clips} == {"encoded: its codec is hevc, not h264"}
    assert [clip.data for clip in clips] == [clip.data for clip in clips_of(path, BOUNDS)]


def changed(path: Path, other: Path, change: Callable[[int, list[bytes]], list[bytes]]) -> Path:
    """A film whose packets, by their number, hold other NAL units."""
    with av.open(str(path)) as source, av.open(str(other), "w") as target:
        stream = source.streams.video[0]
        written = target.add_stream_from_template(stream)
        packets = [packet for packet in source.demux(stream) if packet.size]
        for number, packet in enumerate(packets):
            if not (units := change(number, units_of(bytes(packet), 4))):
                continue
            copy = av.Packet(with_lengths(units))
            copy.stream, copy.time_base, copy.duration = written, packet.time_base, packet.duration
            copy.pts, copy.dts, copy.is_keyframe = packet.pts, packet.dts, packet.is_keyframe
            target.mux(copy)
    return other


SURROUNDINGS = bytes((SEI << 1, 1, 148, 8)) + b"\0\x2f\xe9\xa0\x3d\x13\x40\x42\x80"
HDR10_PLUS = bytes((SEI << 1, 1, 4, 7)) + b"\xb5\0\x3c\0\1\4\1\x80"
TOLD = b"\xb5\0\x31GA94\3\x41\xff\xfc\x94\x20\xff"
CAPTIONS = bytes((SEI << 1, 1, 4, len(TOLD))) + TOLD + b"\x80"


@pytest.mark.parametrize(
    ("unit", "remark"),
    [
        (bytes((1 << 1, 1 << 3 | 1, 0xD0, 1)), "encoded: layers or auxiliary pictures"),
        (bytes((SEI << 1, 1, 4, 200, 1)), "encoded: damaged packets"),
    ],
)
def test_units_beside_the_pictures_that_a_clip_cannot_have_are_a_reason(
    unit: bytes, remark: str, tmp_path: Path
) -> None:
    path = changed(
        film(tmp_path / "a.mp4"),
        tmp_path / "b.mp4",
        lambda _, units: [*units, unit],
    )
    (clip,) = cut(path, [(31, 66)])
    assert (clip.codec_mode, clip.remark) == ("encode", remark)
    assert read_numbers(clip.data) == list(range(31, 66))


def test_metadata_that_change_with_the_pictures_are_left_out_and_captions_kept(tmp_path: Path) -> None:
    path = changed(
        film(tmp_path / "a.mp4"),
        tmp_path / "b.mp4",
        lambda _, units: [HDR10_PLUS, CAPTIONS, SURROUNDINGS, *units],
    )
    (clip,) = cut(path, [(31, 66)])
    assert clip.remark == "smart: 26 of 35 frames copied"
    with av.open(io.BytesIO(clip.data)) as container:
        data = [bytes(packet) for packet in container.demux(video=0) if packet.size]
    told = [
        message
        for one in data
        for unit in units_of(one, 4)
        if kind_of(unit) == SEI
        for message in payloads(unit)
    ]
    assert told == [(4, TOLD)] * 26


@pytest.mark.parametrize("profile", [7, 8])
def test_of_dolby_vision_the_pictures_that_all_players_show_are_copied_and_nothing_else(
    profile: int, tmp_path: Path
) -> None:
    metadata, enhancement = bytes((62 << 1, 1, 0x19, 8, 9)), bytes((63 << 1, 1, 2 << 1, 1, 7))
    path = changed(
        film(tmp_path / "a.mp4"), tmp_path / "b.mp4", lambda _, units: [*units, enhancement, metadata]
    )
    path.write_bytes(with_entry_box(path.read_bytes(), dolby_vision(profile, 1)))
    (clip,) = cut(path, [(31, 66)])
    assert clip.remark == "smart: 26 of 35 frames copied"
    assert read_numbers(clip.data) == list(range(31, 66))
    with open_clip(clip.data) as (container, stream):
        assert side_data(stream).dolby_vision is None
        kinds = {kind_of(unit) for packet in container.demux(stream) for unit in units_of(bytes(packet), 4)}
    assert max(kinds) < 40


def test_a_film_that_begins_at_an_open_group_is_copied_from_there(tmp_path: Path) -> None:
    """Its four leading pictures, which refer to what was cut off, are counted, and packets without frames."""
    whole = film(tmp_path / "a.mp4")
    path = changed(whole, tmp_path / "b.ts", lambda number, units: units if number >= 16 else [])
    (clip,) = cut(path, [(4, 34)])
    assert clip.remark == "smart: 26 of 30 frames copied"
    assert read_numbers(clip.data) == list(range(20, 50))
    assert kinds_in(clip.data)[0] == 18


def test_a_run_neither_discards_what_is_before_it_nor_goes_on_over_the_end_of_a_sequence(
    tmp_path: Path,
) -> None:
    def change(number: int, units: list[bytes]) -> list[bytes]:
        if kind_of(units[-1]) == CRA and units[-1][HEADER_BYTES] & 0x80:
            last = units[-1]
            units[-1] = last[:HEADER_BYTES] + bytes((last[HEADER_BYTES] | 0x40,)) + last[HEADER_BYTES + 1 :]
        return units

    path = changed(film(tmp_path / "a.mp4", f"{OPEN}:bframes=0"), tmp_path / "b.mp4", change)
    (clip,) = cut(path, [(31, 66)])
    assert clip.remark == "smart: 26 of 35 frames copied"
    assert read_numbers(clip.data) == list(range(31, 66))
    ends = changed(
        film(tmp_path / "a.mp4", f"{OPEN}:bframes=0"),
        tmp_path / "c.mp4",
        lambda number, units: [*units, bytes((END_OF_SEQUENCE << 1, 1))] if number == 39 else units,
    )
    (clip,) = cut(ends, [(15, 66)])
    assert clip.remark == "smart: 20 of 51 frames copied"
    assert read_numbers(clip.data) == list(range(15, 66))


def test_other_colours_in_the_clip_would_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a container states the colours of a film whose parameter sets state others."""

    class Wide(edges.EdgeEncoder):
        def show(self, picture: av.VideoFrame, shown: int) -> None:
            before, picture.color_primaries = picture.color_primaries, 9
            super().show(picture, shown)
            picture.color_primaries = before

    monkeypatch.setattr(builder, "EdgeEncoder", Wide)
    (clip,) = cut(film(tmp_path / "a.mp4"), [(31, 66)], verify="ends")
    words = "frame 0 of its clip has other colours than its source"
    assert clip.remark == f"encoded: its smart cut did not verify: {words}"


def test_equal_ids_would_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trap that counts right and shows wrong pictures: the edges have the ids of the source's sets."""

    class SameIds(edges.EdgeEncoder):
        def __init__(
            self, coding: Any, size: Any, rate: Any, config: CutConfig, beside: SetsOf, *, reorders: bool
        ) -> None:
            same = replace(beside, encoder_ids=(0, 0, 0))
            super().__init__(coding, size, rate, config, same, reorders=reorders)

    path = film(tmp_path / "a.mp4", f"{OPEN}:sao=0:ctu=32:crf=30")
    monkeypatch.setattr(builder, "EdgeEncoder", SameIds)
    for verify in ("ends", "whole"):
        (clip,) = cut(path, [(31, 66)], verify=verify)
        assert clip.remark.startswith("encoded: its smart cut did not verify: ")
        assert read_numbers(clip.data) == list(range(31, 66))


def test_sets_that_change_in_mid_film_divide_what_is_copied(tmp_path: Path) -> None:
    for number in range(2):
        film(
            tmp_path / f"{number}.ts",
            f"{CLOSED}:ctu={32 + 32 * number}",
            (50,),
            first_scene=number,
            start_s=2.0 * number,
        )
    path = tmp_path / "a.ts"
    path.write_bytes(b"".join((tmp_path / f"{number}.ts").read_bytes() for number in range(2)))
    bounds = [(0, 40), (41, 90)]
    clips = cut(path, bounds)
    check(path, clips, bounds)
    assert clips[0].remark == "smart: 40 of 40 frames copied"
    assert clips[1].remark == "encoded: changed parameter sets"


@pytest.mark.parametrize("pixel_format", but(["yuv420p10le"], ["yuv420p10le", "yuv420p"]))
def test_the_whole_pass_sees_the_same_frames_and_gives_the_same_spans(
    pixel_format: str, tmp_path: Path
) -> None:
    path = film(tmp_path / "a.mp4", scenes=(65, 85), audio=True, pix_fmt=pixel_format)
    lengths = {"min_clip_s": 1.0, "max_clip_s": 2.0}
    encoded = curated(path, tmp_path / "encoded", spans=lengths, cut={"max_bits": 10})
    found = curated(path, tmp_path / "smart", spans=lengths, cut={"mode": "smart", "max_bits": 10})
    again = curated(
        path, tmp_path / "again", spans=lengths, cut={"mode": "smart", "max_bits": 10, "ahead_mb": 0}
    )
    assert found == again
    assert any("smart: " in record.reason for record, _ in found)
    for (record, _), (other, _) in zip(found, encoded, strict=True):
        assert (record.key, record.frames, measured_scores(record), record.audio) == (
            other.key,
            other.frames,
            other.scores,
            other.audio,
        )


@pytest.mark.parametrize("suffix", but((), ("mp4", "ts", "mkv"), ("mp4",)))
def test_damaged_films_give_the_spans_and_frames_of_encode(suffix: str, tmp_path: Path) -> None:
    whole = film(tmp_path / f"a.{suffix}", f"{OPEN}:repeat-headers=1", (55, 45))
    assert_damaged_films_have_the_spans_of_encode(whole, max_bits=10)
