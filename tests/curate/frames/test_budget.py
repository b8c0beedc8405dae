"""What one source may cost, however little it holds."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reelweave.curate.frames import budget
from tests.cutting import curated
from tests.filter_footage import encode
from tests.media import write_video
from tests.thorough import beyond


def held(path: Path, frames: int = 40) -> Path:
    """A film that mostly stands still: every fifth picture is followed by the next one at once."""
    gaps = np.where(np.arange(frames) % 5, 4.0, 1 / 30)
    return write_video(path, (frames,), times_s=np.cumsum(gaps), size=(64, 64))


def test_frames_made_from_held_pictures_are_bounded_before_they_are_made(tmp_path: Path) -> None:
    path = held(tmp_path / "a.mp4")
    ((record, clip),) = curated(path, tmp_path / "a", probe={"max_fill": 20})
    assert (record.state, record.stage, clip) == ("failed", "probe", b"")
    assert "40 frames that are held; probe.max_fill allows 20 for each" in record.reason
    assert not list((tmp_path / "a").rglob("*.mp4"))
    found = curated(path, tmp_path / "b", scores={"fps": 1})
    assert sum(record.frames for record, _ in found) > 20 * 40
    assert {record.state for record, _ in found} == {"kept"}


def test_pictures_out_of_nothing_end_the_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "_FREE_PIXELS", 10**6)
    path = encode(tmp_path / "a.mp4", [np.zeros((720, 1280, 3), np.uint8)] * 100)
    limit = 20 * 1280 * 720 / path.stat().st_size
    ((record, _),) = curated(path, tmp_path / "out", probe={"max_pixels_per_byte": limit})
    assert (record.state, record.stage) == ("failed", "probe")
    assert f"{path.stat().st_size} bytes; probe.max_pixels_per_byte allows" in record.reason


@pytest.mark.parametrize("ahead_mb", beyond(1, [512, 0]))
def test_clips_too_large_for_their_source_fail_from_there_on(
    ahead_mb: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "_FREE_BYTES", 0)
    path = write_video(tmp_path / "a.mp4", (40, 50, 60))
    settings: dict[str, Any] = {"spans": {"min_clip_s": 0.5}, "cut": {"ahead_mb": ahead_mb}}
    whole = curated(path, tmp_path / "whole", **settings)
    assert [record.state for record, _ in whole] == ["kept"] * 3
    sizes = np.cumsum([record.clip_bytes for record, _ in whole])
    growth = (sizes[1] - 1) / path.stat().st_size
    found = curated(path, tmp_path / "out", probe={"max_growth": growth}, **settings)
    assert found[0][1] == whole[0][1]
    assert [(record.state, record.stage) for record, _ in found[1:]] == [("failed", "cut")] * 2
    assert all("probe.max_growth" in record.reason for record, _ in found[1:])
    assert all(one.end_s == other.start_s for (one, _), (other, _) in pairwise(found))


def test_sound_of_too_many_samples_is_left_out(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", (60,), audio=True)
    ((record, _),) = curated(path, tmp_path / "out", cut={"max_sound_rate": 44099})
    assert (record.state, record.audio) == (
        "kept",
        "none (2 channels of 44100 Hz are more than cut.max_sound_rate)",
    )
