"""Clocks that step between reordered pictures, and back by more than a minute in TS."""

from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from reelweave.curate.frames.frame_times import timeline
from tests.cutting import curated
from tests.media import read_numbers, write_video
from tests.player import ffmpeg
from tests.thorough import but

TICK, FRAMES = Fraction(1, 1000), 150
GROUP = (3, 1, 2)  # display order of a group of three, in coding order


def stepping_stamps(coded: int, by_s: float) -> list[int]:
    """Stamps in display order, of which those from a picture on in coding order are of another clock."""
    order = [0, *(3 * group + place for group in range(FRAMES // 3 - 1) for place in GROUP)]
    later = {shown for index, shown in enumerate(order) if index >= coded}
    return [40 * shown + round(1000 * by_s) * (shown in later) for shown in range(len(order))]


@pytest.mark.parametrize("coded", [70, 71, 72])
@pytest.mark.parametrize("by_s", [3600, -2.6, -100])
def test_a_clock_that_steps_between_reordered_pictures_is_joined_once(coded: int, by_s: float) -> None:
    stamps = stepping_stamps(coded, by_s)
    assert len(steps := [at for at, (a, b) in enumerate(pairwise(stamps)) if abs(b - a) > 1000]) in (1, 3)
    line = timeline(stamps, TICK, 40, Fraction(25), (), 60.0)
    assert np.allclose(line.times_s, np.arange(len(stamps) + 1) / 25)
    assert line.breaks == (steps[0] + 1,)
    assert not line.coded


def test_stamps_that_are_wrong_for_an_instant_are_no_other_clock() -> None:
    stamps = [40 * number for number in range(FRAMES)]
    stamps[60] -= 2600
    line = timeline(stamps, TICK, 40, Fraction(25), (), 60.0)
    assert np.allclose(line.times_s, np.arange(FRAMES + 1) / 25)
    assert line.breaks == ()


@pytest.mark.parametrize(
    ("at", "suffix"), but([(64, "mkv")], [(at, kind) for at in (64, 65, 67) for kind in ("mkv", "ts")])
)
def test_no_picture_is_invented_where_a_clock_jumps_within_a_group(
    at: int, suffix: str, tmp_path: Path
) -> None:
    source = write_video(tmp_path / "whole.mp4", (FRAMES,), options={"bf": "2", "g": "50"})
    path, step = tmp_path / f"jumping.{suffix}", f"gte(N\\,{at})*3600/TB"
    ffmpeg(
        [
            "-i",
            str(source),
            "-c",
            "copy",
            "-bsf:v",
            f"setts=pts=PTS+{step}:dts=DTS+{step}",
            "-copyts",
            str(path),
        ]
    )
    found = curated(path, tmp_path / "out", spans={"min_clip_s": 0.5})
    assert [(record.state, record.reason) for record, _ in found] == [("kept", "")] * 2
    assert [number for _, clip in found for number in read_numbers(clip)] == list(range(FRAMES))


def test_a_clock_of_ts_that_steps_back_by_minutes_lasts_no_lap(tmp_path: Path) -> None:
    """FFmpeg takes stamps a minute below the first one for those of the next lap, after 26 hours."""
    source, parts = write_video(tmp_path / "whole.mp4", (50,), audio=True, options={"g": "25"}), []
    for begins in ("300", "100"):
        part = tmp_path / f"{begins}.ts"
        ffmpeg(["-i", str(source), "-c", "copy", "-output_ts_offset", begins, str(part)])
        parts.append(part.read_bytes())
    (path := tmp_path / "joined.ts").write_bytes(b"".join(parts))
    found = curated(path, tmp_path / "out", spans={"min_clip_s": 0.5})
    assert [record.state for record, _ in found] == ["kept", "kept"]
    assert [read_numbers(clip) for _, clip in found] == [list(range(50))] * 2
