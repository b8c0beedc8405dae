"""Frame rate of each clip, from the frames in it."""

import io
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from reelweave.curate.frames.frame_times import FrameTimes, timeline
from tests.curate.cut.test_lookahead import config, curated, ready
from tests.cutting import curated as records_of
from tests.media import numbered_frame, read_numbers, write_video
from tests.player import ffmpeg, numbers_shown
from tests.thorough import beyond

FILM, NTSC = Fraction(24000, 1001), Fraction(30000, 1001)
MS, TICK = Fraction(1, 1000), Fraction(1, 90000)


def line(times_s, tick=TICK, max_fps=60.0):
    pts = [round(float(one) / float(tick)) for one in times_s]
    return timeline(pts, tick, None, Fraction(30), (), max_fps)


def run(rate: float, seconds: float) -> list[float]:
    return [1 / rate] * round(seconds * rate)


def times(*gaps: list[float]) -> np.ndarray:
    return np.cumsum([0.0, *np.concatenate(gaps)])[:-1]


@pytest.mark.parametrize("tick", [TICK, MS])
@pytest.mark.parametrize("rate", ["24000/1001", "24", "25", "30", "15", "15/2", "50", "60"])
def test_a_part_of_a_joined_film_has_its_own_rate(rate: str, tick: Fraction) -> None:
    rate = Fraction(rate)
    part = run(float(rate), 10)
    joined = line(times(run(48, 5), part, run(20, 5)), tick)
    assert not joined.constant
    assert joined.clip_rate(240, 240 + len(part)) == rate
    assert joined.clip_frames(240, 240 + len(part)).tolist() == list(range(240, 240 + len(part)))
    part = np.delete(part, [30, 31])
    part[30] *= 3  # two frames were dropped
    joined = line(times(run(48, 5), part.tolist(), run(20, 5)), tick)
    assert joined.clip_rate(240, 240 + len(part)) == pytest.approx(rate, rel=0.0011)  # 60 or 59.94


def test_what_stays_variable_within_a_clip_has_the_rate_of_most_frames() -> None:
    ramp = line(times(run(30, 5), run(240, 1), run(30, 20)))
    assert ramp.clip_rate(0, 150) == 30
    assert ramp.clip_rate(100, 450) == 60  # cut.max_fps
    assert ramp.clip_rate(150, 390) == 60
    assert ramp.clip_rate(400, 700) == 30
    assert ramp.clip_rate(400, 403) == ramp.rate  # too few frames of its own


MIXED = {
    "two rates": [FILM] * 60 + [NTSC] * 14,
    "three rates": [FILM] * 51 + [NTSC] * 15 + [Fraction(133, 10)] * 5,
}


@pytest.mark.parametrize("tick", [TICK, MS, Fraction(1, 16000)])
@pytest.mark.parametrize("name", MIXED)
def test_a_clip_of_two_rates_has_that_of_most_frames_in_each_container(name: str, tick: Fraction) -> None:
    film = line(times([float(1 / rate) for rate in MIXED[name]]), tick)
    assert film.clip_rate(0, film.frames) == FILM
    assert film.frames - len(set(film.clip_frames(0, film.frames).tolist())) == 3


@pytest.mark.parametrize("tick", [TICK, MS])
def test_a_rate_that_would_leave_out_one_frame_of_twenty_gives_way_to_the_fastest(tick: Fraction) -> None:
    film = line(times([float(1 / rate) for rate in [FILM] * 110 + [NTSC] * 90]), tick)
    assert film.clip_rate(0, film.frames) == pytest.approx(NTSC, rel=0.0011)  # 30 by milliseconds
    assert set(film.clip_frames(0, film.frames).tolist()) == set(range(film.frames))


@pytest.mark.parametrize("suffix", beyond(1, ["mkv", "mp4"]))
def test_frames_that_a_clip_has_no_slot_for_are_said(suffix: str, tmp_path: Path) -> None:
    gaps = [float(1 / rate) for rate in MIXED["two rates"]]
    path = write_video(tmp_path / f"a.{suffix}", (74,), times_s=times(gaps), rate=FILM)
    ((record, clip),) = records_of(path, tmp_path / "out", stitch={"enabled": False})
    assert (record.state, record.fps) == ("kept", pytest.approx(float(FILM)))
    assert record.reason == "3 of 74 frames have no slot at 23.976 fps"
    assert len(set(read_numbers(clip))) == 71


def test_a_clip_of_few_scattered_frames_has_the_rate_of_the_camera() -> None:
    scattered = [number / 30 for number in (7, 11, 5, 13, 9, 7)]
    film = line(times(run(30, 5), scattered, run(30, 5)))
    assert film.clip_rate(150, 156) == 30


def test_jitter_does_not_change_the_rate_from_clip_to_clip() -> None:
    rng = np.random.default_rng(5)
    gaps = np.full(1800, 1 / 30) + rng.uniform(-0.004, 0.004, 1800)
    gaps[500] += 1
    film = line(times(gaps.tolist()))
    assert {film.clip_rate(first, first + 150) for first in range(0, 1650, 150)} == {Fraction(30)}


@pytest.mark.parametrize("suffix", beyond(1, ["mp4", "mkv"]))
def test_clips_of_a_ramp_and_of_joined_films_repeat_no_frame(suffix: str, tmp_path: Path) -> None:
    parts = [run(30, 3), run(120, 1), run(24, 3), run(25, 3)]
    ends = np.cumsum([len(part) for part in parts]).tolist()
    scenes = tuple(len(part) for part in parts)
    path = write_video(tmp_path / f"a.{suffix}", scenes, times_s=times(*parts), rate=30)
    settings: dict[str, Any] = {"spans": {"min_clip_s": 0.5}}
    found = [(record, clip) for record, clip in records_of(path, tmp_path / "out", **settings)]
    rates = [record.fps for record, _ in found]
    assert rates == [30, 60, 24, 25]
    shown = [read_numbers(clip) for _, clip in found]
    assert shown[0] == list(range(ends[0]))
    assert len(shown[1]) == 60
    assert shown[2:] == [list(range(*bounds)) for bounds in pairwise(ends[1:])]
    assert [record.scores["duplicate_share"] for record, _ in found] == [0, 0, 0, 0]
    for record, _ in found:
        assert record.duration_s == pytest.approx(record.end_s - record.start_s, abs=0.02)


def test_clips_of_several_rates_are_foreseen_and_the_same_in_one_pass_and_two(tmp_path: Path) -> None:
    parts = [run(30, 2), run(24, 2), run(25, 2)]
    path = write_video(tmp_path / "a.mp4", (60, 48, 50), times_s=times(*parts), rate=30)
    assert curated(path, config(512), tmp_path / "a") == curated(path, config(0), tmp_path / "b")
    assert all(ready(path, config(512)))


@pytest.mark.parametrize("kept", [0.8, 0.5, 0.3])
@pytest.mark.parametrize(
    "rate", [FILM, Fraction(24), NTSC, Fraction(30), 2 * NTSC, Fraction(60), Fraction(15)]
)
def test_milliseconds_do_not_move_a_rate_where_many_frames_are_missing(rate: Fraction, kept: float) -> None:
    for seed in range(4):
        shown = np.flatnonzero(np.random.default_rng(seed).random(600) < kept)
        pts = np.rint(shown / float(rate) * 1000).astype(int).tolist()
        stated = Fraction(len(pts), pts[-1] or 1) * 1000
        line = timeline(pts, Fraction(1, 1000), None, stated, (), 60)
        assert line.clip_rate(0, line.frames) == rate
        assert line.clip_rate(0, 100) == rate


def test_a_variable_matroska_of_29_97_fps_keeps_its_rate(tmp_path: Path) -> None:
    path = tmp_path / "film.mkv"
    raw = b"".join(numbered_frame(number, 160, 128).tobytes() for number in range(150))
    words = (
        "-f rawvideo -pix_fmt rgb24 -s 160x128 -r 30000/1001 -i - -vf select='lt(random(1)\\,0.5)' -fps_mode"
    )
    ffmpeg([*words.split(), "passthrough", "-c:v", "libx264", "-crf", "12", "-y", str(path)], raw)
    ((record, clip),) = records_of(path, tmp_path / "out", spans={"min_clip_s": 0.5})
    assert record.fps == pytest.approx(float(NTSC))
    shown = numbers_shown(path)
    # At 30 fps a frame of five seconds would be shown twice.
    assert read_numbers(clip) == [
        max(one for one in shown if one <= slot + shown[0]) for slot in range(record.frames)
    ]


@pytest.mark.parametrize("tick", [MS, TICK])
@pytest.mark.parametrize("rate", [FILM, Fraction(25), NTSC, Fraction(60)])
def test_pieces_that_begin_half_a_frame_off_the_grid_repeat_no_frame(rate: Fraction, tick: Fraction) -> None:
    for off in np.arange(0, 1, 0.05):
        places = np.concatenate([np.arange(150), 150 + off + np.arange(150), 300 + 2 * off + np.arange(150)])
        pts = [round(one) for one in places / float(rate) / float(tick)]
        film = timeline(pts, tick, None, rate, (), 60)
        steps = np.diff(film.clip_frames(0, film.frames))
        # A join may hold a frame, so that what is behind it is in time.
        assert (steps == 0).sum() <= 2
        assert (steps > 1).sum() <= 1


@pytest.mark.parametrize("tick", [Fraction(1, 90_000), Fraction(1, 1000)])
@pytest.mark.parametrize("step_s", [0.0213, 0.0187, -0.0213, 0.0203, 0.031])
def test_behind_a_step_of_the_clock_each_slot_shows_the_frame_on_screen(
    step_s: float, tick: Fraction
) -> None:
    """Parts are joined a packet of AAC (21.3 ms) off the grid: the nearer slot is at most half a frame away."""
    shown_s = [frame / 25 + (step_s if frame >= 100 else 0) for frame in range(250)]
    line = timeline([round(at / tick) for at in shown_s], tick, None, Fraction(25), (), 60.0)
    assert line.clip_rate(0, 250) == 25
    slots = line.clip_frames(0, 250)
    off_s = (line.times_s[slots] - np.arange(len(slots)) / 25)[102:]
    assert np.abs(off_s).max() <= 0.02 + float(tick)
    assert len(np.unique(slots)) >= 249


def test_pieces_half_a_frame_off_the_grid_are_the_same_in_one_pass_and_two(tmp_path: Path) -> None:
    places = np.concatenate([np.arange(50), 50.5 + np.arange(50)])
    path = write_video(tmp_path / "a.mkv", (100,), times_s=places / 25, rate=25)
    assert curated(path, config(512), tmp_path / "a") == curated(path, config(0), tmp_path / "b")
    assert any(ready(path, config(512)))


def test_a_film_of_a_thousand_frames_a_second_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "fast.mkv"
    steps = "testsrc2=s=96x64:r=1000:d=0.4"
    ffmpeg(f"-f lavfi -i {steps} -c:v libx264 -preset ultrafast -pix_fmt yuv420p -y {path}".split())
    ((record, clip),) = records_of(path, tmp_path / "out", spans={"min_clip_s": 0.3})
    assert (record.state, record.reason, record.frames, record.fps) == ("kept", "", 400, 1000)
    with av.open(io.BytesIO(clip)) as container:
        assert sum(1 for _ in container.decode(video=0)) == 400


def test_a_copy_from_matroska_to_mp4_keeps_its_rate(tmp_path: Path) -> None:
    """MP4 states the average of durations in whole milliseconds, 24.0017 for 24 frames a second."""
    matroska = write_video(tmp_path / "a.mkv", (241,), rate=24, options={"bf": "0"})
    path = tmp_path / "a.mp4"
    ffmpeg(["-i", str(matroska), "-c", "copy", "-video_track_timescale", "1000", "-y", str(path)])
    with av.open(str(path)) as container:
        assert container.streams.video[0].average_rate != 24
    [(record, _)] = records_of(path, tmp_path / "out", spans={"max_clip_s": 20.0})
    assert record.fps == 24


@pytest.mark.parametrize("rate", ["29917/1000", "2397/100", "2503/100"])
def test_a_rate_beside_a_usual_one_stays_what_it_is(rate: str) -> None:
    stated = Fraction(rate)
    pts = [round(number / float(stated) / float(TICK)) for number in range(300)]
    assert timeline(pts, TICK, None, stated, (), 60.0).rate == stated


@pytest.mark.parametrize("rate", [25, 30])
def test_stamps_that_jitter_keep_the_rate_and_repeat_no_frame(rate: int, tmp_path: Path) -> None:
    """As browsers record: 30 frames a second became 40.3, and a quarter of them was repeated."""
    jitter_s = np.random.default_rng(3).uniform(-0.007, 0.007, 5 * rate)
    times_s = np.round(np.maximum(np.arange(5 * rate) / rate + jitter_s, 0), 3)
    path = write_video(tmp_path / "a.mkv", (5 * rate,), rate=rate, times_s=times_s)
    ((record, clip),) = records_of(path, tmp_path / "out")
    assert (record.state, record.fps, record.frames) == ("kept", rate, 5 * rate)
    assert read_numbers(clip) == list(range(5 * rate))


def test_frames_that_are_shown_for_an_instant_are_left_out_and_counted(tmp_path: Path) -> None:
    """Of every tenth pair the first frame has nearly the stamp of the second, as where a recorder stamps twice."""
    times_s = [number / 25 + (0.0395 if number % 10 == 3 else 0.0) for number in range(100)]
    path = write_video(tmp_path / "a.mp4", (100,), times_s=times_s)
    ((record, clip),) = records_of(path, tmp_path / "out")
    assert record.reason == "10 of 100 frames, each shown for less than 1.5 ms, are left out"
    assert read_numbers(clip) == [number - (number % 10 == 3) for number in range(100)]


@pytest.mark.parametrize("late", [10, 3])
def test_all_frames_that_a_clip_leaves_out_are_counted(late: int) -> None:
    """Stamps by a camera's wall clock: some frames are too short to be seen, and others have no slot."""
    gaps_s = np.full(250, 0.04)
    gaps_s[5 : 5 + 16 * 10 : 10] = 0.001
    gaps_s[6 : 6 + 16 * 10 : 10] = 0.079
    gaps_s[170 : 170 + 8 * late : 8] = 0.005
    gaps_s[171 : 171 + 8 * late : 8] = 0.075
    times_s = np.concatenate([[0.0], np.cumsum(gaps_s)])
    line = FrameTimes(times_s, Fraction(25), False, (), max_fps=60.0)
    shown = len(np.unique(line.clip_frames(0, 250)))
    rate = float(line.clip_rate(0, 250))
    assert 250 - shown > 16
    assert line.left_out(0, 250) == (
        "16 of 250 frames, each shown for less than 1.5 ms, are left out;"
        f" {250 - shown - 16} further ones have no slot at {rate:.5g} fps"
    )
