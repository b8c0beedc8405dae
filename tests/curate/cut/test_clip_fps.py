"""Clips at the rate of a model: frames are chosen by time, none is shown twice, slower footage stays."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from reelweave.curate.cut import CutConfig
from tests.curate.cut.test_lookahead import config, jumpy
from tests.curate.cut.test_lookahead import curated as files_of
from tests.cutting import curated, sound
from tests.media import read_numbers, write_video
from tests.thorough import but

FAST: dict[str, dict[str, Any]] = {
    "30 fps": {"rate": 30},
    "25 fps with B-frames and sound": {"rate": 25, "options": {"bf": "2", "g": "20"}, "audio": True},
    "60 fps": {"rate": 60},
    "variable rate": {"times_s": jumpy(120)},
}


def frames_shown_at(first: int, slots: int, fps: float, times_s: np.ndarray) -> list[int]:
    """Of each slot of a clip, the frame that is on screen in its middle."""
    middles_s = times_s[first] + (np.arange(slots) + 0.5) / fps
    return (np.searchsorted(times_s, middles_s, side="right") - 1).tolist()


@pytest.mark.parametrize("kind", but(("30 fps", "variable rate"), FAST))
@pytest.mark.parametrize("ahead_mb", [512, 0])
def test_each_slot_shows_the_frame_of_its_time(kind: str, ahead_mb: int, tmp_path: Path) -> None:
    how = FAST[kind]
    path = write_video(tmp_path / "a.mp4", (120,), **how)
    times_s = np.array(how.get("times_s", np.arange(120) / how.get("rate", 25)))
    clips = curated(
        path,
        tmp_path / "out",
        cut={"fps": 16, "ahead_mb": ahead_mb},
        spans={"min_clip_s": 0.5, "max_clip_s": 1.5},
    )
    assert len(clips) >= 2
    for record, data in clips:
        numbers = read_numbers(data)
        assert record.fps == 16
        assert len(numbers) == record.frames == round((record.end_s - record.start_s) * 16)
        assert len(set(numbers)) == len(numbers)
        first = int(np.argmin(np.abs(times_s - record.start_s)))
        expected = frames_shown_at(first, len(numbers), 16, times_s)
        # Where two frames change in the middle of a slot, either is right.
        assert np.abs(np.array(numbers) - expected).max() <= (0 if kind == "30 fps" else 1)
        assert "to 16 fps (cut.fps)" in record.reason
        if how.get("audio"):
            samples, rate, begin = sound(data)
            assert begin == 0
            assert abs(samples.shape[1] / rate - record.frames / 16) < 0.05


@pytest.mark.parametrize(("rate", "fps"), [(12, 16), (24, 23.976), (25, 25)])
def test_slower_footage_and_the_same_rate_stay(rate: int, fps: float, tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", (60,), rate=rate)
    lowered, unchanged = (
        curated(path, tmp_path / str(number), cut=cut) for number, cut in enumerate(({"fps": fps}, {}))
    )
    assert [data for _, data in lowered] == [data for _, data in unchanged]
    assert all(record.fps == rate and not record.reason for record, _ in lowered)


def test_one_pass_two_passes_and_parts_agree(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", (70, 110), rate=30, audio=True)
    cut = {"fps": 16}
    twice = files_of(path, config(0, cut=cut), tmp_path / "twice")
    assert files_of(path, config(512, cut=cut), tmp_path / "once") == twice


@pytest.mark.parametrize("mode", ["smart", "auto"])
def test_packets_are_not_copied_at_another_rate(mode: str, tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", (75,), options={"g": "25", "bf": "0"})
    ((record, data),) = curated(path, tmp_path / "out", cut={"mode": mode, "fps": 10})
    ((_, encoded),) = curated(path, tmp_path / "encoded", cut={"fps": 10})
    assert data == encoded
    assert record.scores["copied_frames"] == 0
    with pytest.raises(ValidationError, match="mode=copy cannot lower a frame rate"):
        CutConfig(mode="copy", fps=10)


def test_the_score_is_the_rate_of_the_footage(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", (75,))
    ((record, _),) = curated(path, tmp_path / "out", cut={"fps": 10})
    assert (record.fps, record.scores["fps"]) == (10, 25)
