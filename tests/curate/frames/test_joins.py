"""Removed segments: what a muxer squeezed together is not shown, and picture, sound and accounting agree."""

import io
import subprocess
from fractions import Fraction
from itertools import pairwise, product
from pathlib import Path

import av
import numpy as np
import pytest

from reelweave.curate.frames.frame_times import timeline
from reelweave.curate.ledger.records import Record
from tests.curate.cut.test_lookahead import config
from tests.curate.cut.test_lookahead import curated as cut_twice
from tests.cutting import curated
from tests.joining import removed
from tests.media import CORPUS, NO_CORPUS, read_numbers, write_video
from tests.player import PROGRAM, ffmpeg
from tests.stepping import RATE, errors_s, stepping
from tests.thorough import beyond, but, nightly, thorough

SAME_S = 0.0201  # half a frame, too


ONE, LATER, TWO = [(0, 2.5), (4.7, None)], [(0, 3.1), (3.98, None)], [(0, 1.52), (2.32, 3.52), (5.92, None)]
FIRST = [(".mkv", 0, TWO), (".ts", 2, LATER), (".mp4", 2, ONE), (".ts", 0, ONE)]
REMOVED = [
    *FIRST,
    *(case for case in product((".mp4", ".mkv", ".ts"), (0, 2, 3), (ONE, LATER, TWO)) if case not in FIRST),
]


@pytest.mark.parametrize(
    ("suffix", "b_frames", "pieces"), but(FIRST[:1], REMOVED, (*FIRST[1:], *REMOVED[4::12]))
)
def test_what_a_removed_segment_leaves_is_not_shown(suffix, b_frames, pieces, tmp_path: Path) -> None:
    source = stepping(tmp_path / "whole.mp4", (0, 0), b_frames=b_frames, start_s=0.0)
    path = removed(source, tmp_path / f"a{suffix}", pieces)
    found = curated(path, tmp_path / "out", spans={"min_clip_s": 0.5})
    total_s = sum((9.0 if end is None else end) - begin for begin, end in pieces)
    assert found[-1][0].end_s == pytest.approx(total_s, abs=SAME_S)
    joins = len(pieces) - 1
    for record, clip in found:
        assert record.state == "kept", record.reason
        assert record.fps == RATE
        assert_agrees(record, clip)
        # Pictures that refer to removed ones are not in the file; the one before is held.
        assert sum(after - before != 1 for before, after in pairwise(read_numbers(clip))) <= 4 * joins
        off_s = np.array([off_s for true_s, off_s in errors_s(clip) if true_s > 0])
        assert np.isnan(off_s).sum() <= joins  # a window across a join
        assert np.nanmax(np.abs(off_s), initial=0) <= SAME_S


@pytest.mark.parametrize("b_frames", beyond(1, [2, 0]))
def test_packets_of_ts_that_begin_at_one_time_are_no_step_of_the_sound(b_frames: int, tmp_path: Path) -> None:
    """FFmpeg's program puts several packets of sound into each of TS."""
    stepping(tmp_path / "whole.mkv", (0, 0), b_frames=b_frames, start_s=0.0)
    lines = ("ffconcat version 1.0", "file whole.mkv", "outpoint 2.5", "file whole.mkv", "inpoint 4.7")
    (tmp_path / "list.ffconcat").write_text("\n".join(lines))
    words = [PROGRAM, "-v", "quiet", "-i", str(tmp_path / "list.ffconcat"), "-map", "0", "-c", "copy"]
    subprocess.run([*words, str(tmp_path / "a.ts")], check=True, timeout=60)
    found = curated(tmp_path / "a.ts", tmp_path / "out", spans={"min_clip_s": 0.5})
    assert len(found) == 2
    for record, clip in found:
        assert_agrees(record, clip)
        off_s = [off_s for true_s, off_s in errors_s(clip) if true_s > 0 and not np.isnan(off_s)]
        assert off_s == pytest.approx([0] * len(off_s), abs=2e-3)


def test_frames_squeezed_to_the_end_have_no_time() -> None:
    """Matroska rounds the ticks of a muxer to milliseconds, so that dozens of frames share the last ones."""
    before = [40 * frame for frame in range(200)]
    squeezed = [before[-1]] * 45 + [before[-1] + 1] * 56
    made = timeline([*before, *squeezed], Fraction(1, 1000), 40, Fraction(25), (), 60.0)
    assert made.frames == 301
    assert made.times_s[-1] == pytest.approx(8.0, abs=0.002)
    assert made.left_out(0, 301) == "101 of 301 frames, each shown for less than 1.5 ms, are left out"
    assert made.clip_frames(0, 301).tolist()[:199] == list(range(199))
    unstamped = timeline([*before, None, None], Fraction(1, 1000), 40, Fraction(25), (), 60.0)
    assert unstamped.clip_frames(0, 202).tolist() == list(range(202))


def test_squeezed_frames_have_no_time_in_either_order_of_stamps() -> None:
    before, after = list(range(0, 51200, 512)), list(range(51200, 102400, 512))
    for scrambled in (np.arange(40), np.arange(40) ^ 3, np.zeros(40, int)):
        squeezed = (before[-1] + 1 + scrambled).tolist()
        made = timeline([*before, *squeezed, *after], Fraction(1, 12800), 512, Fraction(35), (), 60.0)
        assert made.times_s[-1] == pytest.approx(8.0)
        assert made.shifts_s is None
        shown = made.clip_frames(0, made.frames)
        assert (made.clip_rate(0, made.frames), len(shown)) == (25, 200)
        assert sum(100 <= frame < 140 for frame in shown.tolist()) <= 1
        assert set(shown.tolist()) >= {*range(99), *range(140, 240)}


def test_a_film_of_a_fast_camera_shows_all_its_frames() -> None:
    made = timeline(list(range(3000)), Fraction(1, 1000), 1, Fraction(1000), (), 60.0)
    assert made.clip_frames(0, 3000).tolist() == list(range(3000))
    ramp = np.cumsum([0, *[33] * 60, *[1] * 900, *[33] * 60]).tolist()
    made = timeline(ramp, Fraction(1, 1000), 33, Fraction(60), (), 60.0)
    assert sum(60 < frame < 960 for frame in made.clip_frames(0, made.frames).tolist()) > 50


def test_one_pass_and_two_give_the_same_of_a_join(tmp_path: Path) -> None:
    source = write_video(tmp_path / "whole.mp4", (80, 90), audio=True, options={"bf": "0", "g": "40"})
    path = removed(source, tmp_path / "a.mp4", [(0, 2.2), (4.2, None)])
    assert cut_twice(path, config(512), tmp_path / "a") == cut_twice(path, config(0), tmp_path / "b")


@pytest.mark.parametrize("b_frames", beyond(1, [2, 0]))
def test_stamps_that_wrap_in_the_middle_are_no_join(b_frames: int, tmp_path: Path) -> None:
    path = stepping(tmp_path / "a.ts", (0, 0), b_frames=b_frames, start_s=2**33 / 90000 - 3.3)
    found = curated(path, tmp_path / "out")
    assert [(record.start_s, record.end_s) for record, _ in found] == [(0, 6), (6, 9)]
    assert [read_numbers(clip) for _, clip in found] == [list(range(150)), list(range(150, 225))]
    for record, clip in found:
        assert_agrees(record, clip)
        off_s = [off_s for true_s, off_s in errors_s(clip) if true_s > 0]
        assert off_s == pytest.approx([0] * len(off_s), abs=1e-3)


@pytest.mark.parametrize("rates", [(25, 50), pytest.param((50, 25), marks=thorough)])
def test_the_last_frame_before_a_join_lasts_as_long_as_its_own_film_says(rates, tmp_path: Path) -> None:
    parts = [
        write_video(tmp_path / f"{rate}.ts", (rate * 3,), rate=rate, audio=True, first_scene=rate)
        for rate in rates
    ]
    path = tmp_path / "a.ts"
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    found = curated(path, tmp_path / "out")
    assert [(record.start_s, record.end_s, record.fps) for record, _ in found] == [
        (0, 3, rates[0]),
        (pytest.approx(3), pytest.approx(6), rates[1]),
    ]
    for record, clip in found:
        assert_agrees(record, clip)


SUITE = {
    "mp4": ("a.mp4", {}),
    "B-frames": ("a.mp4", {"options": {"bf": "3"}}),
    "late start": ("a.mp4", {"start_s": 3.3}),
    "matroska": ("a.mkv", {"rate": Fraction(30000, 1001), "options": {"bf": "2"}}),
    "transport stream": ("a.ts", {"start_s": 77.0, "options": {"bf": "2"}}),
    "avi": ("a.avi", {"codec": "mpeg4"}),
    "mov": ("a.mov", {"rate": 24}),
    "a hole": ("a.mp4", {"times_s": [number / 25 + (number > 37) / 25 for number in range(120)]}),
    "held": ("a.mkv", {"times_s": [number / 25 + 2.0 * (number > 60) for number in range(120)]}),
    "two rates": ("a.mp4", {"times_s": [*np.arange(60) / 30, *(2 + np.arange(60) / 24)]}),
}


@pytest.mark.parametrize(
    "kind", but(("B-frames", "two rates"), SUITE, ("late start", "transport stream", "avi", "a hole"))
)
def test_picture_sound_and_accounting_agree(kind: str, tmp_path: Path) -> None:
    name, options = SUITE[kind]
    path = write_video(tmp_path / name, (60, 60), audio=True, **options)
    found = curated(path, tmp_path / "out", spans={"min_clip_s": 0.5})
    assert all(one.end_s == other.start_s for (one, _), (other, _) in pairwise(found))
    for record, clip in found:
        assert record.state == "kept", record.reason
        assert_agrees(record, clip, ends="times_s" not in options and "start_s" not in options)


@pytest.mark.skipif(not CORPUS.is_dir(), reason=NO_CORPUS)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("bbb_opening.mp4", marks=nightly),
        pytest.param("plush_gopher_vertical.mp4", marks=thorough),
    ],
)
def test_picture_sound_and_accounting_of_real_footage_agree(name: str, tmp_path: Path) -> None:
    for record, clip in curated(CORPUS / "originals" / name, tmp_path / "out"):
        if record.state == "kept":
            assert_agrees(record, clip, ends=False)


def assert_agrees(record: Record, clip: bytes, ends: bool = True) -> None:
    """Compare the seconds of a clip's pictures with those of its row and of its sound; sound may end before a film."""
    with av.open(io.BytesIO(clip)) as container:
        video = container.streams.video[0]
        shown_s = float(video.duration * video.time_base)
        assert shown_s == pytest.approx(record.end_s - record.start_s, abs=SAME_S)
        assert record.duration_s == pytest.approx(shown_s, abs=1e-3)
        for sound in container.streams.audio:
            heard_s = float(sound.duration * sound.time_base)
            # A packet sounds as a whole, and the last one of a film may end early.
            packet_s = sound.codec_context.frame_size / sound.codec_context.sample_rate
            assert heard_s <= shown_s + SAME_S + packet_s
            assert not ends or heard_s >= shown_s - SAME_S - packet_s


@pytest.mark.parametrize("outpoint_s", [3.71, 3.6])
def test_a_clip_ends_where_the_pictures_of_joined_pieces_overlap(outpoint_s: float, tmp_path: Path) -> None:
    """Pictures that are moved behind others come late there, and sound does not; none of them is called lost."""
    source = write_video(tmp_path / "a.mkv", (150,), options={"g": "12", "bf": "2"}, audio=True)
    names, path = tmp_path / "names.txt", tmp_path / "joined.mkv"
    names.write_text(f"file '{source}'\noutpoint {outpoint_s}\nfile '{source}'\n")
    ffmpeg(["-f", "concat", "-safe", "0", "-i", str(names), "-c", "copy", str(path)])
    one_shot = {"detector": "fixed", "fixed": {"stride_s": 99}}
    (first, _), (second, clip) = curated(path, tmp_path / "out", shots=one_shot, spans={"max_clip_s": 60})
    assert (first.state, first.ends_by, first.end_s) == ("kept", "change", second.start_s)
    assert read_numbers(clip)[-140:] == list(range(10, 150))
