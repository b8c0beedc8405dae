"""The detector a configuration asks for, fixed strides, and high frame rates."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError

from reelweave.curate.shots import ColourDetector, ShotConfig, ShotDetector, Transition, make_detector
from reelweave.curate.shots.fixed import FixedStrideConfig, FixedStrideDetector
from reelweave.curate.shots.rate import ThinnedDetector, frame_step
from tests.curate.shots.test_shots import mixed, scene, still
from tests.cutting import curated
from tests.media import write_video


def run(detector: ShotDetector, frames: NDArray[np.float64]) -> list[Transition]:
    for frame in frames:
        detector.push(np.clip(frame, 0, 255).astype(np.uint8))
    return detector.finish()


def strides(stride_s: float, fps: float, frames: int) -> list[int]:
    found = run(FixedStrideDetector(FixedStrideConfig(stride_s=stride_s), fps), np.zeros((frames, 36, 64, 3)))
    assert all(cut.kind == "cut" and cut.end_frame == cut.start_frame + 1 for cut in found)
    return [cut.end_frame for cut in found]


def test_strides_are_contiguous_and_the_last_one_may_be_short() -> None:
    assert strides(2.0, 25, 120) == [50, 100]


def test_a_video_as_long_as_the_stride_has_no_cut() -> None:
    assert strides(2.0, 25, 50) == []


def test_strides_do_not_drift_at_a_broken_rate() -> None:
    assert strides(1.0, 30_000 / 1001, 3000)[-1] == round(100 * 30_000 / 1001)


def test_a_stride_is_at_least_one_frame() -> None:
    assert strides(0.001, 25, 4) == [1, 2, 3]


@pytest.mark.parametrize(
    ("fps", "step"), [(0.5, 1), (12, 1), (24, 1), (30, 1), (50, 2), (59.94, 2), (60, 2), (120, 4), (1e6, 8)]
)
def test_about_as_many_frames_a_second_are_looked_at_as_the_detectors_were_made_for(
    fps: float, step: int
) -> None:
    assert frame_step(fps) == step


@pytest.mark.parametrize("cut", [39, 40, 41, 42])
def test_a_cut_at_a_high_rate_is_placed_to_the_frame(cut: int) -> None:
    detector = make_detector(ShotConfig(), fps=60)
    found = run(detector, np.concatenate([still(1, cut), still(2, 80)]))
    assert found == [Transition(cut - 1, cut, "cut")]


def test_a_dissolve_of_one_second_at_60_fps_is_found_and_keeps_no_mixed_frame() -> None:
    frames = np.concatenate([still(1, 61), mixed(scene(1), scene(2), 60), still(2, 60)])
    (found,) = run(make_detector(ShotConfig(), fps=60), frames)
    assert found.kind == "gradual"
    assert 56 <= found.start_frame <= 62
    assert 119 <= found.end_frame <= 125


def test_a_video_at_a_high_rate_may_end_between_two_frames_looked_at() -> None:
    assert run(make_detector(ShotConfig(), fps=120), still(1, 31)) == []


def test_a_usual_rate_is_looked_at_whole() -> None:
    assert isinstance(make_detector(ShotConfig(), fps=25), ColourDetector)
    assert isinstance(make_detector(ShotConfig(), fps=50), ThinnedDetector)


def test_a_fixed_stride_needs_every_frame_counted_at_any_rate() -> None:
    config = ShotConfig(detector="fixed", fixed=FixedStrideConfig(stride_s=1))
    assert [cut.end_frame for cut in run(make_detector(config, fps=60), still(1, 150))] == [60, 120]


def test_an_unknown_detector_is_refused() -> None:
    with pytest.raises(ValidationError, match="detector"):
        ShotConfig.model_validate({"detector": "guess"})


def test_shots_of_a_fixed_stride_are_not_stitched(tmp_path: Path) -> None:
    """One scene, whose parts look alike."""
    film = write_video(tmp_path / "film.mp4", (160,))
    shots = {"detector": "fixed", "fixed": {"stride_s": 2.0}}
    records = [record for record, _ in curated(film, tmp_path / "out", shots=shots)]
    assert [(record.start_s, record.end_s) for record in records] == [(0, 2), (2, 4), (4, 6), (6, 6.4)]
    assert [record.state for record in records] == ["kept"] * 3 + ["filtered"]
