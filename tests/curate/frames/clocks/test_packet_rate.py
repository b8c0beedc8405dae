"""Shots are looked for at the rate of the frames, whatever a header says of it."""

import subprocess
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from reelweave.curate.config import SourceStageConfig
from reelweave.curate.source_pass.scan import Scan, scan
from tests.thorough import beyond

SECONDS, SHOT_S = 8, (0, 1.8, 3.4, 5.6, 8)
FIXED = SourceStageConfig.model_validate({"shots": {"detector": "fixed", "fixed": {"stride_s": 2.0}}})


def film(path: Path, stated: int) -> Path:
    """Write 8 s at 25 frames per second, in four shots; the header states another rate."""
    random = np.random.default_rng(0)
    textures = random.integers(0, 255, (4, 12, 20, 3)).repeat(15, 1).repeat(16, 2).astype(np.uint8)
    with av.open(path, "w") as out:
        stream = out.add_stream("libx264", rate=stated, options={"preset": "ultrafast", "bf": "2"})
        stream.width, stream.height, stream.pix_fmt = 320, 180, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 1000)
        for index in range(SECONDS * 25):
            shot = int(np.searchsorted(SHOT_S, index / 25, "right")) - 1
            frame = av.VideoFrame.from_ndarray(np.roll(textures[shot], index, 1))
            frame.pts, frame.time_base = 40 * index, Fraction(1, 1000)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return path


def scanned(path: Path, config: SourceStageConfig) -> Scan:
    with path.open("rb") as file, scan(file, config) as seen:
        return seen


@pytest.mark.parametrize("stated", beyond(2, [50, 12, 125, 200]))
def test_shots_are_placed_by_the_times_of_frames(stated: int, tmp_path: Path) -> None:
    path = film(tmp_path / "a.mkv", stated)
    with av.open(path) as container:
        assert float(container.streams.video[0].average_rate) == pytest.approx(stated, rel=0.02)
    seen = scanned(path, FIXED)
    assert [cut.end_frame for cut in seen.transitions] == [50, 100, 150]
    assert seen.probe.fps == pytest.approx(25)
    cuts = [cut.end_frame for cut in scanned(path, SourceStageConfig()).transitions]
    assert cuts == [45, 85, 140]


def test_h264_with_b_frames_that_was_copied_into_avi_has_its_own_rate(tmp_path: Path) -> None:
    source = film(tmp_path / "a.mkv", 25)
    path = tmp_path / "a.avi"
    copy = ["ffmpeg", "-v", "error", "-i", str(source), "-c", "copy", "-bsf:v", "h264_mp4toannexb", str(path)]
    subprocess.run(copy, check=True)
    assert [cut.end_frame for cut in scanned(path, FIXED).transitions] == [50, 100, 150]


@pytest.mark.parametrize("suffix", [".mkv", ".ts", ".mp4"])
def test_a_rate_that_holds_stays(suffix: str, tmp_path: Path) -> None:
    seen = scanned(film(tmp_path / f"a{suffix}", 25), FIXED)
    assert seen.probe.packet_fps is None
    assert seen.probe.fps == 25
