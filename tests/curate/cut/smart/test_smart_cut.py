"""Smart cuts show the frames of the span: copied ones bit for bit, and edges as encoded clips do, in every reader."""

import json
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from reelweave.curate.config import CurateConfig
from reelweave.curate.cut import CutClip, CutConfig
from reelweave.curate.cut.smart import builder, edges
from reelweave.curate.cut.smart.bits import units_of
from reelweave.curate.cut.smart.coding import SetsOf
from reelweave.curate.run.curate import curate
from reelweave.curate.run.tables.remarks import describe_clips
from reelweave.curate.run.tables.samples import OVERLAPS
from reelweave.loader.dataset.samples.copied_frames import CopiedFrames
from tests.clip_readers import READERS, faults
from tests.curate.frames.test_probe import edited
from tests.cutting import (
    assert_damaged_films_have_the_spans_of_encode,
    clips_of,
    curated,
    cut_smart,
    describe,
    measured_scores,
    pictures,
)
from tests.media import CORPUS, NO_CORPUS, read_numbers, write_video
from tests.player import ffmpeg
from tests.thorough import beyond, but, thorough

BOUNDS = [(0, 30), (31, 66), (70, 85)]
GROUPS = {"g": "20", "bf": "3", "x264-params": "b-pyramid=normal:scenecut=0:keyint_min=20"}


def params(words: str, **others: str) -> dict[str, object]:
    return {"options": {"g": "20", "x264-params": f"scenecut=0:keyint_min=20:{words}", **others}}


def copied_in(clip: CutClip) -> int:
    return int(clip.remark.split()[1]) if clip.remark.startswith("smart: ") else 0


def check(
    path: Path,
    clips: Sequence[CutClip],
    bounds: Sequence[tuple[int, int]] = BOUNDS,
    rate: Fraction = Fraction(25),
) -> None:
    """Each clip has the frames of its span in order: copies equal, edges near, times on the grid."""
    whole = pictures(path)
    for clip, (first, last) in zip(clips, bounds, strict=True):
        ours = pictures(clip.data)
        assert len(ours) == clip.frames == last - first
        levels = [
            float(np.abs(a.astype(np.int32) - b).mean()) / (4 if a.dtype == np.uint16 else 1)
            for a, b in zip(ours, whole[first:last], strict=True)
        ]
        assert max(levels) < 4
        assert sum(not distance for distance in levels) >= copied_in(clip)
        told = clip.copied_frames
        assert told is not None
        assert told.copied == (clip.frames if clip.codec_mode == "copy" else copied_in(clip))
        if not told.copied:
            assert told == CopiedFrames(0, clip.frames, 0)
        elif told.copied + told.encoded_start + told.encoded_end == clip.frames:
            assert not any(levels[told.encoded_start : clip.frames - told.encoded_end])
        described = describe(clip.data)
        assert (described["first"], described["gaps"]) == (0, {1 / rate})


def test_copied_frames_are_equal_and_every_reader_shows_each_frame(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", (65, 35), options=GROUPS)
    clips = cut_smart(path, BOUNDS)
    check(path, clips)
    assert [copied_in(clip) >= least for clip, least in zip(clips, (26, 22, 0), strict=True)] == [True] * 3
    assert clips[1].codec_mode == "smart"
    assert (clips[2].codec_mode, clips[2].remark) == ("encode", "encoded: too little to copy")
    for clip, (first, last) in zip(clips, BOUNDS, strict=True):
        assert read_numbers(clip.data) == list(range(first, last))
        assert {name: faults(clip.data, name) for name in READERS} == {name: [] for name in READERS}


SOURCES: dict[str, tuple[str, dict[str, Any]]] = {
    "no B-frames": ("a.mp4", params("bframes=0")),
    "16 B-frames in a pyramid": ("a.mp4", params("bframes=16:b-adapt=0:b-pyramid=normal:ref=16")),
    "open groups with some IDR": (
        "a.mp4",
        {"options": {"g": "40", "x264-params": "open-gop=1:bframes=3:keyint=40:min-keyint=1"}},
    ),
    "baseline": ("a.mp4", params("bframes=0", profile="baseline")),
    "main, two slices": ("a.mp4", params("slices=2:ref=4", profile="main")),
    "ids of its own": ("a.mp4", params("sps-id=1")),
    "HRD and recovery points": ("a.mp4", params("nal-hrd=vbr:vbv-maxrate=3000:vbv-bufsize=3000")),
    "sets before each key frame": ("a.mkv", params("repeat-headers=1")),
    "cropped": ("a.mp4", {**params("bframes=2"), "size": (166, 122)}),
    "colours": ("a.mp4", params("colorprim=bt709:transfer=bt709:colormatrix=bt709")),
    "a transport stream": ("a.ts", {**params("bframes=2:aud=1"), "start_s": 77.0}),
    "AVI": ("a.avi", params("bframes=0")),
    "AVI with B-frames": ("a.avi", params("bframes=3")),
    "Matroska with ticks of a millisecond": ("a.mkv", {**params("bframes=3"), "rate": Fraction(30000, 1001)}),
    "flash video": ("a.flv", params("bframes=3")),
    "with sound": ("a.mp4", {**params("bframes=3"), "audio": True}),
}  # fmt: skip


@pytest.mark.parametrize(
    "kind",
    but(
        ("no B-frames", "a transport stream", "16 B-frames in a pyramid"),
        SOURCES,
        (
            "open groups with some IDR",
            "ids of its own",
            "sets before each key frame",
            "AVI with B-frames",
            "Matroska with ticks of a millisecond",
            "with sound",
        ),
    ),
)
def test_sources_of_every_kind(kind: str, tmp_path: Path) -> None:
    name, options = SOURCES[kind]
    path = write_video(tmp_path / name, (65, 35), **options)
    clips = cut_smart(path, BOUNDS)
    check(path, clips, rate=Fraction(options.get("rate", 25)))
    assert any(clip.remark.startswith("smart: ") for clip in clips), [clip.remark for clip in clips]
    reader = sorted(READERS)[len(kind) % len(READERS)]
    assert [faults(clip.data, reader, 3) for clip in clips] == [[], [], []]


_NOT = "not 8-bit 4:2:0 of limited range"


@pytest.mark.parametrize(
    ("name", "options", "remark"),
    [
        ("a.mp4", params("intra-refresh=1:bframes=0"), "encoded: open groups"),
        ("a.mp4", {"options": {"g": "250", "x264-params": "scenecut=0"}}, "encoded: no IDR picture"),
        ("a.mp4", {**params("interlaced=1")}, "encoded: it is interlaced"),
        ("a.mp4", params("fake-interlaced=1"), "encoded: field pictures"),
        ("a.mp4", {"codec": "mpeg4"}, "encoded: its codec is mpeg4, not h264"),
        ("a.mp4", {"pix_fmt": "yuv420p10le"}, f"encoded: its pictures are yuv420p10le, {_NOT}"),
        ("a.mp4", {"pix_fmt": "yuv422p"}, f"encoded: its pictures are yuv422p, {_NOT}"),
        ("a.mp4", {"size": (161, 128), "pix_fmt": "yuv444p"}, None),
    ],
)  # fmt: skip
def test_what_holds_nothing_to_copy_is_encoded(
    name: str, options: dict[str, Any], remark: str | None, tmp_path: Path
) -> None:
    path = write_video(tmp_path / name, (65, 35), **options)
    (clip,) = cut_smart(path, [(31, 66)])
    assert clip.codec_mode == "encode"
    assert remark is None or clip.remark == remark
    assert read_numbers(clip.data) == list(range(31, 66))


def test_a_clip_of_a_source_without_copies_has_the_bytes_of_encode(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", (65, 35), codec="mpeg4")
    assert [clip.data for clip in cut_smart(path, BOUNDS)] == [clip.data for clip in clips_of(path, BOUNDS)]


def test_a_source_of_a_higher_bit_rate_than_the_limit_is_encoded(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", (65, 35), options=GROUPS)
    clips = cut_smart(path, BOUNDS, max_copied_mbps=0.01)
    assert {clip.remark for clip in clips} == {"encoded: bit rate above 0.01 Mbit/s"}
    assert [clip.data for clip in clips] == [clip.data for clip in clips_of(path, BOUNDS)]


def test_equal_ids_would_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trap that counts right and shows wrong pictures: the edges have the id of the source's sets."""

    class SameId(edges.EdgeEncoder):
        def __init__(
            self, coding: Any, size: Any, rate: Any, config: CutConfig, beside: SetsOf, *, reorders: bool
        ) -> None:
            same = replace(beside, encoder_ids=(0,))
            super().__init__(coding, size, rate, config, same, reorders=reorders)

    path = write_video(tmp_path / "a.mp4", (65, 35), options={**GROUPS, "profile": "main", "crf": "30"})
    monkeypatch.setattr(builder, "EdgeEncoder", SameId)
    for verify in ("ends", "whole"):
        (clip,) = cut_smart(path, [(31, 66)], verify=verify)
        assert clip.remark.startswith("encoded: its smart cut did not verify: ")
        assert read_numbers(clip.data) == list(range(31, 66))


@thorough
def test_sets_that_no_copy_can_stand_beside_are_known_ahead(tmp_path: Path) -> None:
    """Lossless sets decode wrongly beside others; a crop at the left is applied or not by alignment."""
    plain = write_video(tmp_path / "plain.mp4", (65, 35), options=GROUPS)
    lossless = write_video(tmp_path / "lossless.mp4", (65, 35), **params("qp=0"))
    for crop, why in (("left=4", "parameter sets that crop at the left"), ("top=4:crop_right=8", "smart")):
        path = tmp_path / f"{why}.mp4"
        ffmpeg(["-i", str(plain), "-c", "copy", "-bsf:v", f"h264_metadata=crop_{crop}", "-y", str(path)])
        remark = cut_smart(path, BOUNDS)[0].remark
        assert remark.partition(":")[0] == why if why == "smart" else remark == f"encoded: {why}"
    clips = cut_smart(lossless, BOUNDS)
    assert {clip.remark for clip in clips} == {"encoded: lossless coding"}
    assert [clip.data for clip in clips] == [clip.data for clip in clips_of(lossless, BOUNDS)]


def test_sets_that_change_in_mid_film_divide_what_is_copied(tmp_path: Path) -> None:
    for number in range(2):
        write_video(
            tmp_path / f"{number}.ts",
            (50,),
            first_scene=number,
            start_s=2.0 * number,
            **params(f"ref={1 + 3 * number}"),
        )
    path = tmp_path / "a.ts"
    path.write_bytes(b"".join((tmp_path / f"{number}.ts").read_bytes() for number in range(2)))
    clips = cut_smart(path, [(0, 40), (41, 90)])
    check(path, clips, [(0, 40), (41, 90)])
    assert clips[1].remark == "encoded: changed parameter sets"


def flv_tags(data: bytes, after_ms: int) -> bytes:
    """The video tags of an FLV file, its header among them, so many milliseconds later."""
    tags, at = bytearray(), 13
    while at + 11 <= len(data):
        size = 15 + int.from_bytes(data[at + 1 : at + 4], "big")
        tag, at = bytearray(data[at : at + size]), at + size
        if tag[0] == 9:
            time_ms = int.from_bytes(bytes([tag[7], *tag[4:7]]), "big") + after_ms
            tag[4:8] = [*(time_ms & 0xFFFFFF).to_bytes(3, "big"), time_ms >> 24]
            tags += tag
    return bytes(tags)


@pytest.mark.parametrize("mode", ["smart", "auto"])
def test_packets_behind_another_header_of_the_container_are_not_copied(mode: str, tmp_path: Path) -> None:
    """Two recordings in one FLV whose picture sets differ in their weights alone: IDR pictures decode by either."""
    first = write_video(tmp_path / "a.flv", (50,), **params("bframes=3:weightb=0:weightp=0"))
    second = write_video(tmp_path / "b.flv", (50,), first_scene=1, **params("bframes=3:weightb=1:weightp=2"))
    path = tmp_path / "joined.flv"
    path.write_bytes(first.read_bytes() + flv_tags(second.read_bytes(), 2000))
    bounds = [(0, 40), (50, 70), (70, 95)]
    clips = cut_smart(path, bounds, mode=mode, verify="ends")
    check(path, clips, bounds)
    assert clips[0].codec_mode != "encode"
    assert [clip.codec_mode for clip in clips[1:]] == ["encode"] * 2
    if mode == "smart":
        assert clips[1].remark == "encoded: changed parameter sets"


def test_an_edit_list_of_the_source_hides_frames_from_smart_cuts_too(tmp_path: Path) -> None:
    data = edited(write_video(tmp_path / "a.mp4", (60,), options=GROUPS).read_bytes(), 7, 45)
    path = tmp_path / "edited.mp4"
    path.write_bytes(data)
    (clip,) = cut_smart(path, [(0, 40)])
    assert read_numbers(clip.data) == list(range(7, 47))
    assert 22 < copied_in(clip) <= 27  # from frame 20 of the file on


def test_lengths_of_two_bytes_become_four(tmp_path: Path) -> None:
    path, short = write_video(tmp_path / "a.mp4", (65, 35), options=GROUPS), tmp_path / "short.mp4"
    with av.open(str(path)) as source, av.open(str(short), "w") as target:
        stream = source.streams.video[0]
        written = target.add_stream_from_template(stream)
        header = bytearray(stream.codec_context.extradata)
        header[4] = 0xFC | 1
        written.codec_context.extradata = bytes(header)
        for packet in source.demux(stream):
            if packet.size:
                units = units_of(bytes(packet), 4)
                other = av.Packet(b"".join(len(unit).to_bytes(2, "big") + unit for unit in units))
                other.stream, other.time_base = written, packet.time_base
                other.pts, other.dts, other.is_keyframe = packet.pts, packet.dts, packet.is_keyframe
                target.mux(other)
    clips = cut_smart(short, BOUNDS)
    check(path, clips)
    assert [clip.data for clip in clips] == [clip.data for clip in cut_smart(path, BOUNDS)]


def test_frames_of_variable_rate_are_copied_where_each_is_shown_once(tmp_path: Path) -> None:
    times_s = [at / 25 + (0.08 if at > 70 else 0) for at in range(100)]
    path = write_video(tmp_path / "a.mp4", (100,), times_s=times_s, **params("bframes=2"))
    (clip,) = cut_smart(path, [(31, 95)])
    numbers = read_numbers(clip.data)
    assert numbers == [*range(31, 70), *[70] * 3, *range(71, 95)]
    assert 40 < copied_in(clip) <= 30 + 15  # from frame 40 to 69, and from 80 on
    told = clip.copied_frames
    assert told is not None
    assert (told.encoded_start, told.encoded_end) == (9, 45 - told.copied)  # and 12 in between


def test_the_whole_pass_sees_the_same_frames_and_gives_the_same_spans(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", (65, 85), options=GROUPS, audio=True)
    lengths = {"min_clip_s": 1.0, "max_clip_s": 2.0}
    encoded = curated(path, tmp_path / "encoded", spans=lengths)
    found = curated(path, tmp_path / "smart", spans=lengths, cut={"mode": "smart"})
    again = curated(path, tmp_path / "again", spans=lengths, cut={"mode": "smart", "ahead_mb": 0})
    assert [(record, data) for record, data in found] == again
    for (record, _), (other, _) in zip(found, encoded, strict=True):
        assert (record.key, record.frames, measured_scores(record), record.audio) == (
            other.key,
            other.frames,
            other.scores,
            other.audio,
        )
        assert record.reason.startswith(("smart: ", "encoded: "))
        copied = CopiedFrames.of_scores(record.scores)
        assert copied is not None
        assert bool(copied.copied) == record.reason.startswith(f"smart: {copied.copied} of {record.frames} ")
        assert not other.reason


@pytest.mark.parametrize("suffix", but((), ("mp4", "ts", "mkv"), ("mp4",)))
def test_damaged_films_give_the_spans_and_frames_of_encode(suffix: str, tmp_path: Path) -> None:
    whole = write_video(tmp_path / f"a.{suffix}", (55, 45), **params("bframes=3:repeat-headers=1"))
    assert_damaged_films_have_the_spans_of_encode(whole)


def test_smart_cuts_need_an_encoder_whose_sets_can_be_named() -> None:
    with pytest.raises(ValueError, match="set encoder=x264"):
        CutConfig(mode="smart", encoder="nvenc")


@pytest.mark.skipif(not CORPUS.is_dir(), reason=NO_CORPUS)
@pytest.mark.parametrize("name", beyond(1, ["duplicates/pair2_a.mp4", "originals/chaplin_policeman.mp4"]))
def test_real_films(name: str) -> None:
    path = CORPUS / name
    clips = cut_smart(path, [(20, 70)])
    check(path, clips, [(20, 70)], rate=clips[0].rate)
    assert faults(clips[0].data, "decord", 20) == []


def test_a_run_counts_copied_frames_and_why_clips_were_encoded() -> None:
    reasons = [
        "smart: 30 of 40 frames copied",
        "interlaced; smart: 5 of 60 frames copied; 3 of 63 frames have no slot",
        f"{OVERLAPS}; encoded: open groups",
        OVERLAPS,
    ]
    table = pa.table({"state": ["kept"] * 4, "reason": reasons, "audio": ["none"] * 4})
    assert describe_clips([table, table]) == (
        "2 clips: encoded: open groups (accounting.parquet, reason)",
        "2 clips: interlaced; 3 of 63 frames have no slot (accounting.parquet, reason)",
        "4 clips: smart, 70 of 200 frames copied (accounting.parquet, reason)",
    )


def test_overlapping_segments_say_both_that_they_overlap_and_how_they_were_cut(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", (65, 35), options=GROUPS)
    rows = [{"path": "a.mp4", "start": start_s, "end": start_s + 2} for start_s in (0.0, 1.2)]
    (tmp_path / "list.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    values = {
        "cut": {"mode": "smart"},
        "spans": {"min_clip_s": 1.0, "overlapping": "keep"},
        "filters": {"min_short_side_px": 64},
        "run": {"runner": "sequential", "isolate": False},
    }
    curate([str(tmp_path / "list.jsonl")], str(tmp_path / "out"), CurateConfig.model_validate(values))
    reasons = pq.read_table(tmp_path / "out" / "accounting.parquet").column("reason").to_pylist()
    assert any(OVERLAPS in reason and "smart: " in reason for reason in reasons), reasons
