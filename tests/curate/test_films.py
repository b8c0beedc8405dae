"""Unusual but real films, whole, through the fused stage; the long list is docs/benchmarks/films.md."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from reelweave.loader.read.decode import decode
from tests.cutting import curated, sound
from tests.filter_footage import encode
from tests.media import numbered_frame, read_numbers, with_display_matrix, write_video


def test_recordings_joined_without_care_are_cut_where_their_clock_starts_anew(tmp_path: Path) -> None:
    one = write_video(tmp_path / "one.ts", (50,), audio=True)
    other = write_video(tmp_path / "other.ts", (40,), audio=True)
    joined = tmp_path / "joined.ts"
    joined.write_bytes(one.read_bytes() + other.read_bytes())
    (first, clip), (second, later) = curated(joined, tmp_path / "out", spans={"min_clip_s": 1.0})
    assert (first.state, second.state) == ("kept", "kept")
    assert (first.end_s, second.start_s, second.end_s) == (2.0, 2.0, 3.6)
    assert (read_numbers(clip), read_numbers(later)) == (list(range(50)), list(range(40)))
    (_, alone), *_ = curated(other, tmp_path / "alone", spans={"min_clip_s": 1.0})
    heard, expected = (sound(data)[0] for data in (later, alone))
    assert first.audio == second.audio == "copy:aac"
    assert heard.shape == expected.shape
    assert np.abs(heard - expected).max() < 0.02


def test_sound_whose_clock_does_not_start_anew_is_given_to_nobody(tmp_path: Path) -> None:
    joined = tmp_path / "joined.ts"
    parts = [write_video(tmp_path / f"{audio}.ts", (50,), audio=audio) for audio in (True, False)]
    joined.write_bytes(b"".join(part.read_bytes() for part in parts))
    (first, _), (second, _) = curated(joined, tmp_path / "out", spans={"min_clip_s": 1.0})
    assert first.audio == "copy:aac"
    assert second.audio.startswith("none (the clock of its pictures steps back")


def test_a_clip_says_of_its_own_frames_how_many_repeat(tmp_path: Path) -> None:
    """A recorder that dropped two frames of three of a film at 30 frames per second."""
    times_s = [*(number / 30 for number in range(15)), *(0.5 + number / 10 for number in range(25))]
    path = write_video(tmp_path / "dropping.mp4", (40,), rate=30, times_s=times_s)
    ((record, clip),) = curated(path, tmp_path / "out", spans={"min_clip_s": 1.0})
    shown = read_numbers(clip)
    repeated = sum(one == other for one, other in pairwise(shown)) / (len(shown) - 1)
    assert repeated > 0.5
    assert record.scores["duplicate_share"] == pytest.approx(repeated, abs=0.02)


@pytest.mark.parametrize(
    ("matrix", "stored"),
    [
        ((-1, 0, 0, 1), lambda shown: shown[:, ::-1]),
        ((1, 0, 0, -1), lambda shown: shown[::-1]),
        ((0, 1, 1, 0), lambda shown: shown.swapaxes(0, 1)),
        ((0, -1, -1, 0), lambda shown: shown[::-1, ::-1].swapaxes(0, 1)),
        ((0, 1, -1, 0), np.rot90),
    ],
)
def test_pictures_that_are_stored_mirrored_come_out_as_viewers_show_them(
    matrix, stored, tmp_path: Path
) -> None:
    shown = numbered_frame(300, 160, 128)
    stored_HWC = np.ascontiguousarray(stored(shown))
    path = encode(tmp_path / "a.mp4", [stored_HWC] * 12)
    data = with_display_matrix(path.read_bytes(), *matrix)
    path.write_bytes(data)
    ((record, clip),) = curated(path, tmp_path / "out", spans={"min_clip_s": 0.1})
    assert (record.width, record.height) == (160, 128)
    assert set(read_numbers(clip)) == {300}
    video_CTHW = np.empty((3, 1, 128, 160), np.uint8)
    decode(data, np.array([0]), video_CTHW, upright=False)
    assert np.abs(video_CTHW[:, 0].transpose(1, 2, 0).astype(int) - shown).mean() < 12


@pytest.mark.parametrize(("degrees", "words"), [(30, "states a turn that is no right angle"), (90, "")])
def test_a_turn_that_is_no_right_angle_is_said(degrees: int, words: str, tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", (60,))
    sine, cosine = np.sin(np.radians(degrees)), np.cos(np.radians(degrees))
    path.write_bytes(with_display_matrix(path.read_bytes(), cosine, sine, -sine, cosine))
    ((record, _),) = curated(path, tmp_path / "out")
    assert record.state == "kept"
    assert record.reason.startswith(words)
    assert bool(record.reason) == bool(words)
