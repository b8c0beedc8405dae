"""A part of a film that its file holds twice in a row, as joined or repeated segments do: no clip shows it twice."""

from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from reelweave.curate.frames.frame_times import timeline
from tests.cutting import curated
from tests.fuzz.moved_bytes import bounds_of
from tests.media import read_numbers
from tests.player import encode_numbered
from tests.thorough import beyond

GROUP, FRAMES = 10, 120


def repeated(frames: int, begin: int, count: int, rate: Fraction, tick: Fraction) -> list[int | None]:
    stamps = [round(number / rate / tick) for number in range(frames)]
    return [*stamps[: begin + count], *stamps[begin : begin + count], *stamps[begin + count :]]


@pytest.mark.parametrize("rate", ["25", "30000/1001"])
@pytest.mark.parametrize("count", [4, 9, 15])
def test_a_border_lies_where_stamps_begin_again(count: int, rate: str) -> None:
    stamps = repeated(300, 100, count, Fraction(rate), Fraction(1, 1000))
    packets = {tick for tick in stamps if tick is not None}
    line = timeline(stamps, Fraction(1, 1000), None, Fraction(rate), (), 60.0, repeated=packets)
    assert line.borders == [100 + count]
    assert np.diff(line.times_s) == pytest.approx(1 / float(Fraction(rate)), abs=2e-3)


def test_a_clock_that_steps_back_is_no_repeat() -> None:
    stamps = repeated(300, 100, 9, Fraction(25), Fraction(1, 1000))
    assert timeline(stamps, Fraction(1, 1000), None, Fraction(25), (), 60.0).borders == []


@pytest.mark.parametrize("b_frames", beyond(1, [2, 0]))
def test_no_clip_shows_a_repeated_cluster_twice(b_frames: int, tmp_path: Path) -> None:
    """Of repeated fragments of MP4 FFmpeg shows one."""
    encoder = f"-c:v libx264 -g {GROUP} -sc_threshold 0 -bf {b_frames} -flags +cgop -cluster_time_limit 390"
    path = encode_numbered(tmp_path / "film.mkv", FRAMES, encoder)
    data = path.read_bytes()
    begin, end = bounds_of(data, ".mkv")[5:7]
    path.write_bytes(data[:end] + data[begin:])
    found = curated(path, tmp_path / "out", spans={"min_clip_s": 0.2})
    shown = [read_numbers(clip) for _, clip in found]
    assert len(shown) == 2
    assert all(after - before == 1 for numbers in shown for before, after in pairwise(numbers))
    assert (shown[0][0], shown[1][-1]) == (0, FRAMES - 1)
    assert shown[0][-1] - shown[1][0] == GROUP - 1
