"""Sound behind a clock that steps, held against what was recorded."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from reelweave.curate.frames.clocks.sound_stamps import SoundStamps
from reelweave.curate.frames.frame_times import FrameTimes, timeline
from reelweave.curate.frames.sound_clock import SoundClock, repaired_sound
from tests.cutting import curated
from tests.media import write_video
from tests.player import ffmpeg
from tests.stepping import errors_s, stepping
from tests.thorough import but, thorough

BOTH, PICTURE, SOUND = (1, 1), (1, 0), (0, 1)


def sound_of(path: Path, out: Path) -> list[str | float]:
    """Return of each clip the greatest distance of its sound from its pictures in seconds, or why it has none."""
    found: list[str | float] = []
    for record, clip in curated(path, out, spans={"min_clip_s": 0.5}):
        assert record.state == "kept", record.reason
        if record.audio.startswith("none"):
            found.append(record.audio)
        else:
            # An encoder of AAC fades in.
            off_s = [off_s for true_s, off_s in errors_s(clip) if true_s > 0]
            found.append(float(np.abs(off_s).max()))
    return found


@pytest.mark.parametrize(
    ("name", "back_s", "who", "options", "clips"),
    but(
        [("both.ts", 0.36, BOTH, {"resorted": True}, 2)],
        [
            ("both.ts", 0.36, BOTH, {"resorted": True}, 2),
            ("sound.mkv", 0.12, SOUND, {"b_frames": 2}, 2),
            ("both.mkv", 0.12, BOTH, {"b_frames": 2}, 2),
            ("picture.ts", 3.0, PICTURE, {}, 3),
            ("picture.mp4", 0.36, PICTURE, {}, 2),
            ("sorted.mkv", 1.0, SOUND, {"resorted": True}, 2),
        ],
        [("picture.ts", 3.0, PICTURE, {}, 3), ("sorted.mkv", 1.0, SOUND, {"resorted": True}, 2)],
    ),
)
def test_sound_stays_with_its_pictures_behind_a_step(name, back_s, who, options, clips, tmp_path) -> None:
    path = stepping(tmp_path / name, [back_s * one for one in who], **options)
    found = sound_of(path, tmp_path / "out")
    assert len(found) == clips
    assert all(isinstance(one, float) and one < 0.002 for one in found), found


@thorough
def test_sound_stays_with_pictures_that_a_remuxer_sorted_if_both_end_together(tmp_path: Path) -> None:
    path = stepping(tmp_path / "sorted.mkv", PICTURE, resorted=True)
    found = sound_of(path, tmp_path / "out")
    assert len(found) == 3
    assert all(isinstance(one, float) and one < 0.002 for one in found), found


@thorough
def test_joined_recordings_that_all_begin_at_the_same_stamp_keep_their_sound(tmp_path: Path) -> None:
    part = stepping(tmp_path / "part.ts", (0.0, 0.0))
    path = tmp_path / "joined.ts"
    path.write_bytes(part.read_bytes() * 3)
    distances_s = sound_of(path, tmp_path / "out")
    assert len(distances_s) == 6
    assert all(isinstance(off_s, float) and off_s < 0.002 for off_s in distances_s), distances_s


# The same on numbers: pictures every 40 ms, sound every 20.


def repaired(
    pictures_s: np.ndarray, sound_s: np.ndarray, places: np.ndarray | None = None
) -> tuple[SoundClock | None, FrameTimes]:
    """Return the clock of a film of these stamps, each sound packet beside every second picture by default."""
    line = timeline([round(at * 1000) for at in pictures_s], Fraction(1, 1000), None, Fraction(25), (), 60)
    before = np.arange(len(sound_s)) // 2 if places is None else places
    pts = np.rint(sound_s * 1000).astype(int).tolist()
    stamps = SoundStamps(0.001, pts, [20] * len(pts), before.tolist(), len(pictures_s))
    return repaired_sound(stamps, line, float(pictures_s[0])), line


def grid(seconds: float, every_s: float) -> np.ndarray:
    return np.arange(round(seconds / every_s)) * every_s


def test_sound_that_never_steps_back_keeps_its_stamps() -> None:
    pictures_s, sound_s = grid(20, 0.04), grid(20, 0.02)
    assert repaired(pictures_s, sound_s)[0] is None
    paused_s = np.where(sound_s > 8, sound_s + 3, sound_s)[:-150]
    assert repaired(pictures_s, paused_s)[0] is None
    for wrong_s in (-2.0, 2.0):  # one stamp
        sound_s[400] += wrong_s
        assert repaired(pictures_s, sound_s)[0] is None


def test_recordings_joined_agree_anew_whatever_their_sound_lacks() -> None:
    """The first one's sound lags by a step of its own, and is half a second shorter than its pictures."""
    pictures_s = np.concatenate([grid(20, 0.04), grid(10, 0.04)])
    sound_s = np.concatenate([grid(8, 0.02), grid(11.5, 0.02) + 7, grid(10, 0.02)])
    places = np.searchsorted(grid(30, 0.04), np.concatenate([grid(19.5, 0.02), grid(10, 0.02) + 20]))
    clock, line = repaired(pictures_s, sound_s, places)
    assert line.breaks == (500,)
    assert clock is not None
    assert "its sound alone steps back by 1.00 s" in clock.remark
    assert replace(clock, remark="") == SoundClock(((400, 1000), (975, 20000)), (), 750)


def test_recordings_joined_may_all_begin_at_the_same_stamp() -> None:
    pictures_s, sound_s = np.tile(grid(8, 0.04), 3), np.tile(grid(8, 0.02), 3)
    clock, line = repaired(pictures_s, sound_s)
    assert line.breaks == (200, 400)
    assert clock == SoundClock(((400, 8000), (800, 16000)), (), 600)


def test_a_jump_of_both_clocks_is_one_jump() -> None:
    pictures_s, sound_s = grid(20, 0.04), grid(20, 0.02)
    pictures_s[300:] += 7200
    sound_s[590:] += 7200  # sound lies a little earlier in the file
    clock, _ = repaired(pictures_s, sound_s)
    assert clock == SoundClock(((590, -7200000),), (), 500)


def test_sound_is_unknown_behind_a_break_of_the_pictures_until_both_restart() -> None:
    """As a remuxer sorts pictures that step back by 2 s and sound that does not; then another recording follows."""
    pictures_s = np.concatenate([grid(10, 0.04), grid(10, 0.04) + 8, grid(10, 0.04)])
    sound_s = np.concatenate([grid(20, 0.02), grid(10, 0.02)])
    beside_s = np.minimum(np.where(sound_s >= 10, sound_s + 2, sound_s), 20)
    beside_s[1000:] = sound_s[1000:] + 20
    clock, line = repaired(pictures_s, sound_s, np.searchsorted(grid(30, 0.04), beside_s))
    assert line.breaks == (250, 500)
    assert clock is not None
    assert [clock.offset_s(frame) for frame in (0, 249, 250, 499, 500)] == [0.0, 0.0, None, None, 0.0]
    assert clock.shifts == ((1000, 20000),)


def sorted_film(
    pictures_back_s: float, sound_back_s: float, sound_ends_s: float = 20
) -> tuple[SoundClock | None, int]:
    """Return the clock of a film of 20 s that steps back at 10 s, sorted by its stamps, and the frame of the step."""
    pictures_s, sound_s = grid(20, 0.04), grid(sound_ends_s, 0.02)
    pictures_s[250:] -= pictures_back_s
    sound_s[500:] -= sound_back_s
    merged = np.searchsorted(np.maximum.accumulate(pictures_s), np.maximum.accumulate(sound_s))
    return repaired(pictures_s, sound_s, merged)[0], 250


def test_in_a_sorted_film_the_ends_tell_which_stamps_are_right() -> None:
    clock, frame = sorted_film(2.0, 0.0)
    assert clock is not None
    assert clock.shifts == ()
    assert clock.offset_s(frame) == 0.0
    clock, frame = sorted_film(0.0, 2.0)
    assert clock is not None
    assert clock.shifts == ((500, 2000),)


def test_in_a_sorted_film_whose_ends_say_nothing_stamps_stay() -> None:
    for ends_s in (18.0, 19.0):  # 18: segments whose pictures overlap, but not their sound
        clock, frame = sorted_film(2.0, 0.0, ends_s)
        assert clock is not None
        assert clock.offset_s(frame) is None
    clock, _ = sorted_film(0.0, 2.0, 19.0)
    assert clock is None or clock.shifts == ()


@pytest.mark.parametrize(("name", "sound_s", "pictures_s"), [("sound", 0.5, 0.0), ("pictures", 0.0, 0.12)])
def test_a_clock_that_steps_back_alone_is_said(name: str, sound_s: float, pictures_s: float) -> None:
    """Players show pictures and sound apart behind it; the order of the file says that they belong together."""
    shown_s, heard_s = grid(20, 0.04), grid(20, 0.02)
    clock, _ = repaired(shown_s - pictures_s * (shown_s > 8), heard_s - sound_s * (heard_s > 8))
    assert clock is not None
    assert clock.remark.startswith(
        f"the clock of its {name} alone steps back by {sound_s or pictures_s:.2f} s"
    )


@pytest.mark.parametrize(("overlap_s", "steps"), [(0.09, (200,)), (0.03, (200,)), (-0.02, ())])
def test_a_step_of_pictures_whose_sound_goes_on_is_known(overlap_s: float, steps: tuple[int, ...]) -> None:
    """Joined pieces whose last pictures overlap (`outpoint`): sound follows its stamps, pictures cannot."""
    begin_s = 7.96 - overlap_s
    pictures_s, sound_s = np.concatenate([grid(8, 0.04), grid(8, 0.04) + begin_s]), grid(8 + begin_s, 0.02)
    places = np.searchsorted(np.sort(pictures_s), sound_s, "right")
    clock, line = repaired(pictures_s, sound_s, places)
    assert (() if clock is None else clock.steps) == steps
    if clock is not None and steps:
        assert clock.offset_s(200) == pytest.approx(begin_s - float(line.times_s[200]))


def test_sound_that_ends_at_a_join_is_said(tmp_path: Path) -> None:
    """The pictures of both parts overlap there, so that their clock is repaired."""
    parts = []
    for number, words in enumerate(("", "-an")):
        source = write_video(tmp_path / f"{number}.mp4", (100,), audio=True, options={"g": "25"})
        part = tmp_path / f"{number}.ts"
        ffmpeg(
            ["-i", str(source), "-c", "copy", *words.split(), "-output_ts_offset", str(4 * number), str(part)]
        )
        parts.append(part.read_bytes())
    (path := tmp_path / "joined.ts").write_bytes(b"".join(parts))
    found = [record for record, _ in curated(path, tmp_path / "out") if record.state == "kept"]
    assert found[-1].end_s == pytest.approx(8.0)
    assert all("the sound of its source lasts 4.0 s less than the pictures" in r.reason for r in found)


def test_a_track_of_sound_without_packets_is_said(tmp_path: Path) -> None:
    whole, path = write_video(tmp_path / "whole.mp4", (50,), audio=True), tmp_path / "a.mp4"
    words = "-c copy -bsf:a noise=drop=gte(n\\,0) -movflags frag_keyframe+empty_moov"
    ffmpeg(["-i", str(whole), *words.split(), str(path)])
    ((record, _),) = curated(path, tmp_path / "out", spans={"min_clip_s": 0.5})
    assert record.audio == "none"
    assert record.reason.startswith("its source announces sound and holds none that can be read")
