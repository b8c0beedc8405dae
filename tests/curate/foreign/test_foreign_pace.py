"""Frame rate and duration of samples whose last picture is held, or whose clock starts anew."""

import subprocess
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from reelweave.curate.foreign.probe import probe
from reelweave.curate.frames.source import SourceError
from reelweave.loader.buckets.frame_sampling import FrameSampling
from reelweave.loader.dataset.samples.clip import TrainingSample
from reelweave.loader.read.frame_times import variable_times
from tests.foreign_tars import video
from tests.held import HELD, held_film
from tests.thorough import but


@pytest.mark.parametrize("name", but(("a.gif", "b-frames.mp4", "a.webm"), tuple(HELD)))
def test_a_last_picture_that_is_held_does_not_slow_the_others_down(name: str, tmp_path: Path) -> None:
    data = held_film(tmp_path, name).read_bytes()
    found = probe(data)
    assert (found.frames, found.fps, found.variable_rate) == (20, pytest.approx(10), True)
    assert found.duration_s == pytest.approx(4.85, abs=0.051)
    sampling = FrameSampling(mode="fps", fps=5)
    assert sampling.available(found.frames, found.fps) == 10
    times_s = variable_times(TrainingSample("a", "", memoryview(data), upright=False))
    assert set(np.diff(sampling.frames("words", found.frames, found.fps, 10, times_s))) == {2}


@pytest.mark.parametrize("suffix", ["mkv", "mp4"])
def test_b_frames_around_a_hold_change_no_length(suffix: str, tmp_path: Path) -> None:
    """MP4 gives a hold to the packet before it in coding order, which may be a late picture; some stamps come twice."""
    film, copied = tmp_path / "film.mkv", tmp_path / f"copy.{suffix}"
    held = "setpts='(N+if(gte(N\\,95)\\,1\\,0)*36)/25/TB'"
    made = ["-f", "lavfi", "-i", "testsrc2=s=64x48:r=25:d=4", "-vf", held, "-fps_mode", "passthrough"]
    coded = ["-c:v", "libx264", "-preset", "veryfast", "-bf", "3", "-x264-params", "b-adapt=0"]
    subprocess.run(["ffmpeg", "-v", "error", *made, *coded, str(film)], check=True)
    subprocess.run(["ffmpeg", "-v", "error", "-i", str(film), "-c", "copy", str(copied)], check=True)
    found = probe(copied.read_bytes())
    assert (found.frames, found.duration_s, found.variable_rate) == (
        100,
        pytest.approx(5.44, abs=0.002),
        True,
    )
    times_s = variable_times(TrainingSample("a", "", memoryview(copied.read_bytes()), upright=False))
    assert times_s is not None
    assert np.diff(times_s).max() == pytest.approx(1.48, abs=0.05)


@pytest.mark.parametrize("suffix", but(("mkv", "ts"), ("mkv", "webm", "ts", "avi")))
def test_films_that_were_joined_keep_their_rate(suffix: str, tmp_path: Path) -> None:
    parts = [video(tmp_path, scene, 30, suffix, size=(96, 64)) for scene in (1, 2)]
    found = probe(b"".join(parts))
    assert (found.frames, found.fps, found.duration_s) == (60, 25, pytest.approx(2.4))
    assert not found.variable_rate


def test_films_of_two_rates_that_were_joined_fail_in_words(tmp_path: Path) -> None:
    parts = [video(tmp_path, rate, 30, "mkv", rate=Fraction(rate)) for rate in (25, 50)]
    assert [probe(part).fps for part in parts] == [25, 50]
    with pytest.raises(SourceError, match="is several recordings joined"):
        probe(b"".join(parts))
